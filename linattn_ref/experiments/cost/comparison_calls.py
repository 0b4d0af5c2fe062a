"""One call of every mechanism, at sizes a reader would choose: what the table of the comparison is measured on.

Beyond what is made from the tokens (`TOKENS`) a mechanism takes arrays of its own: some are learned, others are drawn
once at random and have no gradient. One entry in `CALLS` adds a row to the table.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from linattn_ref.attention import reformer
from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.sparse import bigbird
from linattn_ref.experiments.measuring.counting import kept_bytes
from linattn_ref.kernels import jit
from linattn_ref.op import Array

__all__ = ["CALLS", "Sizes", "cost"]

# What a layer makes from its input.
TOKENS = {"q", "k", "v", "qk", "q_global", "k_global", "v_global", "gate", "beta", "log_gate"}
REDUCED = 256  # Linformer's k
FEATURES = 256  # m
LANDMARKS = 64
WINDOW = 256  # keys on either side
BLOCK = 64  # keys
ROUNDS, BUCKETS, CHUNK = 4, 64, 64
WHOLE_PRODUCTS = {"linformer_linear"}  # products of whole matrices, which are NumPy's in every backend


class Sizes(NamedTuple):
    """What every mechanism is called with; batch size 1, float32."""

    n: int = 4096  # N = L
    heads: int = 8  # H
    width: int = 64  # D = M


class Call(NamedTuple):
    """The arguments of one ``forward``."""

    arrays: tuple[Any, ...]
    options: Mapping[str, Any] = {}


class Cost(NamedTuple):
    """What a call of a mechanism takes beyond what is made from the tokens."""

    learned: int  # numbers in arrays that have a gradient
    drawn: int  # numbers in arrays that have none
    saved: int  # bytes kept for the backward pass beyond all inputs


def cost(name: str, s: Sizes = Sizes(), *, seed: int = 0) -> Cost:  # noqa: B008
    """Measure the mechanism ``linattn_ref.attention.<name>`` in a call of both passes."""
    module = importlib.import_module(f"linattn_ref.attention.{name}")
    arrays, options = CALLS[name](np.random.default_rng(seed), s)
    if name not in WHOLE_PRODUCTS and "kernels" in inspect.signature(module.forward).parameters:
        options = {"kernels": jit, **options}
    out, saved = module.forward(*arrays, **options)
    gradients = module.backward(np.ones_like(out), saved)
    names = list(inspect.signature(module.forward).parameters)[: len(arrays)]
    own = {name: size(x) for name, x in zip(names, arrays, strict=True) if name not in TOKENS}
    given = (arrays, tuple(options.values()))
    return Cost(
        learned=sum(count for name, count in own.items() if name in gradients._fields),
        drawn=sum(count for name, count in own.items() if name not in gradients._fields)
        + size(tuple(options.values())),
        saved=kept_bytes((given, saved)) - kept_bytes(given),
    )


def size(x: Any) -> int:
    """Numbers in an array, or in all arrays in nested tuples of anything."""
    if isinstance(x, tuple):
        return sum(size(part) for part in x)
    return x.size if isinstance(x, np.ndarray) else 0


# --- The calls ------------------------------------------------------------------------------------------------------


def qkv(rng: Generator, s: Sizes) -> tuple[Array, ...]:
    """Queries, keys and values, ``(H, N, D)`` each."""
    return tuple(rng.standard_normal((3, s.heads, s.n, s.width), np.float32))


def plain(rng: Generator, s: Sizes, **options: Any) -> Call:
    return Call(qkv(rng, s), options)


def projected(rng: Generator, s: Sizes) -> Call:
    return Call((*qkv(rng, s), *rng.standard_normal((2, REDUCED, s.n), np.float32)))


def with_features(rng: Generator, s: Sizes) -> Call:
    return Call((*qkv(rng, s), feature_maps.orthogonal_gaussian(FEATURES, s.width, rng, dtype=np.float32)))


def with_gate(rng: Generator, s: Sizes) -> Call:
    gate = rng.uniform(0.8, 0.99, (s.heads, s.n)).astype(np.float32)
    return Call((*with_features(rng, s).arrays, gate), {"causal": True})


def that_fades(rng: Generator, s: Sizes) -> Call:
    return Call((*qkv(rng, s), np.log(rng.uniform(0.8, 0.99, (s.heads, s.n, s.width)).astype(np.float32))))


def that_corrects(rng: Generator, s: Sizes) -> Call:
    q, k, v, log_gate = that_fades(rng, s).arrays
    return Call((q, k, v, rng.uniform(0, 1, (s.heads, s.n)).astype(np.float32), log_gate[..., 0].copy()))


def with_landmarks(rng: Generator, s: Sizes) -> Call:
    return Call((*qkv(rng, s), rng.standard_normal((s.heads, 33), np.float32)), {"landmarks": LANDMARKS})


def with_global_token(rng: Generator, s: Sizes) -> Call:
    return Call((*qkv(rng, s), *qkv(rng, s)), {"window": WINDOW, "global_tokens": (0,)})


def with_random_blocks(rng: Generator, s: Sizes) -> Call:
    drawn = bigbird.draw_random_blocks(-(-s.n // BLOCK), 3, rng, 3, (0, -1))
    return plain(rng, s, block=BLOCK, random_blocks=drawn)


def with_mixtures(rng: Generator, s: Sizes) -> Call:
    w_p = rng.standard_normal((s.width, LANDMARKS), np.float32)
    norm = ((np.ones(s.width, np.float32), np.zeros(s.width, np.float32)),) * 2
    return Call((*qkv(rng, s), w_p, norm, norm), {"window": WINDOW})


def hashed(rng: Generator, s: Sizes) -> Call:
    qk, v, _ = qkv(rng, s)
    rotations = reformer.draw_rotations(ROUNDS, s.width, BUCKETS, rng, np.float32)
    return Call((qk, v), {"rotations": rotations, "chunk": CHUNK})


CALLS: dict[str, Callable[[Generator, Sizes], Call]] = {
    "softmax": plain,
    "linear": plain,
    "linformer": projected,
    "linformer_linear": projected,
    "performer": with_features,
    "rfa": with_gate,
    "gated_linear": that_fades,
    "delta": that_corrects,
    "nystromformer": with_landmarks,
    "local": partial(plain, window=WINDOW),
    "block_local": partial(plain, block=BLOCK),
    "longformer": with_global_token,
    "bigbird": with_random_blocks,
    "sparse_transformer": lambda rng, s: plain(rng, s, kind="strided", stride=round(s.n**0.5)),
    "long_short": with_mixtures,
    "reformer": hashed,
}
