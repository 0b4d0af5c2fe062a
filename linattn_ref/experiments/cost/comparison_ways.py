"""The mechanisms that are compared at equal cost, each with the size that buys accuracy, and what they stand for.

One entry in `WAYS` adds a curve to the figure. Most stand for softmax attention; a mechanism that is causal for causal
softmax attention, and LSH attention, where queries are keys, for softmax attention with ``K = Q / |Q|``, nobody
attending to itself.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from linattn_ref.attention import linear, linformer, long_short, nystromformer, performer, reformer, rfa, softmax
from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.features.feature_maps_random import unit
from linattn_ref.attention.sparse import bigbird, local, longformer, patterns, sparse_transformer
from linattn_ref.op import Array

__all__ = ["TARGETS", "WAYS", "Way"]

BLOCK = 16  # tokens per block of BigBird
NEAR = 32  # width of Long-Short's segments, tokens per chunk of LSH attention
BUCKETS = 16

Forward = Callable[[Array, Array, Array], Array]  # (q, k, v) -> out


class Way(NamedTuple):
    """One mechanism, at several sizes."""

    label: str
    line: str  # matplotlib's format
    size: str  # what the size is
    sizes: tuple[int, ...]
    make: Callable[[int, int, int, Generator], Forward]  # (size, N, D, rng) -> forward
    target: str = "softmax"


# --- The mechanisms -------------------------------------------------------------------------------------------------


def of_page(page: Any, option: str, size: int, n: int, d: int, rng: Generator, **more: Any) -> Forward:
    options = {**more, option: size} if option else more
    return lambda q, k, v: page.forward(q, k, v, **options)[0]


def of_features(page: Any, m: int, n: int, d: int, rng: Generator) -> Forward:
    omega = feature_maps.orthogonal_gaussian(m, d, rng, dtype=np.float32)
    return lambda q, k, v: page.forward(q, k, v, omega)[0]


def of_linformer(r: int, n: int, d: int, rng: Generator) -> Forward:
    pool = linformer.mean_pool(r, n, np.float32)
    return lambda q, k, v: linformer.forward(q, k, v, pool, pool)[0]


def of_longformer(w: int, n: int, d: int, rng: Generator) -> Forward:
    return lambda q, k, v: longformer.forward(q, k, v, q, k, v, window=w, global_tokens=(0, n - 1))[0]


def of_bigbird(r: int, n: int, d: int, rng: Generator) -> Forward:
    drawn = bigbird.draw_random_blocks(-(-n // BLOCK), r, rng, 3, (0, -1))
    return lambda q, k, v: bigbird.forward(q, k, v, block=BLOCK, random_blocks=drawn)[0]


def of_long_short(r: int, n: int, d: int, rng: Generator) -> Forward:
    w_p = rng.standard_normal((d, r), np.float32)
    return lambda q, k, v: long_short.forward(q, k, v, w_p, None, None, window=NEAR)[0]


def of_reformer(rounds: int, n: int, d: int, rng: Generator) -> Forward:
    rotations = reformer.draw_rotations(rounds, d, BUCKETS, rng, np.float32)
    return lambda q, k, v: reformer.forward(q, v, rotations=rotations, chunk=NEAR)[0]


strided = partial(of_page, sparse_transformer, "stride", kind="strided")
SIZES = (4, 8, 16, 32, 64, 128)
WAYS = {
    "linformer": Way("Linformer, mean pooling", "s-", "R", SIZES[1:], of_linformer),
    "nystromformer": Way("Nyströmformer", "o-", "landmarks", SIZES[1:], partial(of_page, nystromformer, "landmarks")),
    "performer": Way("Performer", "o-", "features m", (*SIZES[2:], 256), partial(of_features, performer)),
    "rfa": Way("RFA", "s-", "features m", SIZES[2:], partial(of_features, rfa)),
    "linear": Way("linear, elu + 1", "*", "features C", (0,), partial(of_page, linear, "")),
    "local": Way("window", "v-", "window w", SIZES, partial(of_page, local, "window")),
    "longformer": Way("Longformer, first and last global", "^-", "window w", SIZES, of_longformer),
    "bigbird": Way("BigBird, blocks of 16", "D-", "random blocks r", (0, 2, 4, 8, 16), of_bigbird),
    "long_short": Way(f"Long-Short, window {NEAR}, W_p drawn", "P-", "mixtures R", (4, 16, 64), of_long_short),
    "sparse_transformer": Way("Sparse Transformer, strided", "D:", "stride l", SIZES[2:], strided, "causal"),
    "reformer": Way(f"LSH, chunks of {NEAR}", "o:", "rounds", (1, 2, 4, 8), of_reformer, "shared"),
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
