"""The mechanisms that are compared at equal cost, each with the size that buys accuracy, and what they stand for.

One entry in `WAYS` adds a curve to the figure. Most stand for softmax attention; a mechanism that is causal for causal
softmax attention, and LSH attention, where queries are keys, for softmax attention with ``K = Q / |Q|``, nobody
attending to itself.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from linattn_ref.attention import linear, linformer, long_short, nystromformer, performer, reformer, rfa, softmax
from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.features.feature_maps_random import unit
from linattn_ref.attention.sparse import bigbird, local, longformer, patterns, sparse_transformer
from linattn_ref.experiments.publishing import style
from linattn_ref.op import Array

__all__ = ["TARGETS", "WAYS", "Way"]

BLOCK = 16  # tokens a block of BigBird
NEAR = 32  # width of Long-Short's segments, tokens a chunk of LSH attention
BUCKETS = 16

Forward = Callable[[Array, Array, Array], Array]  # (q, k, v) -> out


class Way(NamedTuple):
    """One mechanism, at several sizes."""

    label: str
    line: str  # matplotlib's format
    colour: str
    size: str  # what the size is
    sizes: tuple[int, ...]
    make: Callable[[int, int, int, Generator], Forward]  # (size, N, D, rng) -> forward
    target: str = "softmax"


# --- The mechanisms -------------------------------------------------------------------------------------------------


def of_linformer(r: int, n: int, d: int, rng: Generator) -> Forward:
    pool = linformer.mean_pool(r, n, np.float32)
    return lambda q, k, v: linformer.forward(q, k, v, pool, pool)[0]


def of_nystromformer(r: int, n: int, d: int, rng: Generator) -> Forward:
    return lambda q, k, v: nystromformer.forward(q, k, v, landmarks=r)[0]


def of_performer(m: int, n: int, d: int, rng: Generator) -> Forward:
    omega = feature_maps.orthogonal_gaussian(m, d, rng, dtype=np.float32)
    return lambda q, k, v: performer.forward(q, k, v, omega)[0]


def of_rfa(m: int, n: int, d: int, rng: Generator) -> Forward:
    omega = feature_maps.orthogonal_gaussian(m, d, rng, dtype=np.float32)
    return lambda q, k, v: rfa.forward(q, k, v, omega)[0]


def of_linear(c: int, n: int, d: int, rng: Generator) -> Forward:
    return lambda q, k, v: linear.forward(q, k, v)[0]


def of_local(w: int, n: int, d: int, rng: Generator) -> Forward:
    return lambda q, k, v: local.forward(q, k, v, window=w)[0]


def of_longformer(w: int, n: int, d: int, rng: Generator) -> Forward:
    return lambda q, k, v: longformer.forward(q, k, v, q, k, v, window=w, global_tokens=(0, n - 1))[0]


def of_bigbird(r: int, n: int, d: int, rng: Generator) -> Forward:
    drawn = bigbird.draw_random_blocks(-(-n // BLOCK), r, rng, 3, (0, -1))
    return lambda q, k, v: bigbird.forward(q, k, v, block=BLOCK, random_blocks=drawn)[0]


def of_long_short(r: int, n: int, d: int, rng: Generator) -> Forward:
    w_p = rng.standard_normal((d, r), np.float32)
    return lambda q, k, v: long_short.forward(q, k, v, w_p, None, None, window=NEAR)[0]


def of_sparse_transformer(stride: int, n: int, d: int, rng: Generator) -> Forward:
    return lambda q, k, v: sparse_transformer.forward(q, k, v, kind="strided", stride=stride)[0]


def of_reformer(rounds: int, n: int, d: int, rng: Generator) -> Forward:
    rotations = reformer.draw_rotations(rounds, d, BUCKETS, rng, np.float32)
    return lambda q, k, v: reformer.forward(q, v, rotations=rotations, chunk=NEAR)[0]


M = style.MECHANISMS
WAYS = {
    "linformer": Way("Linformer, mean pooling", "s-", M["linformer"], "R", (8, 16, 32, 64, 128), of_linformer),
    "nystromformer": Way(
        "Nyströmformer", "o-", M["nystromformer"], "landmarks", (8, 16, 32, 64, 128), of_nystromformer
    ),
    "performer": Way("Performer", "o-", M["performer"], "features m", (16, 32, 64, 128, 256), of_performer),
    "rfa": Way("RFA", "s-", M["rfa"], "features m", (16, 32, 64, 128), of_rfa),
    "linear": Way("linear, elu + 1", "*", M["linear"], "features C", (0,), of_linear),
    "local": Way("window", "v-", M["local"], "window w", (4, 8, 16, 32, 64, 128), of_local),
    "longformer": Way(
        "Longformer, first and last global", "^-", M["longformer"], "window w", (4, 8, 16, 32, 64, 128), of_longformer
    ),
    "bigbird": Way("BigBird, blocks of 16", "D-", M["bigbird"], "random blocks r", (0, 2, 4, 8, 16), of_bigbird),
    "long_short": Way(
        f"Long-Short, window {NEAR}, W_p drawn", "P-", M["long_short"], "mixtures R", (4, 16, 64), of_long_short
    ),
    "sparse_transformer": Way(
        "Sparse Transformer, strided",
        "D:",
        M["sparse_transformer"],
        "stride l",
        (16, 32, 64, 128),
        of_sparse_transformer,
        "causal",
    ),
    "reformer": Way(f"LSH, chunks of {NEAR}", "o:", M["reformer"], "rounds", (1, 2, 4, 8), of_reformer, "shared"),
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
