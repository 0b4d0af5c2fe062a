"""The ways of mixing keys that the Linformer figure compares, each measured at one ``R``; and its sharing modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from linattn_ref.attention import linformer, softmax
from linattn_ref.experiments.measuring.heads import Heads, Spread, each_error, spread
from linattn_ref.experiments.measuring.linformer_fit import (
    CONVOLUTIONS,
    MATRICES,
    MATRIX,
    Mixing,
    Parameters,
    fit,
)
from linattn_ref.kernels import jit
from linattn_ref.op import Array
from linattn_ref.theory.johnson_lindenstrauss import gaussian_projection

__all__ = ["RATE", "Sharing", "sharing_modes", "ways_at"]

RATE = 3e-4  # of the fit to many sentences
RATE_ONE = 1e-3  # of the fit to a single one


class Sharing(NamedTuple):
    """One sharing mode, fitted; or mean pooling, which has no parameters."""

    parameters: int
    output: Spread  # relative error on unseen sentences
    seen: Spread  # on those it was fitted to


def ways_at(
    r: int, heads: Heads, unseen: Sequence[int], order: Sequence[int], steps_one: int, rng: Generator
) -> dict[str, tuple[Array, Array]]:
    """All of the figure's `WAYS` at one reduced length, but the truncated SVD: errors of output and matrix, each
    ``(S, T, H)``."""
    _, layers, n_heads, length, _ = heads.k.shape
    dtype = heads.k.dtype

    def with_matrices(matrices: Parameters, sentences: Sequence[int] = unseen) -> tuple[Array, Array]:
        e, f = matrices
        return each_error(
            heads,
            sentences,
            MATRICES.applied((e, f)),
            lambda q, k: linformer.matrix(q, k, e) @ f,
        )

    def max_pooled(q: Array, k: Array, v: Array) -> Array:
        return softmax.forward(q, linformer.max_pool(k, r)[0], linformer.max_pool(v, r)[0], kernels=jit)[0]

    drawn = linformer.draw_projections(r, length, rng, layers=layers, heads=n_heads, dtype=dtype)
    random = np.stack([each.e for each in drawn]), np.stack([each.f for each in drawn])  # (T, H, R, L) each
    pool = linformer.mean_pool(r, length, dtype)
    start = (np.broadcast_to(pool, (layers, n_heads, r, length)),) * 2
    convolutions = fit(CONVOLUTIONS, (mean_convolutions(r, heads),) * 2, heads, order, rate=RATE)
    jl = gaussian_projection(r, length, rng, dtype=dtype)  # (R, L)
    return {
        "gaussian": with_matrices(random),
        "max": each_error(heads, unseen, max_pooled),
        "mean": with_matrices((pool, pool)),
        "fitted": with_matrices(fit(MATRICES, start, heads, order, rate=RATE)),
        "convolution": each_error(heads, unseen, CONVOLUTIONS.applied(convolutions)),
        "one_sentence": with_matrices(
            fit(MATRICES, start, heads, [unseen[0]] * steps_one, rate=RATE_ONE), sentences=unseen[:1]
        ),
        "theorem_1": each_error(
            heads,
            unseen,
            lambda q, k, v: softmax.matrix(q, k) @ (jl.T @ (jl @ v)),
            lambda q, k: (softmax.matrix(q, k) @ jl.T) @ jl,
        ),
    }


def mean_convolutions(r: int, heads: Heads) -> Array:
    """Mean pooling as a convolution for each layer and head: ``(T, H, K, D, D)`` with ``K = ceil(L / R)``."""
    _, layers, n_heads, length, width = heads.k.shape
    kernel = -(-length // r)
    weight = np.eye(width, dtype=heads.k.dtype) / kernel  # (D, D)
    return np.broadcast_to(weight, (layers, n_heads, kernel, width, width))


def sharing_modes(r: int, heads: Heads, unseen: Sequence[int], order: Sequence[int]) -> dict[str, Sharing]:
    """Mean pooling, and the four sharing modes fitted: a matrix is shared along an axis where its shape has a 1."""
    _, layers, n_heads, length, _ = heads.k.shape
    seen = sorted(set(order))[: len(unseen)]
    pool = linformer.mean_pool(r, length, heads.k.dtype)

    def sharing(mixing: Mixing, parameters: Parameters, count: int) -> Sharing:
        on_unseen, on_seen = (spread(each_error(heads, s, mixing.applied(parameters))[0]) for s in (unseen, seen))
        return Sharing(count, on_unseen, on_seen)

    modes = {
        "none": (MATRICES, 2, (layers, n_heads)),
        "headwise": (MATRICES, 2, (layers, 1)),
        "key_value": (MATRIX, 1, (layers, 1)),
        "layerwise": (MATRIX, 1, (1, 1)),
    }
    results = {"mean_pooling": sharing(MATRIX, (pool,), 0)}
    for mode, (mixing, matrices, leading) in modes.items():
        start = (np.broadcast_to(pool, (*leading, r, length)),) * matrices
        fitted = fit(mixing, start, heads, order, rate=RATE)
        results[mode] = sharing(mixing, fitted, sum(x.size for x in fitted))
    return results
