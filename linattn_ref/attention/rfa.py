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
token, ``g_t = sigmoid(x_t . w_g + b_g)``, see ``gate.py``.

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

which asks whether the loss would rather have the state before or the new token. Where a key is masked ``phi(k_t)`` is
0: it adds nothing, and the state fades all the same. The gradient of (1) and (2), through the division by the length
too, is in ``feature_maps_random.py``.

References
----------
Peng et al. (2021), "Random feature attention", section 3 and the appendix (arc-cosine).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention import linear
from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_array,
    check_d_out,
    check_dtype,
    check_kernels,
    check_qk,
    check_qkv,
    check_saved,
    check_shape,
)
from linattn_ref.attention.feature_maps import FeatureMap, rfa_arccos, rfa_gaussian
from linattn_ref.attention.gpu_arrays import takes_gpu_arrays
from linattn_ref.attention.linear_recurrent import State, check_eps, check_state
from linattn_ref.attention.masks import visible, zero_masked
from linattn_ref.kernels import reference
from linattn_ref.kernels.reference.division import divide

KINDS = {"gaussian": rfa_gaussian, "arccos": rfa_arccos}  # (1), (2)


class Saved(NamedTuple):
    """What the backward pass needs with a gate: rows, and the state at both ends. Without one: `linear.Saved`."""

    phi_q: Array  # (..., N, C)
    phi_k: Array  # (..., N, C), masked rows 0
    v: Array  # (..., N, M), masked rows 0
    gate: Array  # (..., N)
    out: Array  # (..., N, M)
    denominator: Array  # (..., N)
    saved_q: Any  # what feature_map.backward needs
    saved_k: Any
    key_mask: Mask | None  # (..., N)
    feature_map: FeatureMap
    kernel: ModuleType
    given: State | None  # what was continued from
    state: State  # after the last token


