"""Attention with sparse patterns in other packages, as `bench_patterns` calls it.

Longformer and BigBird are HuggingFace's modules (``transformers``), of which the attention alone runs: their linear
projections are replaced by modules that hand out the given queries, keys and values, and BigBird's random blocks by
the given ones, which its heads share. Windows alone are fast-transformers' (``pytorch-fast-transformers``) two products
in C++ with a softmax between. PyTorch's ``scaled_dot_product_attention`` over all pairs is what one would do without a
pattern.

Inputs are brought into the order that each package wants before the clock starts.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.experiments.benches import engine
from linattn_ref.experiments.benches.engine import Call
from linattn_ref.experiments.benches.peers import FAST, PYTORCH, in_torch
from linattn_ref.op import Array

__all__ = ["ALL_PAIRS", "GLOBAL_TOKEN", "Inputs", "Peers", "calls", "find"]

GLOBAL_TOKEN = 0
ALL_PAIRS = "pytorch, all pairs"


class Inputs(NamedTuple):
    """One sequence: everything ``(1, H, N, D)``."""

    q: Array
    k: Array
    v: Array
    q_global: Array
    k_global: Array
    v_global: Array
    d_out: Array


class Peers(NamedTuple):
    """The modules; None for what is not installed."""

    torch: Any
    longformer: Any
    bigbird: Any
    local: Any
    versions: dict[str, str]


def find() -> Peers:
    """What there is to compare with."""
    torch = engine.find("torch")
    if torch is None:
        return Peers(None, None, None, None, {})
    longformer = engine.find("transformers.models.longformer.modeling_longformer")
    bigbird = engine.find("transformers.models.big_bird.modeling_big_bird")
    local = engine.find("fast_transformers.local_product")
    found = {
        PYTORCH: torch,
        "transformers": longformer and engine.find("transformers"),
        FAST: local and engine.find("fast_transformers"),
    }
    return Peers(torch, longformer, bigbird, local, {n: m.__version__ for n, m in found.items() if m is not None})


def calls(
    mechanism: str, peers: Peers, inputs: Inputs, options: dict[str, Any], with_gradient: bool
) -> dict[str, Call]:
    """By name, those that can take this length."""
    found, length = {}, inputs.q.shape[-2]
    if mechanism == "local" and peers.local:
        found[FAST] = windows(peers, inputs, options["window"], with_gradient)
    if mechanism == "longformer" and peers.longformer and length % (2 * options["window"]) == 0:
        found["transformers"] = longformer(peers, inputs, options["window"], with_gradient)
    if mechanism == "bigbird" and peers.bigbird and length % options["block"] == 0:
        found["transformers"] = bigbird(peers, inputs, **options, with_gradient=with_gradient)
    if peers.torch:  # softmax attention without any pattern
        attention = peers.torch.nn.functional.scaled_dot_product_attention
        found[ALL_PAIRS] = partial(in_torch, peers.torch, attention, [*inputs[:3]], inputs.d_out, with_gradient)
    return found


# --- fast-transformers ----------------------------------------------------------------------------------------------


def windows(peers: Peers, inputs: Inputs, window: int, with_gradient: bool) -> Call:
    """fast-transformers' local attention. It takes an ``(N, N)`` mask of zeros, made beforehand."""
    torch, local = peers.torch, peers.local
    n, scale = inputs.q.shape[-2], 1 / math.sqrt(inputs.q.shape[-1])
    mask, lengths = torch.zeros(n, n), torch.full((1,), n)

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = local.local_dot_product(q, k, mask, lengths, 2 * window + 1)  # (1, H, N, 2 window + 1)
        return local.local_weighted_average(torch.softmax(scale * scores, -1), v)

    return partial(in_torch, torch, attention, [*inputs[:3]], inputs.d_out, with_gradient)


# --- HuggingFace ----------------------------------------------------------------------------------------------------


