"""Random feature attention (Peng et al. 2021): linear attention whose random features estimate a Gaussian, with a gate.

Queries and keys are divided by their lengths, ``x^ = x / |x|``. Between vectors of length 1 the Gaussian kernel is the
exponential of softmax attention, ``exp(-|q^ - k^|^2 / 2) = exp(q^ . k^) / e``, and an inner product of random features
estimates it:

    phi(x) = [sin(omega x^), cos(omega x^)] / sqrt(m)        (1)  C = 2m
    phi(x) = max(omega x^, 0) / sqrt(m)                      (2)  C = m, arc-cosine

Without a gate the rest is linear attention, ``linear.py``, causal or not. A sum over all earlier keys weighs the first
as much as the last. The gate ``g_t`` in (0, 1) lets the state fade instead, and what comes in gets the rest:

    S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T             (3)  (C, M)
    z_t = g_t z_{t-1} + (1 - g_t) phi(k_t)                   (4)  (C,)
    out_t = phi(q_t)^T S_t / (phi(q_t)^T z_t + eps)          (5)

so that token ``j`` has the weight

    P_tj = r_tj phi(q_t) . phi(k_j) / (sum_l r_tl phi(q_t) . phi(k_l) + eps),
    r_tj = (1 - g_j) g_{j+1} ... g_t                         (6)

With one gate for all, ``r_tj = (1 - g) g^(t-j)``: exponential decay. In the paper the gate is learned and looks at the
token, ``g_t = sigmoid(x_t . w_g + b_g)``, see ``gate.py``. A token at a time, it is ``rfa_recurrent.py``.

:Time: ``O((N + L) C M)``
:Memory: ``O((N + L) C + N M)``
:Causal: yes
:Exact: no, a random estimate
:Gives: softmax attention of unit vectors, an unbiased estimate of its kernel; with a gate, one that prefers the recent

The gradient, by hand
---------------------
That of (3)-(5) with a gate ``g`` and a weight ``w`` of their own is in ``kernels/reference/causal_product.py``. With
``A_t`` the gradient with respect to ``S_t``, ``dg_t = <A_t, S_{t-1}>`` and ``dw_t = phi(k_t)^T A_t v_t``, and the same
of ``z`` added to each. Here ``w_t = 1 - g_t``, so that

    dgate_t = dg_t - dw_t                                    (7)

which asks whether the loss would rather have the state before or the new token. Where a key is masked ``g_t = 1``: the
state stays as it is. The gradient of (1) and (2), through the division by the length too, is in
``feature_maps_random.py``.

Example
-------
A gate of 1/2 halves the past at every token: of three equal keys the last has half of the weight.

>>> zeros, omega = np.zeros((3, 2)), np.eye(2)
>>> matrix(zeros, zeros, omega, np.full(3, 0.5), causal=True, eps=0.0)[2].round(3)
array([0.143, 0.286, 0.571])
>>> out, saved = forward(zeros, zeros, np.arange(3.0)[:, None], omega, np.full(3, 0.5), causal=True, eps=0.0)
>>> out[2].round(3)
array([1.429])

References
----------
Peng et al. (2021), "Random feature attention", section 3 and the appendix (arc-cosine).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import linear
from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.door import door
from linattn_ref.attention.feature_maps import FeatureMap
from linattn_ref.attention.feature_maps_random import KINDS, Kind
from linattn_ref.attention.fields import documented
from linattn_ref.attention.linear_checks import check_backward_of
from linattn_ref.attention.linear_state import State
from linattn_ref.attention.masks import visible, zero_masked
from linattn_ref.attention.ownership import new_count
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rfa_checks import check_forward, check_matrix
from linattn_ref.attention.rfa_recurrent import BoundStep, bind_step, init_state, step
from linattn_ref.attention.rooms import CausalProductRoom, kernel_of, name_of_room
from linattn_ref.kernels import reference
from linattn_ref.kernels.reference.division import divide

__all__ = [
    "KINDS",
    "BoundStep",
    "Gradients",
    "GradientsWithState",
    "Kind",
    "Saved",
    "State",
    "backward",
    "bind_step",
    "forward",
    "init_state",
    "matrix",
    "recency",
    "step",
]


@documented
class Saved(NamedTuple):
    """What the backward pass needs with a gate: rows, and the state at both ends. Without one: `linear.Saved`."""

    phi_q: Array  # (..., N, C)
    phi_k: Array  # (..., N, C), masked rows 0
    v: Array  # (..., N, M), masked rows 0
    gate: Array  # (..., N), masked rows 1
    s: Array | None  # (..., C, M), S_0; None for 0
    z: Array | None  # (..., C)
    out: Array  # (..., N, M)
    denominator: Array  # (..., N)
    saved_q: Any  # what feature_map.backward needs
    saved_k: Any
    key_mask: Mask | None  # (..., N)
    feature_map: FeatureMap
    kernels: Any  # the name of the room
    state: State  # after the last token


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward`` with a gate. Without one: `linear.Gradients`, the first three."""

    q: Array  # (..., N, D)
    k: Array  # (..., N, D)
    v: Array  # (..., N, M)
    gate: Array  # (..., N)


