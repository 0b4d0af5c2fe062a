"""The network of `bench_training` in this package, and the matrix products that a step of it cannot do without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention import linear, softmax
from linattn_ref.kernels import jit
from linattn_ref.models import causal
from linattn_ref.nn import cross_entropy, mechanism
from linattn_ref.training import adam, parameters

__all__ = ["products", "training_step"]

ATTENTION = {"linear": linear, "softmax": softmax}


def training_step(
    attention: str, params: causal.Params, heads: int, text: NDArray[np.int64], rate: float
) -> Callable[[], float]:
    """A step on ``text (B, N + 1)``: forward, backward, Adam; its loss. The parameters are copied."""
    model = causal.Model(mechanism.of(ATTENTION[attention], causal=True, kernels=jit), heads)
    _, params = parameters.flatten(params)
    state = adam.init_state(params)

    def step() -> float:
        nonlocal state
        scores, saved = causal.forward(text[:, :-1], params, model)
        loss, surprise = cross_entropy.forward(scores, text[:, 1:], kernels=jit)
        del scores
        d_scores = cross_entropy.backward(1.0, surprise).scores
        del surprise
        grads = causal.backward(d_scores, saved).params
        state = adam.step(params, grads, state, learning_rate=rate, kernels=jit)
        return float(loss)

    return step


def products(rows: int, sizes: list[tuple[int, int]]) -> Callable[[], None]:
    """The matrix products of a step alone, into arrays that are there: ``x W``, ``G W^T``, ``x^T G``."""
    rng = np.random.default_rng(0)
    x, out = (
        {size: rng.standard_normal((rows, size), np.float32) for pair in sizes for size in pair} for _ in range(2)
    )
    weights = [(rng.standard_normal(size, np.float32), np.empty(size, np.float32)) for size in sizes]

    def call() -> None:
        for w, d_w in weights:
            np.matmul(x[len(w)], w, out=out[w.shape[1]])
            np.matmul(x[w.shape[1]], w.T, out=out[len(w)])
            np.matmul(x[len(w)].T, x[w.shape[1]], out=d_w)

    return call
