"""Softmax attention (Vaswani et al. 2017): each query takes a mean of values, weighted by how similar keys are to it.

    A = scale Q K^T                                          (1)  (N, L)
    P_ij = exp(A_ij) / sum_l exp(A_il)                       (2)  (N, L)
    O = P V                                                  (3)  (N, M)

Causal, query ``i`` sees the keys up to its own, and the sum in (2) runs over the keys that it sees. A query that sees
none gets 0. ``P`` has ``N L`` numbers: `online_softmax` computes the same without keeping it, and other pages compute
something that costs less.

:Time: ``O(N L max(D, M))``
:Memory: ``O(N L)``
:Causal: yes
:Exact: yes
:Gives: softmax attention

The gradient, by hand
---------------------
Let ``dO`` be the gradient of a loss with respect to ``O``. From (3),

    dV = P^T dO                                              (4)
    dP = dO V^T                                              (5)

From (2), ``dP_ij/dA_il = P_ij (delta_jl - P_il)``, so that ``dA_il = sum_j dP_ij P_ij (delta_jl - P_il)``, or

    dA = P * (dP - rowsum(dP * P))                           (6)

and from (1),

    dQ = scale dA K                                          (7)
    dK = scale dA^T Q                                        (8)

Two keys; the query is twice as similar to the first as to the second, ``exp(A) = (2, 1)``:

>>> q, k, v = np.array([[1.0]]), np.log([[2.0], [1.0]]), np.array([[3.0], [6.0]])
>>> out, saved = forward(q, k, v)
>>> print(saved.p.round(3), out)
[[0.667 0.333]] [[4.]]
>>> print(backward(np.ones((1, 1)), saved).k.T.round(3))  # more of the first key would lower the output
[[-0.667  0.667]]

References
----------
Vaswani et al. (2017), "Attention is all you need", section 3.2.1.
Katharopoulos et al. (2020), "Transformers are RNNs", supplementary C.1 (the cache as a state).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.masks import divide, mix, scores, shown, visible
from linattn_ref.attention.parts.packed import takes_offsets
from linattn_ref.attention.parts.recurrent import matrix_of, step_of
from linattn_ref.attention.parts.shared_heads import of_keys, takes_groups
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "State", "append", "backward", "forward", "init_state", "matrix", "softmax", "step"]


class State(NamedTuple):
    """All keys and values so far."""

    k: Float[Array, "... t D"]
    v: Float[Array, "... t M"]
    key_mask: Bool[Array, "... t"] | None = None


class Saved(NamedTuple):
    """What the backward pass needs."""

    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]  # masked rows 0, those of the state first
    v: Float[Array, "... L M"]  # the same
    p: Float[Array, "... N L"]
    scale: float
    earlier: int  # of the L keys, how many came with a state
    state: State | None  # after the last key, where there was one


class Gradients(NamedTuple):
    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]
    v: Float[Array, "... L M"]


@op
@takes_offsets
@takes_groups
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    *,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    scale: float | None = None,
    state: State | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(3); ``scale`` is ``1/sqrt(D)`` unless given. The keys of a ``state`` come before the others."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = shown(k, key_mask), shown(v, key_mask)
    earlier = 0 if state is None else state.k.shape[-2]
    if state is not None:
        k, v, key_mask = state = append(state, k, v, key_mask)
    a = np.where(visible(q, k, causal, key_mask), scores(q, k, scale), q.dtype.type(-np.inf))  # (1)
    p = softmax(a)  # (2)
    return mix(p, v), Saved(q, k, v, p, scale, earlier, state)  # (3)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Equations (4)-(8); the keys and values of a state are constants."""
    q, k, v, p, scale, earlier, _ = saved
    d_v = mix(p.mT, d_out)  # (4)
    d_p = np.where(p == 0, p, d_out @ v.mT)  # (5), where there is weight
    d_p -= (d_p * p).sum(axis=-1, keepdims=True)
    d_a = p * np.where(p == 0, p, d_p)  # (6), likewise
    d_q = scale * mix(d_a, k)  # (7)
    d_k = scale * mix(d_a.mT, q)  # (8)
    return Gradients(d_q, d_k[..., earlier:, :], d_v[..., earlier:, :])


def softmax(a: Array) -> Array:
    """Equation (2), the largest ``A_il`` subtracted from all, which cancels; 0 for -inf, also in a row with a NaN."""
    p = np.exp(a - np.maximum(a.max(axis=-1, keepdims=True), np.finfo(a.dtype).min))
    p = divide(p, p.sum(axis=-1, keepdims=True))
    return np.where(np.isneginf(a), a.dtype.type(0), p)


step, matrix = step_of(forward), matrix_of(forward)


@op
def init_state(
    leading: tuple[int, ...], key_width: int, value_width: int, *, dtype: Any = np.float64, groups: int = 1
) -> State:
    """The state before any key, for queries with the ``leading`` axes."""
    none = *of_keys(leading, groups), 0
    return State(np.zeros((*none, key_width), dtype), np.zeros((*none, value_width), dtype))


def append(state: State, k: Array, v: Array, key_mask: Array | None) -> State:
    """The state with more keys and values."""
    k_all, v_all = (np.concatenate(pair, axis=-2) for pair in ((state.k, k), (state.v, v)))
    return State(k_all, v_all, joined_masks(state, k, key_mask))


def joined_masks(state: State, k: Array, key_mask: Array | None) -> Array | None:
    """Which of all keys, those of the state first, may be seen; None for all."""
    if state.key_mask is None and key_mask is None:
        return None
    pairs = (state.key_mask, state.k), (key_mask, k)
    masks = [np.ones_like(x[..., 0], bool) if mask is None else mask for mask, x in pairs]
    return np.concatenate(masks, axis=-1)