@documented
class GradientsWithState(NamedTuple):
    """The same, where ``forward`` continued from a state. Without a gate: `linear.GradientsWithState`."""

    q: Array  # (..., N, D)
    k: Array  # (..., N, D)
    v: Array  # (..., N, M)
    gate: Array  # (..., N)
    state: State  # of s and z


@door(check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    omega: Array,
    gate: Array | None = None,
    *,
    kind: Kind = "gaussian",
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 1e-6,
    state: State | None = None,
    out: Array | None = None,
    kernels: CausalProductRoom = reference,
) -> tuple[Array, Saved | linear.Saved]:
    """Random feature attention.

    Parameters
    ----------
    q, k, v, causal, key_mask, state, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. Of queries and keys only the directions matter; one of
        length 0 stays 0.
    omega : ndarray ``(m, D)``
        From `feature_maps.gaussian` or `feature_maps.orthogonal_gaussian`; used in the dtype of ``q``. A constant.
    gate : ndarray ``(..., N)``, optional
        ``g_t``, strictly between 0 and 1 (on a GPU that is not checked); needs ``causal=True`` and ``N = L``. None is
        no gate: ``S`` and ``z`` are plain sums.
    kind : {"gaussian", "arccos"}
        The features, (1) or (2). Gaussian ones estimate similarities of either sign; with few of them a denominator
        can come out near 0.
    eps : float
        Added to the denominator. With gates close to 1 the first weights ``1 - g`` are small, and it should be smaller.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    saved : Saved or linear.Saved
    """
    phi = KINDS[kind](omega)
    if gate is None:
        return linear.forward.unchecked(  # type: ignore[return-value]
            q, k, v, feature_map=phi, causal=causal, key_mask=key_mask, eps=eps, state=state, out=out, kernels=kernels
        )
    s, z = (None, None) if state is None else (state.s.copy(), state.z.copy())  # copies: a step may spend the state
    v, gate, (phi_q, saved_q) = zero_masked(v, key_mask), _unfaded(gate, key_mask), phi.forward(q)  # (1), (2)
    phi_k, saved_k = phi.forward(zero_masked(k, key_mask))  # (1), (2)  (..., N, C)
    phi_k = zero_masked(phi_k, key_mask)
    buffer = {} if out is None else {"out": out}  # a room of one's own need not know of it
    out, denominator, s_last, z_last = kernels.causal_product.normalised_forward(
        phi_q=phi_q, phi_k=phi_k, v=v, gate=gate, weight=1 - gate, s=s, z=z, eps=eps, **buffer
    )  # (3)-(5)
    last = State(s_last, z_last, steps=new_count())
    kept = phi_q, phi_k, v, gate, s, z, out, denominator, saved_q, saved_k, key_mask
    return out, Saved(*kept, phi, name_of_room(kernels), last)


