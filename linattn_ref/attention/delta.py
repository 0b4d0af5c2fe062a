"""The delta rule (Yang et al. 2024): linear attention whose state is corrected where it is wrong, and may fade.

Linear attention adds ``k v^T`` to its state, whatever the state says at ``k`` already: a key that comes back finds the
sum of its values. The delta rule looks first, and moves what it finds a part ``beta`` of the way to the new value,

    S~_i = diag(g_i) S_{i-1},   g_i = exp(log_gate_i)                                         (1)  (C, M)
    S_i = S~_i + beta_i k^_i (v_i - S~_i^T k^_i)^T           (2)
    out_i = S_i^T q^_i                                       (3)  (M,)

with unit queries and keys, ``n(x) = x / sqrt(|x|^2 + 1e-6)``, and the scale on the query:

    q^ = scale n(q),   k^ = n(k)                             (4)

DeltaNet has no gate, ``g = 1``; Gated DeltaNet (Yang et al. 2025) has one a head, Kimi Delta Attention (Kimi Team 2025)
one a channel, most often that of ``decay_gate.py``.

Why this rule
-------------
``|v_i - S^T k^_i|^2 / 2`` is how wrong the state is about token ``i``; its gradient in ``S`` is
``-k^_i (v_i - S^T k^_i)^T``, so that (2) is a step of gradient descent on it, of length ``beta``. For a unit key
``beta = 1`` goes all the way: ``S_i`` says ``v_i`` at ``k^_i``, and as before at every key at right angles to it. It is
Kaczmarz's method (1937) for the equations ``S^T k^_i = v_i``, a projection on one of them at a time, and ``beta`` in
(0, 2) is its relaxation. In terms of ``S``, (2) is

    S_i = (I - beta_i k^_i k^_i^T) S~_i + beta_i k^_i v_i^T                                   (5)

whose first factor has the eigenvalue ``1 - beta_i`` along the key: below 0 for ``beta`` above 1, which lets a state
count modulo two; never above 1, so that nothing explodes.

:Time: ``O(N C M)``
:Memory: ``O(N (C + M))``
:Causal: always
:Exact: no, another similarity
:Gives: linear attention that overwrites: each key's last value rather than the sum of all

The gradient, by hand
---------------------
(1)-(3) are the recurrence of ``kernels/reference/delta_product.py`` with ``e_i = beta_i k^_i`` and the value
``beta_i v_i``, and its gradients ``d_q^, d_key, d_value, d_e`` and ``d_log_gate`` are derived there. From them

    d_v_i = beta_i d_value_i                                 (6)
    d_beta_i = v_i . d_value_i + k^_i . d_e_i                (7)
    d_k^_i = d_key_i + beta_i d_e_i                          (8)

and through (4), with ``y = n(x) = r x`` (``unit_rows.py``):

    d_x = r (d_y - y (y . d_y))                              (9)

A masked key has ``k^ = v = 0`` and the gate 1: it leaves the state as it is.

Example
-------
The same key three times, with values 1, 5 and 3. The state says the last; without the correction it would say 9.

>>> x = np.full((3, 1), 1e3)
>>> out, saved = forward(x, x, np.array([[1.0], [5.0], [3.0]]), np.ones(3))
>>> out.round(6).T
array([[1., 5., 3.]])
>>> backward(np.array([[0.0], [0.0], [1.0]]), saved).v.round(6).T
array([[0., 0., 1.]])

References
----------
Yang et al. (2024), "Parallelizing linear transformers with the delta rule over sequence length".
Yang et al. (2025), "Gated delta networks: improving Mamba2 with delta rule", equation 10.
Kimi Team (2025), "Kimi Linear: an expressive, efficient attention architecture".
Schlag et al. (2021), "Linear transformers are secretly fast weight programmers", section 4.2 (the rule).
Grazzi et al. (2025), "Unlocking state-tracking in linear RNNs through negative eigenvalues" (``beta`` up to 2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import gated_linear
from linattn_ref.attention.arguments import Array, Mask, resolve_scale
from linattn_ref.attention.delta_checks import check_backward, check_beta, check_flag, check_forward, check_matrix
from linattn_ref.attention.delta_recurrent import step, summarise
from linattn_ref.attention.door import door
from linattn_ref.attention.fading_state import Piece, State, apply, apply_backward, combine, init_state, unfaded
from linattn_ref.attention.fields import documented
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.ownership import new_count
from linattn_ref.attention.rooms import DeltaProductRoom, kernel_of, name_of_room
from linattn_ref.attention.unit_rows import unit, unit_backward
from linattn_ref.kernels import reference
from linattn_ref.kernels.reference.buffers import into

__all__ = [
    "Gradients",
    "GradientsWithGate",
    "GradientsWithGateAndState",
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
    "step",
    "summarise",
]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs, ``u``, and the state at both ends."""

    q: Array  # (..., N, C)
    k: Array  # (..., N, C), masked rows 0
    v: Array  # (..., N, M), masked rows 0
    beta: Array  # (..., N)
    log_gate: Array | None  # (..., N) or (..., N, C), masked rows 0
    u: Array  # (..., N, M), beta_i (v_i - S~_i^T k^_i)
    s: Array | None  # (..., C, M), S_0; None for 0
    normalise: bool
    scale: float
    key_mask: Mask | None  # (..., N)
    kernels: Any  # the name of the room
    state: State  # after the last token


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward`` without a gate."""

    q: Array  # (..., N, C)
    k: Array  # (..., N, C)
    v: Array  # (..., N, M)
    beta: Array  # (..., N)


@documented
class GradientsWithState(NamedTuple):
    """The same, where ``forward`` continued from a state."""

    q: Array  # (..., N, C)
    k: Array  # (..., N, C)
    v: Array  # (..., N, M)
    beta: Array  # (..., N)
    state: State


@documented
class GradientsWithGate(NamedTuple):
    """The same with a gate."""

    q: Array  # (..., N, C)
    k: Array  # (..., N, C)
    v: Array  # (..., N, M)
    beta: Array  # (..., N)
    log_gate: Array  # as log_gate


@documented
class GradientsWithGateAndState(NamedTuple):
    """The same with both."""

    q: Array  # (..., N, C)
    k: Array  # (..., N, C)
    v: Array  # (..., N, M)
    beta: Array  # (..., N)
    log_gate: Array  # as log_gate
    state: State


def _check_forward(
    q: Any, k: Any, v: Any, beta: Any, log_gate: Any = None, *, normalise: Any = True, **options: Any
) -> None:
    check_forward(q, k, v, log_gate, **options)
    check_beta("beta", beta, q)
    check_flag("normalise", normalise)


@door(_check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    log_gate: Array | None = None,
    *,
    normalise: bool = True,
    scale: float | None = None,
    key_mask: Mask | None = None,
    state: State | None = None,
    out: Array | None = None,
    kernels: DeltaProductRoom = reference,
) -> tuple[Array, Saved]:
    """The delta rule, equations (1)-(4).

    Parameters
    ----------
    q, k, v, scale, key_mask, state, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. Causal always, with ``N = L``; ``C = D``.
    beta : ndarray ``(..., N)``
        How far to the new value, 0 to 1, or to 2 for what overshoots.
    log_gate : ndarray ``(..., N)`` or ``(..., N, C)``, optional
        The logarithm of the gate, up to 0: one a token, or one a token and channel; -inf forgets what was before. None
        is a gate of 1.
    normalise : bool
        Whether ``n`` in (4) is as there, or nothing, for queries and keys of unit length that come so.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    saved : Saved
    """
    scale = resolve_scale(scale, q.shape[-1])
    s = None if state is None else state.s.copy()  # a copy: a step may spend the state
    k, v, log_gate = zero_masked(k, key_mask), zero_masked(v, key_mask), unfaded(log_gate, key_mask)
    unit_q, unit_k = (unit(x) if normalise else x for x in (q, k))  # (4)  (..., N, C)
    result, s_last, u = kernels.delta_product.forward(
        q=scale * unit_q, k=unit_k, v=beta[..., None] * v, erase=beta[..., None] * unit_k, log_gate=log_gate, state=s
    )  # (1)-(3)
    last = State(s_last, new_count())
    return into(out, result), Saved(
        q, k, v, beta, log_gate, u, s, normalise, scale, key_mask, name_of_room(kernels), last
    )


def _check_backward(d_out: Any, saved: Any, *, d_state: Any = None) -> None:
    check_backward(d_out, saved, Saved, d_state)


@door(_check_backward)
def backward(
    d_out: Array, saved: Saved, *, d_state: State | None = None
) -> Gradients | GradientsWithState | GradientsWithGate | GradientsWithGateAndState:
    """Gradients of :func:`forward`, equations (6)-(9).

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    saved : Saved
    d_state : State, optional
        Gradient of ``saved.state``, where something continued from it: the ``grads.state`` of that.

    Returns
    -------
    Gradients and its kin
        Of ``log_gate`` and of ``state`` too, where ``forward`` was given one.
    """
    q, k, v, normalise = saved.q, saved.k, saved.v, saved.normalise
    unit_q, unit_k = (unit(x) if normalise else x for x in (q, k))  # (4)  (..., N, C)
    beta = saved.beta[..., None]  # (..., N, 1)
    rows = {"q": saved.scale * unit_q, "k": unit_k, "v": beta * v, "erase": beta * unit_k, "log_gate": saved.log_gate}
    d_q, d_k, d_value, d_e, d_log_gate, d_s = kernel_of(saved.kernels, "delta_product").backward(
        d_out=d_out, d_state=None if d_state is None else d_state.s, **rows, state=saved.s, u=saved.u
    )
    d_v = zero_masked(beta * d_value, saved.key_mask)  # (6)  (..., N, M)
    d_beta = (v * d_value).sum(axis=-1) + (unit_k * d_e).sum(axis=-1)  # (7)  (..., N)
    d_q, d_k = saved.scale * d_q, d_k + beta * d_e  # (8)  (..., N, C)
    if normalise:
        d_q, d_k = unit_backward(d_q, q), unit_backward(d_k, k)  # (9)
    gradients = d_q, zero_masked(d_k, saved.key_mask), d_v, d_beta
    if d_log_gate is None:
        return Gradients(*gradients) if saved.s is None else GradientsWithState(*gradients, State(d_s))
    with_gate = GradientsWithGate(*gradients, unfaded(d_log_gate, saved.key_mask))
    return with_gate if saved.s is None else GradientsWithGateAndState(*with_gate, State(d_s))


# --- The matrix ------------------------------------------------------------------------------------------------------


def _check_matrix(q: Any, k: Any, beta: Any, log_gate: Any = None, *, normalise: Any = True, **options: Any) -> None:
    check_matrix(q, k, log_gate, **options)
    check_beta("beta", beta, q)
    check_flag("normalise", normalise)


@door(_check_matrix)
def matrix(
    q: Array,
    k: Array,
    beta: Array,
    log_gate: Array | None = None,
    *,
    normalise: bool = True,
    scale: float | None = None,
    key_mask: Mask | None = None,
) -> Array:
    """The matrix ``P (I + A)^{-1} diag(beta)``, ``(..., N, N)``, arguments as in :func:`forward`.

    ``P`` and ``A`` are gated linear attention's, of the queries and of ``beta k^``, ``A`` below the diagonal alone: a
    token writes its value, less what those before it have written at its key.
    """
    scale, k = resolve_scale(scale, q.shape[-1]), zero_masked(k, key_mask)
    log_gate = unfaded(log_gate, key_mask)
    unit_q, unit_k = (unit(x) if normalise else x for x in (q, k))  # (4)  (..., N, C)
    p = gated_linear.matrix.unchecked(unit_q, unit_k, log_gate, scale=scale)  # type: ignore[arg-type]
    a = gated_linear.matrix.unchecked(beta[..., None] * unit_k, unit_k, log_gate, scale=1.0)  # type: ignore[arg-type]
    written = np.linalg.inv(np.eye(k.shape[-2], dtype=k.dtype, like=k) + np.tril(a, -1))  # (..., N, N)
    return p @ (written * beta[..., None, :])