class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward`` with a gate. Without one: `linear.Gradients`, the first three."""

    q: Array  # (..., N, D)
    k: Array  # (..., N, D)
    v: Array  # (..., N, M)
    gate: Array  # (..., N)


class GradientsWithState(NamedTuple):
    """The same, where ``forward`` continued from a state. Without a gate: `linear.GradientsWithState`."""

    q: Array  # (..., N, D)
    k: Array  # (..., N, D)
    v: Array  # (..., N, M)
    gate: Array  # (..., N)
    state: State


@takes_gpu_arrays
def forward(
    q: Array,
    k: Array,
    v: Array,
    omega: Array,
    gate: Array | None = None,
    *,
    kind: str = "gaussian",
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 1e-6,
    state: State | None = None,
    kernels: Any = reference,
) -> tuple[Array, Saved | linear.Saved]:
    """Random feature attention.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``, float32 or float64
        Of queries and keys only the directions matter; one of length 0 stays 0.
    omega : ndarray ``(m, D)``
        From `feature_maps.gaussian` or `feature_maps.orthogonal_gaussian`; used in the dtype of ``q``. A constant.
    gate : ndarray ``(..., N)``, optional
        ``g_t``, strictly between 0 and 1 (on a GPU that is not checked); needs ``causal=True`` and ``N = L``. None is
        no gate: ``S`` and ``z`` are plain sums.
    kind : {"gaussian", "arccos"}
        The features, (1) or (2).
    causal : bool
        Query ``i`` sees keys ``j <= i + (L - N)``; needs ``N <= L``.
    key_mask : ndarray of bool ``(..., L)``, optional
        True = may be attended. With a gate the state fades at a masked key too.
    eps : float
        Added to the denominator. With gates close to 1 the first weights ``1 - g`` are small, and it should be smaller.
    state : State, optional
        A state to continue from (needs ``causal=True``). ``saved.state`` is the one after the last token.
    kernels : module
        ``linattn_ref.kernels.reference``, ``.jit`` or ``.cuda``. The last also takes arrays of CuPy, PyTorch or Numba
        that are on a GPU, and gives back such arrays.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    saved : Saved or linear.Saved

    Raises
    ------
    TypeError, ValueError
        Naming the argument that breaks the conventions above.

    Notes
    -----
    Gaussian features estimate similarities of either sign; with few of them a denominator can come out near 0.
    """
    check_qkv(q, k, v, key_mask=key_mask)
    feature_map = _feature_map(omega, kind)
    if gate is None:
        return linear.forward(
            q, k, v, feature_map=feature_map, causal=causal, key_mask=key_mask, eps=eps, state=state, kernels=kernels
        )
    if state is not None:
        check_state("state", state, feature_map, k, v)
        if not causal:
            raise ValueError("state: continuing from a state needs causal=True")
    check_gate(gate, q, k, causal)
    kernel, eps = check_kernels(kernels, "causal_product"), check_eps(eps, feature_map)
    s, z = (None, None) if state is None else (state.s, state.z)
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    (phi_q, saved_q), (phi_k, saved_k) = feature_map.forward(q), feature_map.forward(k)  # (1), (2)  (..., N, C)
    phi_k = zero_masked(phi_k, key_mask)
    out, denominator, s, z = kernel.normalised_forward(phi_q, phi_k, v, gate, 1 - gate, s, z, eps)  # (3)-(5)
    last = State(s, z, None)
    return out, Saved(
        phi_q, phi_k, v, gate, out, denominator, saved_q, saved_k, key_mask, feature_map, kernel, state, last
    )


@takes_gpu_arrays
def backward(
    d_out: Array, saved: Saved | linear.Saved, *, d_state: State | None = None
) -> Gradients | GradientsWithState | linear.Gradients | linear.GradientsWithState:
    """Gradients of :func:`forward`.

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    saved : Saved or linear.Saved
    d_state : State, optional
        Gradient of ``saved.state``, where something continued from it.

    Returns
    -------
    Gradients, GradientsWithState or those of `linear`
        Of ``q``, ``k``, ``v``, of ``gate`` where there is one, and of ``state`` where ``forward`` was given one.
    """
    if isinstance(saved, linear.Saved):
        return linear.backward(d_out, saved, d_state=d_state)
    check_saved(saved, Saved)
    check_d_out(d_out, saved.out.shape, saved.out.dtype)
    if d_state is not None:
        check_state("d_state", d_state, saved.feature_map, saved.saved_k[0], saved.v)
    d_s, d_z = (None, None) if d_state is None else (d_state.s, d_state.z)
    s, z = (None, None) if saved.given is None else (saved.given.s, saved.given.z)
    gate = saved.gate
    d_phi_q, d_phi_k, d_v, d_g, d_w, d_s, d_z = saved.kernel.normalised_backward(
        d_out, d_s, d_z, saved.phi_q, saved.phi_k, saved.v, gate, 1 - gate, s, z, saved.out, saved.denominator
    )
    d_gate = d_g - d_w  # (7)  (..., N)
    d_q = saved.feature_map.backward(d_phi_q, saved.saved_q)  # (..., N, D)
    d_k = saved.feature_map.backward(zero_masked(d_phi_k, saved.key_mask), saved.saved_k)  # (..., N, D)
    d_v = zero_masked(d_v, saved.key_mask)  # (..., N, M)
    if saved.given is None:
        return Gradients(d_q, d_k, d_v, d_gate)
    return GradientsWithState(d_q, d_k, d_v, d_gate, State(d_s, d_z, None))


# --- The recurrent form ---------------------------------------------------------------------------------------------


@takes_gpu_arrays
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    omega: Array,
    *,
    kind: str = "gaussian",
    dtype: DTypeLike = np.float64,
    like: Array | None = None,
) -> State:
    """The state before the first token, for arrays with the ``leading`` axes; see `linear.init_state`."""
    feature_map = _feature_map(omega, kind)
    check_dtype(dtype)
    return linear.init_state(leading, key_width, value_width, feature_map=feature_map, dtype=dtype, like=like)


@takes_gpu_arrays
def step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    omega: Array,
    gate_t: Array | None = None,
    *,
    kind: str = "gaussian",
    eps: float = 1e-6,
    kernels: Any = reference,
) -> tuple[Array, State]:
    """One token, equations (3)-(5).

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
    state : State
        From :func:`init_state`, ``step`` or ``forward``. It is spent: its buffers are reused.
    omega, kind, eps, kernels
        As in :func:`forward`.
    gate_t : ndarray ``(...)``, optional

    Returns
    -------
    out_t : ndarray ``(..., M)``
    state : State
    """
    for name, x in (("q_t", q_t), ("k_t", k_t), ("v_t", v_t)):
        check_array(name, x, ndim=1)
    feature_map = _feature_map(omega, kind)
    if gate_t is None:
        return linear.step(q_t, k_t, v_t, state, feature_map=feature_map, eps=eps, kernels=kernels)
    q, k, v = q_t[..., None, :], k_t[..., None, :], v_t[..., None, :]  # (..., 1, D), (..., 1, D), (..., 1, M)
    check_qkv(q, k, v)
    gate_t = np.asarray(gate_t) if isinstance(gate_t, np.generic) else gate_t  # what indexing leaves of a single row
    _check_gate("gate_t", gate_t, q_t.shape[:-1], q_t.dtype)
    kernel, eps = check_kernels(kernels, "causal_product"), check_eps(eps, feature_map)
    check_state("state", state, feature_map, k, v)
    phi_q, phi_k = feature_map.forward(q_t)[0], feature_map.forward(k_t)[0]  # (..., C)
    s, z = state.s, state.z
    s *= gate_t[..., None, None]
    z *= gate_t[..., None]
    out_t = kernel.step(phi_q, (1 - gate_t[..., None]) * phi_k, v_t, s, z, eps)  # (3)-(5)  (..., M)
    return out_t, State(s, z, None)


# --- The matrix -----------------------------------------------------------------------------------------------------


def matrix(
    q: Array,
    k: Array,
    omega: Array,
    gate: Array | None = None,
    *,
    kind: str = "gaussian",
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 1e-6,
) -> Array:
    """The context mapping matrix ``(..., N, L)`` of (6), arguments as in :func:`forward`."""
    check_qk(q, k, causal=causal, key_mask=key_mask)
    feature_map = _feature_map(omega, kind)
    if gate is None:
        return linear.matrix(q, k, feature_map=feature_map, causal=causal, key_mask=key_mask, eps=eps)
    check_gate(gate, q, k, causal)
    phi_q, phi_k = feature_map.forward(q)[0], feature_map.forward(zero_masked(k, key_mask))[0]  # (..., N, C)
    allowed = visible(q.shape[-2], k.shape[-2], causal=causal, key_mask=key_mask)
    weights = recency(gate) * (phi_q @ phi_k.swapaxes(-1, -2))  # (6)  (..., N, N)
    weights = np.where(allowed, weights, q.dtype.type(0))
    return divide(weights, weights.sum(axis=-1) + check_eps(eps, feature_map))


def recency(gate: Array) -> Array:
    """``r_tj`` of (6) for gates ``(..., N)``: ``(..., N, N)``, its rows sum to less than 1."""
    below = np.tri(gate.shape[-1], k=-1, dtype=np.bool_)
    factors = np.where(below, gate[..., None], gate.dtype.type(1))  # g_t for j < t, else 1  (..., N, N)
    return np.tril(np.cumprod(factors, axis=-2)) * (1 - gate[..., None, :])


# --- Checks ---------------------------------------------------------------------------------------------------------


def _feature_map(omega: Array, kind: str) -> FeatureMap:
    check_array("omega", omega)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind](omega)


def check_gate(gate: Array, q: Array, k: Array, causal: bool) -> None:
    """``gate (..., N)`` lies strictly between 0 and 1, the pass is causal and ``N = L``."""
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(f"gate: needs N = L, a gate a token, got N = {q.shape[-2]} and L = {k.shape[-2]}")
    check_qk(q, k, causal=causal)
    if not causal:
        raise ValueError("gate: needs causal=True, since it lets the past fade")
    _check_gate("gate", gate, q.shape[:-1], q.dtype)


def _check_gate(name: str, gate: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    check_array(name, gate, ndim=0, dtype=dtype)
    check_shape(name, gate, shape, "(..., N)" if name == "gate" else "(...)")
    if isinstance(gate, np.ndarray) and not ((gate > 0) & (gate < 1)).all():  # a GPU is not asked
        raise ValueError(f"{name}: expected numbers strictly between 0 and 1, got {gate.min()} to {gate.max()}")
