"""Gated linear attention (Yang et al. 2024): a state that fades, a channel at a time, and no denominator.

    S_i = diag(g_i) S_{i-1} + k_i v_i^T,   g_i = exp(log_gate_i)                             (1)  (C, M)
    out_i = scale S_i^T q_i                                  (2)  (M,)

Without a gate the state is linear attention's, to which every token is added for good; with one, token ``j`` counts for
token ``i`` as much as the gates between them let through:

    out_i = sum_{j <= i} P_ij v_j,   P_ij = scale q_i . (g_{j+1} * ... * g_i * k_j)          (3)

There is no denominator, since what fades need not be averaged; a layer norm after it is the rule. The family is known
by where its gate comes from:

    RetNet (Sun et al. 2023)          1 - 2^(-5-h) for head h, fixed          ``retention_gate``
    Mamba-2 (Dao and Gu 2024)         exp(-exp(a_log) dt), one a head         ``decay_gate.py``, and values dt v
    GLA (Yang et al. 2024)            a sigmoid of the token, one a channel

:Time: ``O(N C M)``
:Memory: ``O(N (C + M))``
:Causal: always
:Exact: no, another similarity
:Gives: linear attention that prefers the recent, by a learned gate a head or a channel

The gradient, by hand
---------------------
That of (1) and (2), and of the same with a correction, is in ``kernels/reference/delta_product.py``: ``A_i``, the
gradient with respect to ``S_i``, fades on its way back as ``S`` does on its way forward, ``A_i = scale q_i G_i^T +
diag(g_{i+1}) A_{i+1}``. A masked key has ``k = v = 0`` and the gate 1: it leaves the state as it is.

Example
-------
A gate of 1/2: what was said is worth half a token later. A gate of 0, whose logarithm is -inf, forgets it.

>>> ones, v = np.ones((4, 1)), np.array([[8.0], [0.0], [0.0], [0.0]])
>>> log_gate = np.array([0.0, -np.log(2), -np.log(2), -np.inf])
>>> forward(ones, ones, v, log_gate)[0].T
array([[8., 4., 2., 0.]])

References
----------
Yang et al. (2024), "Gated linear attention transformers with hardware-efficient training", sections 4.1
and 4.4 (a sigmoid to the power 1/16).
Sun et al. (2023), "Retentive network: a successor to transformer for large language models", section 2.2,
equation 8 (the gate).
Dao and Gu (2024), "Transformers are SSMs".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention.arguments import Array, Mask, check_array, check_dtype, check_qkv, check_sizes, resolve_scale
from linattn_ref.attention.delta_checks import (
    check_backward,
    check_forward,
    check_log_gate,
    check_matrix,
    check_step,
)
from linattn_ref.attention.door import door
from linattn_ref.attention.fading_state import (
    Piece,
    State,
    apply,
    apply_backward,
    combine,
    init_state,
    piece_of,
    spend,
    unfaded,
)
from linattn_ref.attention.fields import documented
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.ownership import new_count
from linattn_ref.attention.rooms import DeltaProductRoom, check_kernels, kernel_of, name_of_room
from linattn_ref.kernels import reference
from linattn_ref.kernels.reference.buffers import into

__all__ = [
    "Gradients",
    "GradientsWithState",
    "Piece",
    "Saved",
    "State",
    "apply",
    "apply_backward",
    "backward",
    "combine",
    "forward",
    "init_state",
    "matrix",
    "retention_gate",
    "step",
    "summarise",
]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs, and the state at both ends."""

    q: Array  # (..., N, C)
    k: Array  # (..., N, C), masked rows 0
    v: Array  # (..., N, M), masked rows 0
    log_gate: Array  # (..., N) or (..., N, C), masked rows 0
    s: Array | None  # (..., C, M), S_0; None for 0
    scale: float
    key_mask: Mask | None  # (..., N)
    kernels: Any  # the name of the room
    state: State  # after the last token


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, C)
    k: Array  # (..., N, C)
    v: Array  # (..., N, M)
    log_gate: Array  # as log_gate


@documented
class GradientsWithState(NamedTuple):
    """The same, where ``forward`` continued from a state."""

    q: Array  # (..., N, C)
    k: Array  # (..., N, C)
    v: Array  # (..., N, M)
    log_gate: Array  # as log_gate
    state: State


def _check_forward(q: Any, k: Any, v: Any, log_gate: Any, **options: Any) -> None:
    check_forward(q, k, v, log_gate, **options)
    check_array("log_gate", log_gate, ndim=1)  # here it may not be None


@door(_check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    log_gate: Array,
    *,
    scale: float | None = None,
    key_mask: Mask | None = None,
    state: State | None = None,
    out: Array | None = None,
    kernels: DeltaProductRoom = reference,
) -> tuple[Array, Saved]:
    """Gated linear attention, equations (1) and (2).

    Parameters
    ----------
    q, k, v, scale, key_mask, state, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. Causal always, with ``N = L``; ``C = D``.
    log_gate : ndarray ``(..., N)`` or ``(..., N, C)``
        The logarithm of the gate, up to 0: one a token, or one a token and channel; -inf forgets what was before.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    saved : Saved
    """
    scale = resolve_scale(scale, q.shape[-1])
    s = None if state is None else state.s.copy()  # a copy: a step may spend the state
    k, v, log_gate = zero_masked(k, key_mask), zero_masked(v, key_mask), unfaded(log_gate, key_mask)
    result, s_last, _ = kernels.delta_product.forward(
        q=scale * q, k=k, v=v, erase=None, log_gate=log_gate, state=s
    )  # (1), (2)
    last = State(s_last, new_count())
    return into(out, result), Saved(q, k, v, log_gate, s, scale, key_mask, name_of_room(kernels), last)


