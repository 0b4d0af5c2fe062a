"""A token of a whole network in PyTorch, by hand and by fast-transformers, as `bench_generation` calls them.

Both get the parameters of a `linattn_ref.models.causal` network with norms last, GELU and linear attention. By hand, it
is, of four forms that were tried, the fastest at batch sizes 1 and 64 and within 2 % of it at 16: ``torch.addmm`` with
weights ``(E, F)`` (at batch size 1 ``F.linear`` takes 1.3 times as long), the state moved on where it is by
``baddbmm_``. All run in ``torch.inference_mode``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.benches import bench_linear_peers, harness
from linattn_ref.experiments.benches.harness import Call
from linattn_ref.models.causal import Params

__all__ = ["by_hand", "find_fast_transformers", "recurrent_encoder", "versions"]

Tokens = NDArray[np.integer[Any]]
EPS = 1e-6  # of linear attention
NAME = "fast-transformers"


def find_fast_transformers() -> Any:
    """The module of builders, or None where the package is not installed."""
    return harness.find("fast_transformers.builders")


def versions(torch: Any, package: Any) -> dict[str, str]:
    """Version of each package that takes part."""
    there = {} if package is None else {NAME: harness.find("fast_transformers")}
    return bench_linear_peers.versions(torch, there)


# --- PyTorch --------------------------------------------------------------------------------------------------------


def by_hand(torch: Any, params: Params, heads: int, tokens: Tokens, steps: int) -> Call:
    """Some steps a call, from where the last call was; from the first token again where no place is left."""
    network = _tensors(torch, params)
    given = torch.from_numpy(tokens)
    states, place = _new_states(torch, network, heads, given), 0

    def call() -> Sequence[Array]:
        nonlocal states, place
        with torch.inference_mode():
            if place + steps > len(given):
                states, place = _new_states(torch, network, heads, given), 0
            for _ in range(steps):
                scores = _step(torch, network, heads, given[place], place, states)
                place += 1
            return (scores.numpy(),)

    return call


def _tensors(torch: Any, params: Any) -> Any:
    """The same structure, of tensors that share the arrays' memory."""
    if hasattr(params, "_fields"):
        return type(params)(*(_tensors(torch, each) for each in params))
    return tuple(_tensors(torch, each) for each in params) if isinstance(params, tuple) else torch.from_numpy(params)


def _new_states(torch: Any, network: Params, heads: int, tokens: Any) -> list[Any]:
    rows, d = tokens.shape[1] * heads, len(network.norm.gain) // heads
    return [(torch.zeros(rows, d, d), torch.zeros(rows, d)) for _ in network.blocks]


def _step(torch: Any, network: Params, heads: int, tokens_t: Any, place: int, states: list[Any]) -> Any:
    functional, width = torch.nn.functional, (len(network.norm.gain),)
    x = network.embedding.table[tokens_t] + network.positions.table[place]  # type: ignore[union-attr]
    for one, (s, z) in zip(network.blocks, states, strict=True):
        projected = torch.addmm(one.attention.inner.b, x, one.attention.inner.w)
        q, k, v = projected.view(len(x), 3, heads, -1).transpose(0, 1).flatten(1, 2)  # (B H, D) each
        phi_q, phi_k = functional.elu(q).add_(1), functional.elu(k).add_(1)
        s.baddbmm_(phi_k.unsqueeze(2), v.unsqueeze(1))
        z.add_(phi_k)
        out = torch.bmm(phi_q.unsqueeze(1), s).squeeze(1).div_((phi_q * z).sum(1, keepdim=True).add_(EPS))
        attended = torch.addmm(one.attention.outer.b, out.view(len(x), -1), one.attention.outer.w)
        x = functional.layer_norm(attended.add_(x), width, *one.norm_1)
        h = functional.gelu(torch.addmm(one.feed_forward.inner.b, x, one.feed_forward.inner.w))
        fed = torch.addmm(one.feed_forward.outer.b, h, one.feed_forward.outer.w)
        x = functional.layer_norm(fed.add_(x), width, *one.norm_2)
    return torch.addmm(network.head.b, functional.layer_norm(x, width, *network.norm), network.head.w)


# --- fast-transformers ----------------------------------------------------------------------------------------------


def recurrent_encoder(torch: Any, package: Any, params: Params, heads: int, tokens: Tokens, steps: int) -> Call:
    """Its recurrent encoder, between an embedding and a head by hand; some steps a call, as :func:`by_hand`."""
    network, given = _tensors(torch, params), torch.from_numpy(tokens)
    encoder = _encoder(torch, package, network, heads)
    state, place = None, 0

    def call() -> Sequence[Array]:
        nonlocal state, place
        with torch.inference_mode():
            if place + steps > len(given):
                state, place = None, 0
            for _ in range(steps):
                x = network.embedding.table[given[place]] + network.positions.table[place]
                x, state = encoder(x, state)
                scores = torch.addmm(network.head.b, x, network.head.w)
                place += 1
            return (scores.numpy(),)

    return call


def _encoder(torch: Any, package: Any, network: Params, heads: int) -> Any:
    """With our parameters: its linear maps have them transposed, and queries, keys and values apart."""
    width = len(network.norm.gain)
    encoder = package.RecurrentEncoderBuilder.from_kwargs(
        attention_type="linear",
        n_layers=len(network.blocks),
        n_heads=heads,
        query_dimensions=width // heads,
        value_dimensions=width // heads,
        feed_forward_dimensions=len(network.blocks[0].feed_forward.inner.b),
        activation="gelu",
        dropout=0.0,
    ).get()
    with torch.no_grad():
        for layer, one in zip(encoder.layers, network.blocks, strict=True):
            attention = layer.attention
            read = attention.query_projection, attention.key_projection, attention.value_projection
            for i, projection in enumerate(read):
                columns = slice(i * width, (i + 1) * width)
                _set(projection, one.attention.inner.w[:, columns].T, one.attention.inner.b[columns])
            _set(attention.out_projection, one.attention.outer.w.T, one.attention.outer.b)
            _set(layer.linear1, one.feed_forward.inner.w.T, one.feed_forward.inner.b)
            _set(layer.linear2, one.feed_forward.outer.w.T, one.feed_forward.outer.b)
            _set(layer.norm1, *one.norm_1)
            _set(layer.norm2, *one.norm_2)
        _set(encoder.norm, *network.norm)
    return encoder.eval()


def _set(module: Any, weight: Any, bias: Any) -> None:
    module.weight.copy_(weight)
    module.bias.copy_(bias)
