"""The mechanisms that are compared at equal cost, each with the size that buys accuracy, and what they stand for.

One entry in `WAYS` adds a curve to the figure. Most stand for softmax attention; a mechanism that is causal for causal
softmax attention, and LSH attention, where queries are keys, for softmax attention with ``K = Q / |Q|``, nobody
attending to itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from linattn_ref.attention import softmax
from linattn_ref.attention.features.feature_maps_random import unit
from linattn_ref.attention.sparse import patterns
from linattn_ref.experiments.measuring import mechanisms
from linattn_ref.op import Array

__all__ = ["TARGETS", "WAYS", "Way"]

BLOCK = 16  # tokens per block of BigBird
NEAR = 32  # width of Long-Short's segments, tokens per chunk of LSH attention
BUCKETS = 16

Forward = Callable[[Array, Array, Array], Array]  # (q, k, v) -> out


class Way(NamedTuple):
    """One mechanism, at several sizes."""

    name: str
    label: str
    line: str  # matplotlib's format
    size: str  # what the size is
    field: str  # of `mechanisms.Sizes`
    sizes: tuple[int, ...]
    target: str = "softmax"

    def make(self, size: int, n: int, d: int, rng: Generator) -> Forward:
        """The mechanism at one size, for ``n`` tokens of width ``d``."""
        beside: dict[str, Any] = {"window": NEAR, "block": BLOCK, "chunk": NEAR, "buckets": BUCKETS, self.field: size}
        sizes = mechanisms.Sizes(n, d, global_tokens=(0, n - 1), **beside)
        own = mechanisms.learned(self.name, sizes, rng) | mechanisms.options(self.name, sizes, rng)
        page = mechanisms.page(self.name)
        return lambda q, k, v: page.forward(**mechanisms.inputs(self.name, q, k, v), **own)[0]


SIZES = (4, 8, 16, 32, 64, 128)
WAYS = {
    way.name: way
    for way in (
        Way("linformer", "Linformer, mean pooling", "s-", "R", "reduced", SIZES[1:]),
        Way("nystromformer", "Nyströmformer", "o-", "landmarks", "landmarks", SIZES[1:]),
        Way("performer", "Performer", "o-", "features m", "features", (*SIZES[2:], 256)),
        Way("rfa", "RFA", "s-", "features m", "features", SIZES[2:]),
        Way("linear", "linear, elu + 1", "*", "features C", "features", (0,)),
        Way("local", "window", "v-", "window w", "window", SIZES),
        Way("longformer", "Longformer, first and last global", "^-", "window w", "window", SIZES),
        Way("bigbird", "BigBird, blocks of 16", "D-", "random blocks r", "random_blocks", (0, 2, 4, 8, 16)),
        Way("long_short", f"Long-Short, window {NEAR}, W_p drawn", "P-", "mixtures R", "landmarks", (4, 16, 64)),
        Way("sparse_transformer", "Sparse Transformer, strided", "D:", "stride l", "stride", SIZES[2:], "causal"),
        Way("reformer", f"LSH, chunks of {NEAR}", "o:", "rounds", "rounds", (1, 2, 4, 8), "shared"),
    )
}


# --- What they stand for --------------------------------------------------------------------------------------------


def shared(q: Array, k: Array) -> Array:
    """Softmax attention of queries to themselves as keys of length 1, nobody to itself: ``(..., N, N)``."""
    others = ~np.eye(q.shape[-2], dtype=np.bool_)
    return patterns.matrix(q, unit(q)[0], others)


TARGETS: dict[str, Callable[[Array, Array], Array]] = {
    "softmax": softmax.matrix,
    "causal": lambda q, k: softmax.matrix(q, k, causal=True),
    "shared": shared,
}