def _check_backward(d_out: Any, saved: Any, *, d_state: Any = None) -> None:
    check_backward_of(d_out, saved, linear.Saved if isinstance(saved, linear.Saved) else Saved, d_state)


@door(_check_backward)
def backward(
    d_out: Array, saved: Saved | linear.Saved, *, d_state: State | None = None
) -> Gradients | GradientsWithState | linear.Gradients | linear.GradientsWithState:
    """Gradients of :func:`forward`.

    Parameters
    ----------
    d_out, saved, d_state
        As in `linear.backward`.

    Returns
    -------
    Gradients, GradientsWithState or those of `linear`
        Of ``q``, ``k``, ``v``, of ``gate`` where there is one, and of ``state`` where ``forward`` was given one.
    """
    if isinstance(saved, linear.Saved):
        return linear.backward.unchecked(d_out, saved, d_state=d_state)
    kernel, gate, phi = kernel_of(saved.kernels, "causal_product"), saved.gate, saved.feature_map
    d_s, d_z = (None, None) if d_state is None else (d_state.s, d_state.z)
    rows = {"phi_q": saved.phi_q, "phi_k": saved.phi_k, "v": saved.v, "gate": gate, "weight": 1 - gate}
    given = {"d_out": d_out, "d_s": d_s, "d_z": d_z, "s": saved.s, "z": saved.z}
    d_phi_q, d_phi_k, d_v, d_g, d_w, d_s, d_z = kernel.normalised_backward(
        **given, **rows, out=saved.out, denominator=saved.denominator
    )
    d_gate = d_g - d_w  # (7)  (..., N)
    if saved.key_mask is not None:
        d_gate = np.where(saved.key_mask, d_gate, gate.dtype.type(0))
    d_q = phi.backward(d_phi_q, saved.saved_q)  # (..., N, D)
    d_k = phi.backward(zero_masked(d_phi_k, saved.key_mask), saved.saved_k)  # (..., N, D)
    d_v = zero_masked(d_v, saved.key_mask)  # (..., N, M)
    if saved.s is None:
        return Gradients(d_q, d_k, d_v, d_gate)
    return GradientsWithState(d_q, d_k, d_v, d_gate, State(d_s, d_z))


# --- The matrix -----------------------------------------------------------------------------------------------------


@plain_numbers
def matrix(
    q: Array,
    k: Array,
    omega: Array,
    gate: Array | None = None,
    *,
    kind: Kind = "gaussian",
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 1e-6,
) -> Array:
    """The context mapping matrix ``(..., N, L)`` of (6), arguments as in :func:`forward`."""
    check_matrix(q, k, omega, gate, kind=kind, causal=causal, key_mask=key_mask, eps=eps)
    phi = KINDS[kind](omega)
    if gate is None:
        return linear.matrix(q, k, feature_map=phi, causal=causal, key_mask=key_mask, eps=eps)
    phi_q, phi_k = phi.forward(q)[0], phi.forward(zero_masked(k, key_mask))[0]  # (..., N, C)
    allowed = visible(q.shape[-2], k.shape[-2], causal=causal, key_mask=key_mask)
    weights = recency(_unfaded(gate, key_mask)) * (phi_q @ phi_k.swapaxes(-1, -2))  # (6)  (..., N, N)
    weights = np.where(allowed, weights, q.dtype.type(0))
    return divide(weights, weights.sum(axis=-1) + eps)


def _unfaded(gate: Array, key_mask: Mask | None) -> Array:
    """Gates ``(..., N)``, and 1 for masked tokens, where the state stays as it is."""
    return gate if key_mask is None else np.where(key_mask, gate, gate.dtype.type(1))


def recency(gate: Array) -> Array:
    """``r_tj`` of (6) for gates ``(..., N)``: ``(..., N, N)``, its rows sum to less than 1."""
    below = np.tri(gate.shape[-1], k=-1, dtype=np.bool_)
    factors = np.where(below, gate[..., None], gate.dtype.type(1))  # g_t for j < t, else 1  (..., N, N)
    return np.tril(np.cumprod(factors, axis=-2)) * (1 - gate[..., None, :])
