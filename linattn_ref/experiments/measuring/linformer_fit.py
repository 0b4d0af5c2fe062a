"""Linformer's projections fitted to a network that stays as it is: Adam with the hand-derived gradients.

With ``O`` the output of softmax attention for some ``Q``, ``K``, ``V`` and ``O~`` what comes from mixed keys and
values, the loss of one sentence is the sum over layers and heads of

    |O~ - O|_F^2 / |O|_F^2                                   (1)

One sentence per step, at a rate that falls to 0 along half a cosine. Linformer itself is trained otherwise: all weights
of the network together with ``E`` and ``F``, for the network's own loss.

References
----------
Kingma and Ba (2015), "Adam: a method for stochastic optimization", Algorithm 1.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import linformer, softmax
from linattn_ref.attention.parts import strided_convolution
from linattn_ref.experiments.measuring.heads import Heads
from linattn_ref.kernels import jit
from linattn_ref.op import Array
from linattn_ref.training import adam

__all__ = ["CONVOLUTIONS", "MATRICES", "MATRIX", "SHARINGS", "Mixing", "Parameters", "begun", "fit"]

Parameters = tuple[Array, ...]
BETAS, TINY = (0.9, 0.99), 1e-12  # Adam's, and its epsilon


# --- Ways to mix, as a function of their parameters -----------------------------------------------------------------


class Mixing(NamedTuple):
    """A way to approximate softmax attention that has parameters to be fitted."""

    forward: Callable[..., tuple[Array, Any]]  # (q, k, v, *parameters) -> (out, saved)
    backward: Callable[[Array, Any], Parameters]  # (d_out, saved) -> gradients of the parameters

    def applied(self, parameters: Parameters) -> Callable[[Array, Array, Array], Array]:
        """``(q, k, v) -> out`` with these parameters."""
        return lambda q, k, v: self.forward(q, k, v, *parameters)[0]


def _matrices_forward(q: Array, k: Array, v: Array, e: Array, f: Array | None = None) -> tuple[Array, Any]:
    return linformer.forward(q, k, v, e, e if f is None else f, kernels=jit)


def _matrices_backward(d_out: Array, saved: Any) -> Parameters:
    gradients = linformer.backward(d_out, saved)
    return gradients.e, gradients.f


def _convolutions_forward(q: Array, k: Array, v: Array, weight_k: Array, weight_v: Array) -> tuple[Array, Any]:
    """A weight ``(K, D, D)`` of its own for each layer and head: ``weight_k (T, H, K, D, D)``."""
    mixed_k, saved_k = _convolve_each(k, weight_k)
    mixed_v, saved_v = _convolve_each(v, weight_v)
    out, saved = softmax.forward(q, mixed_k, mixed_v, kernels=jit)
    return out, (saved, saved_k, saved_v)


def _convolutions_backward(d_out: Array, saved: Any) -> Parameters:
    attention, saved_k, saved_v = saved
    gradients = softmax.backward(d_out, attention)
    return _weight_gradients(gradients.k, saved_k), _weight_gradients(gradients.v, saved_v)


def _convolve_each(x: Array, weight: Array) -> tuple[Array, list[Any]]:
    pairs = [linformer.convolution(x[index], weight[index]) for index in np.ndindex(x.shape[:-2])]
    mixed = np.stack([y for y, _ in pairs])  # (T * H, R, D)
    return mixed.reshape(*x.shape[:-2], *mixed.shape[1:]), [saved for _, saved in pairs]


def _weight_gradients(d_mixed: Array, saved: list[Any]) -> Array:
    of_each = d_mixed.reshape(-1, *d_mixed.shape[-2:])  # (T * H, R, D)
    d_weights = [strided_convolution.backward(d_y, s).weight for d_y, s in zip(of_each, saved, strict=True)]
    return np.stack(d_weights).reshape(*d_mixed.shape[:-2], *d_weights[0].shape)  # (T, H, K, D, D)


MATRICES = Mixing(_matrices_forward, _matrices_backward)  # parameters e, f
# Parameter e = f, one matrix in two places
MATRIX = Mixing(_matrices_forward, lambda d_out, saved: (np.add(*_matrices_backward(d_out, saved)),))
CONVOLUTIONS = Mixing(_convolutions_forward, _convolutions_backward)  # parameters weight_k, weight_v
# By sharing mode: what is fitted, and whether layers, and heads, have matrices of their own.
SHARINGS = {
    "none": (MATRICES, True, True),
    "headwise": (MATRICES, True, False),
    "key_value": (MATRIX, True, False),
    "layerwise": (MATRIX, False, False),
}


def begun(sharing: str, r: int, heads: Heads) -> tuple[Mixing, Parameters]:
    """What a sharing mode fits, and mean pooling, where it begins: ``(T, H, R, L)``, 1 where a matrix is shared."""
    mixing, by_layer, by_head = SHARINGS[sharing]
    _, layers, n_heads, length, _ = heads.k.shape
    pool = linformer.mean_pool(r, length, heads.k.dtype)
    shape = (layers if by_layer else 1, n_heads if by_head else 1, *pool.shape)
    return mixing, (np.broadcast_to(pool, shape),) * (2 if mixing is MATRICES else 1)


# --- Fitting --------------------------------------------------------------------------------------------------------


def fit(mixing: Mixing, start: Parameters, heads: Heads, sentences: Sequence[int], *, rate: float) -> Parameters:
    """Parameters with a small loss (1), by one step of Adam on each of ``sentences`` in turn.

    Parameters
    ----------
    mixing : Mixing
    start : tuple of ndarray
        Where to begin; left as they are.
    heads : Heads
    sentences : sequence of int
        Which sentence each step looks at.
    rate : float
        The first steps move every entry by about this much.
    """
    parameters = tuple(x.copy() for x in start)
    state = adam.init_state(parameters)
    for step, s in enumerate(sentences):
        gradients = loss_gradients(mixing, parameters, heads, s)
        now = rate * (1 + math.cos(math.pi * step / len(sentences))) / 2
        state = adam.step(parameters, gradients, state, learning_rate=now, betas=BETAS, eps=TINY)
    return parameters


def loss_gradients(mixing: Mixing, parameters: Sequence[Array], heads: Heads, s: int) -> Parameters:
    """The gradients of (1) on sentence ``s``."""
    q, k, v, exact = heads.sentence(s)
    out, saved = mixing.forward(q, k, v, *parameters)
    size = np.square(exact).sum(axis=(-2, -1), keepdims=True)  # (T, H, 1, 1)
    return mixing.backward(2 * (out - exact) / size, saved)