def _check_backward(d_out: Any, saved: Any, *, d_state: Any = None) -> None:
    check_backward(d_out, saved, Saved, d_state)


@door(_check_backward)
def backward(d_out: Array, saved: Saved, *, d_state: State | None = None) -> Gradients | GradientsWithState:
    """Gradients of :func:`forward`.

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    saved : Saved
    d_state : State, optional
        Gradient of ``saved.state``, where something continued from it: the ``grads.state`` of that.

    Returns
    -------
    Gradients or GradientsWithState
        Of ``state`` too, where ``forward`` was given one.
    """
    rows = {"q": saved.scale * saved.q, "k": saved.k, "v": saved.v, "erase": None, "log_gate": saved.log_gate}
    d_q, d_k, d_v, _, d_log_gate, d_s = kernel_of(saved.kernels, "delta_product").backward(
        d_out=d_out, d_state=None if d_state is None else d_state.s, **rows, state=saved.s, u=saved.v
    )
    d_k, d_v = zero_masked(d_k, saved.key_mask), zero_masked(d_v, saved.key_mask)
    gradients = Gradients(saved.scale * d_q, d_k, d_v, unfaded(d_log_gate, saved.key_mask))
    return gradients if saved.s is None else GradientsWithState(*gradients, State(d_s))


# --- The recurrent form ---------------------------------------------------------------------------------------------


def _check_step(q_t: Any, k_t: Any, v_t: Any, state: Any, log_gate_t: Any, **options: Any) -> None:
    check_step(q_t, k_t, v_t, state, log_gate_t, **options)


@door(_check_step)
def step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    log_gate_t: Array,
    *,
    scale: float | None = None,
    kernels: DeltaProductRoom = reference,
) -> tuple[Array, State]:
    """One token, equations (1) and (2).

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., C)``, ``(..., C)``, ``(..., M)``
    state : State
        From :func:`init_state`, ``step`` or ``forward``. It is spent, see ``ownership.py``.
    log_gate_t : ndarray ``(...)`` or ``(..., C)``
    scale, kernels
        As in :func:`forward`.

    Returns
    -------
    out_t : ndarray ``(..., M)``
    state : State
    """
    state, q_t = spend(state), resolve_scale(scale, q_t.shape[-1]) * q_t
    return kernels.delta_product.step(q_t, k_t, v_t, None, log_gate_t, state.s), state  # (1), (2)


# --- The matrix, and what a piece does ------------------------------------------------------------------------------


@door(check_matrix)
def matrix(q: Array, k: Array, log_gate: Array, *, scale: float | None = None, key_mask: Mask | None = None) -> Array:
    """The matrix ``P (..., N, N)`` of (3), arguments as in :func:`forward`; ``(..., N, N, C)`` numbers on the way."""
    k, log_gate = zero_masked(k, key_mask), unfaded(log_gate, key_mask)
    weights = resolve_scale(scale, q.shape[-1]) * (faded(k, log_gate) @ q[..., :, :, None])[..., 0]  # (3)
    return np.tril(weights)  # (..., N, N)


def faded(k: Array, log_gate: Array | None) -> Array:
    """Key ``j`` as row ``i`` finds it, ``g_{j+1} * ... * g_i * k_j``, for ``j <= i``: ``(..., N, N, C)``."""
    if log_gate is None:
        return np.broadcast_to(k[..., None, :, :], (*k.shape[:-1], *k.shape[-2:]))
    gate = np.exp(log_gate if log_gate.ndim == k.ndim else log_gate[..., None])  # (..., N, C or 1)
    below = np.tri(k.shape[-2], k=-1, dtype=np.bool_)[..., None]  # (N, N, 1)
    factors = np.where(below, gate[..., :, None, :], gate.dtype.type(1))  # g_i for j < i, else 1
    return np.cumprod(factors, axis=-3) * k[..., None, :, :]


def _check_summarise(k: Any, v: Any, log_gate: Any, *, key_mask: Any = None, kernels: Any = reference) -> None:
    check_qkv(k, k, v, key_mask=key_mask)
    check_log_gate("log_gate", log_gate, k)
    check_kernels(kernels, "delta_product")


@door(_check_summarise)
def summarise(
    k: Array, v: Array, log_gate: Array, *, key_mask: Mask | None = None, kernels: DeltaProductRoom = reference
) -> Piece:
    """What some tokens do to a state: what a machine has to say about its piece of a sequence, ``fading_state.py``.

    Parameters
    ----------
    k, v, log_gate, key_mask, kernels
        As in :func:`forward`.
    """
    k, v, log_gate = zero_masked(k, key_mask), zero_masked(v, key_mask), unfaded(log_gate, key_mask)
    return piece_of(k, v, None, log_gate, kernels)


def _check_retention_gate(heads: Any, *, dtype: Any = np.float64) -> None:
    check_sizes(heads=heads)
    check_dtype(dtype)


@door(_check_retention_gate)
def retention_gate(heads: int, *, dtype: DTypeLike = np.float64) -> Array:
    """RetNet's log gates, ``log(1 - 2^(-5-h))`` for heads ``h = 0, 1, ...``: ``(H, 1)``, to broadcast to ``(H, N)``."""
    return np.log1p(-np.exp2(-5.0 - np.arange(heads))).astype(dtype)[:, None]