def longformer(peers: Peers, inputs: Inputs, window: int, with_gradient: bool) -> Call:
    """``LongformerSelfAttention`` with one global token; its ``attention_window`` is both sides together."""
    torch, (_, heads, n, width) = peers.torch, inputs.q.shape
    own_order = [_in_columns(x) for x in inputs]  # (N, 1, H D)
    config = importlib.import_module("transformers").LongformerConfig(
        hidden_size=heads * width,
        num_attention_heads=heads,
        attention_window=[2 * window],
        attention_probs_dropout_prob=0.0,
    )
    module = peers.longformer.LongformerSelfAttention(config, 0)
    mask = torch.zeros(1, n)
    mask[0, GLOBAL_TOKEN] = 10_000  # its mark for a global token
    hidden = torch.zeros(1, n, heads * width)  # looked at for its shape alone
    options = {"attention_mask": mask, "is_index_masked": mask < 0, "is_index_global_attn": mask > 0}

    def attention(*tensors: Any) -> Any:
        names = ("query", "key", "value", "query_global", "key_global", "value_global")
        for name, x in zip(names, tensors, strict=True):
            setattr(module, name, _given(torch, x))
        return module(hidden, **options, is_global_attn=True)[0].transpose(0, 1)  # (N, 1, H D)

    *arrays, d_out = own_order
    call = partial(in_torch, torch, attention, arrays, d_out, with_gradient)
    return lambda: [_in_heads(x, heads) for x in call()]


def _in_columns(x: Array) -> Array:
    """``(1, H, N, D)`` as ``(N, 1, H D)``, Longformer's own order."""
    return np.ascontiguousarray(x[0].swapaxes(0, 1)).reshape(x.shape[2], 1, -1)


def _in_heads(x: Array, heads: int) -> Array:
    """``(N, 1, H D)`` as ``(1, H, N, D)``, a view."""
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)[None]


def _given(torch: Any, x: Any) -> Any:
    """A module in place of a projection: the first rows of ``x``, as many as there are in what it is called with.

    A copy, since the queries are divided in place. Row 0 is the global token.
    """

    class Given(torch.nn.Module):
        def forward(self, hidden: Any) -> Any:
            return x[: len(hidden)].clone()

    return Given()


def bigbird(peers: Peers, inputs: Inputs, block: int, random_blocks: NDArray[np.intp], with_gradient: bool) -> Call:
    """``BigBirdBlockSparseAttention``: three blocks of window, the first and the last global, the random ones given."""
    torch, (_, heads, n, width) = peers.torch, inputs.q.shape
    drawn = random_blocks[1:-1]  # (blocks - 2, r)
    config = importlib.import_module("transformers").BigBirdConfig(
        hidden_size=heads * width,
        num_attention_heads=heads,
        block_size=block,
        num_random_blocks=drawn.shape[1],
        max_position_embeddings=n,
    )
    module, count = peers.bigbird.BigBirdBlockSparseAttention(config).eval(), drawn.shape[1]
    module._bigbird_block_rand_mask = lambda *args, **kwargs: drawn
    module._bigbird_block_rand_mask_with_head = lambda *args, **kwargs: [drawn] * heads
    masks = peers.bigbird.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, n), block)
    blocked, band_mask, from_mask, to_mask = masks
    options = {"band_mask": band_mask, "from_mask": from_mask, "to_mask": to_mask}
    options |= {"from_blocked_mask": blocked, "to_blocked_mask": blocked, "n_heads": heads, "n_rand_blocks": count}
    options |= {"attention_head_size": width, "from_block_size": block, "to_block_size": block, "batch_size": 1}
    options |= {"from_seq_len": n, "to_seq_len": n, "seed": 0, "plan_from_length": n, "plan_num_rand_blocks": count}
    if "output_attentions" in inspect.signature(module.bigbird_block_sparse_attention).parameters:
        options["output_attentions"] = False

    def attention(q: Any, k: Any, v: Any) -> Any:
        return module.bigbird_block_sparse_attention(q, k, v, **options)[0].reshape(n, 1, -1)  # (N, 1, H D)

    call = partial(in_torch, torch, attention, [*inputs[:3]], _in_columns(inputs.d_out), with_gradient)

    def in_heads() -> Sequence[Array]:
        out, *gradients = call()
        return _in_heads(out, heads), *gradients

    return in_heads
