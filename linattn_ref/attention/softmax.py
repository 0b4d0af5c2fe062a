"""Softmax attention (Vaswani et al. 2017): the yardstick, and the form every other mechanism approximates.

    A = scale Q K^T                                          (1)
    P_ij = exp(A_ij) / sum_l exp(A_il)                       (2)
    O = P V                                                  (3)

Every query looks at every key: ``O(N L max(D, M))`` time. Two forms of the same function stand below.

``dense_forward``, ``dense_backward``
    Equations (1)-(3) as printed. ``P`` is kept for the backward pass: ``O(N L)`` memory.
``forward``, ``backward``
    Online: the keys are read tile by tile and only ``O`` and one number a row, the log-sum-exp of ``A``, are kept;
    ``P`` is recomputed in the backward pass: ``O(N)`` memory beyond the inputs. The loop is a kernel.

``init_state`` and ``step`` are its recurrent form: the state is the key/value cache, which grows with every token.

:Time: ``O(N L max(D, M))``
:Memory: ``O(N M)``
:Causal: yes
:Exact: yes
:Gives: softmax attention itself

The gradient, by hand
---------------------
Let ``dO`` be the gradient of a loss with respect to ``O``. From (3),

    dV = P^T dO                                              (4)
    dP = dO V^T                                              (5)

From (2), ``dP_ij/dA_il = P_ij (delta_jl - P_il)``, so that ``dA_il = sum_j dP_ij P_ij (delta_jl - P_il)``, that is

    dA = P * (dP - rowsum(dP * P))                           (6)

and from (1),

    dQ = scale dA K                                          (7)
    dK = scale dA^T Q                                        (8)

References
----------
Vaswani et al. (2017), "Attention is all you need", section 3.2.1.
Rabe and Staats (2021), "Self-attention does not need O(n^2) memory".
Katharopoulos et al. (2020), "Transformers are RNNs", supplementary C.1 (stateful softmax).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_array,
    check_d_out,
    check_dtype,
    check_kernels,
    check_leading,
    check_qk,
    check_qkv,
    check_saved,
    check_shape,
    check_sizes,
    name_of,
    resolve_scale,
)
from linattn_ref.attention.gpu_arrays import takes_gpu_arrays
from linattn_ref.attention.masks import visible, zero_masked
from linattn_ref.kernels import reference


class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)


# --- The dense form -------------------------------------------------------------------------------------------------


class DenseSaved(NamedTuple):
    """What the dense backward pass needs: ``P`` is the ``O(N L)`` of softmax attention."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)
    p: Array  # (..., N, L)
    scale: float


def matrix(
    q: Array, k: Array, *, causal: bool = False, key_mask: Mask | None = None, scale: float | None = None
) -> Array:
    """The context mapping matrix ``P`` of equation (2).

    Parameters
    ----------
    q, k : ndarray, ``(..., N, D)``, ``(..., L, D)``, float32 or float64
    causal : bool
        Query ``i`` sees keys ``j <= i + (L - N)``; needs ``N <= L``.
    key_mask : ndarray of bool ``(..., L)``, optional
        True = may be attended.
    scale : float, optional
        ``1/sqrt(D)`` unless given.

    Returns
    -------
    ndarray ``(..., N, L)``
        Rows sum to 1; the row of a query that sees nothing is 0.

    Raises
    ------
    TypeError, ValueError
        Naming the argument that breaks the conventions above.
    """
    check_qk(q, k, causal=causal, key_mask=key_mask)
    scale = resolve_scale(scale, q.shape[-1])
    p = (scale * q) @ zero_masked(k, key_mask).swapaxes(-1, -2)  # (1)  (..., N, L); one such array, worked on in place
    if causal or key_mask is not None:
        np.copyto(p, -np.inf, where=~visible(q.shape[-2], k.shape[-2], causal=causal, key_mask=key_mask))
    row_max = p.max(axis=-1, keepdims=True)  # (..., N, 1), cancels in (2)
    p -= np.where(np.isneginf(row_max), q.dtype.type(0), row_max)
    np.exp(p, out=p)
    row_sum = p.sum(axis=-1, keepdims=True)  # (..., N, 1), 0 where a query sees nothing
    p /= np.where(row_sum == 0, q.dtype.type(1), row_sum)  # (2)
    return p


def dense_forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> tuple[Array, DenseSaved]:
    """Softmax attention as equations (1)-(3) print it; arguments as in :func:`forward`."""
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    scale = resolve_scale(scale, q.shape[-1])
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    p = matrix(q, k, causal=causal, key_mask=key_mask, scale=scale)  # (1), (2)
    return p @ v, DenseSaved(q, k, v, p, scale)  # (3)


def dense_backward(d_out: Array, saved: DenseSaved) -> Gradients:
    """Gradients of :func:`dense_forward`, equations (4)-(8)."""
    check_saved(saved, DenseSaved)
    q, k, v, p, scale = saved
    check_d_out(d_out, (*q.shape[:-1], v.shape[-1]), q.dtype)
    d_v = p.swapaxes(-1, -2) @ d_out  # (4)  (..., L, M)
    d_p = d_out @ v.swapaxes(-1, -2)  # (5)  (..., N, L)
    d_scores = p * (d_p - (d_p * p).sum(axis=-1, keepdims=True))  # (6)  (..., N, L)
    d_q = scale * (d_scores @ k)  # (7)  (..., N, D)
    d_k = scale * (d_scores.swapaxes(-1, -2) @ q)  # (8)  (..., L, D)
    return Gradients(d_q, d_k, d_v)


# --- The online form ------------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """What the online backward pass needs: the inputs, the output and one number a row."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    out: Array  # (..., N, M)
    log_sum_exp: Array  # (..., N), log sum_l exp(A_il); -inf where a query sees nothing
    key_mask: Mask | None  # (..., L)
    causal: bool
    scale: float
    kernel: ModuleType
    cached: int  # how many of the L keys came from the cache
    state: State | None  # the cache after the last token, where ``forward`` was given one


@takes_gpu_arrays
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    state: State | None = None,
    kernels: Any = reference,
) -> tuple[Array, Saved]:
    """Softmax attention without the ``(N, L)`` matrix.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``, float32 or float64
    causal : bool
        Query ``i`` sees keys ``j <= i + (L - N)``; needs ``N <= L``.
    key_mask : ndarray of bool ``(..., L)``, optional
        True = may be attended. A masked key has weight and gradient exactly 0.
    scale : float, optional
        ``1/sqrt(D)`` unless given.
    state : State, optional
        A cache to continue from (needs ``causal=True``, no ``key_mask``): ``k`` and ``v`` are appended to it and the
        queries see all of it. Gradients are those of this call's ``k`` and ``v``; the cache is a constant.
    kernels : module
        ``linattn_ref.kernels.reference``, ``.jit`` or ``.cuda``. The last also takes arrays of CuPy, PyTorch or Numba
        that are on a GPU, and gives back such arrays.

    Returns
    -------
    out : ndarray ``(..., N, M)``
        A query that may see nothing gets 0.
    saved : Saved

    Raises
    ------
    TypeError, ValueError
        Naming the argument that breaks the conventions above.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    kernel = check_kernels(kernels, "softmax")
    scale = resolve_scale(scale, q.shape[-1])
    cached = 0
    if state is not None:
        _check_state(state)
        if not causal or key_mask is not None:
            raise ValueError("state: continuing from a cache needs causal=True and no key_mask")
        cached, state = state.length, append(k, v, state)
        k, v = state.k[..., : state.length, :], state.v[..., : state.length, :]
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    out, log_sum_exp = kernel.forward(q, k, v, key_mask, causal, scale)
    return out, Saved(q, k, v, out, log_sum_exp, key_mask, causal, scale, kernel, cached, state)


@takes_gpu_arrays
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (4)-(8) with ``P`` recomputed from the row log-sum-exp.

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    saved : Saved

    Returns
    -------
    Gradients
        Of ``q``, ``k`` and ``v``; exactly 0 for masked keys and for queries that see nothing.
    """
    check_saved(saved, Saved)
    q, k, v, out, log_sum_exp, key_mask, causal, scale, kernel, cached, _ = saved
    check_d_out(d_out, out.shape, out.dtype)
    d_q, d_k, d_v = kernel.backward(d_out, q, k, v, out, log_sum_exp, key_mask, causal, scale)
    return Gradients(d_q, d_k[..., cached:, :], d_v[..., cached:, :])


# --- The recurrent form: a key/value cache --------------------------------------------------------------------------


class State(NamedTuple):
    """The key/value cache: the first ``length`` rows are the tokens seen so far, the rest is room."""

    k: Array  # (..., capacity, D)
    v: Array  # (..., capacity, M)
    length: int


@takes_gpu_arrays
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    *,
    capacity: int,
    dtype: DTypeLike = np.float64,
    like: Array | None = None,
) -> State:
    """An empty cache with room for ``capacity`` tokens, for arrays with the ``leading`` axes; on a GPU ``like`` one."""
    check_leading(leading)
    check_sizes(key_width=key_width, value_width=value_width, capacity=capacity)
    check_dtype(dtype)
    k, v = (np.zeros((*leading, capacity, width), dtype, like=like) for width in (key_width, value_width))
    return State(k, v, 0)


def _check_state(state: Any) -> None:
    if not isinstance(state, State):
        raise TypeError(f"state: expected a softmax.State, got a {name_of(type(state))}")


def append(k: Array, v: Array, state: State) -> State:
    """The cache with the rows ``k (..., L, D)``, ``v (..., L, M)`` added. The state handed in is spent."""
    capacity, end = state.k.shape[-2], state.length + k.shape[-2]
    check_array("state", state.k, dtype=k.dtype)
    check_shape("state.k", state.k, (*k.shape[:-2], capacity, k.shape[-1]), "(..., capacity, D)")
    check_shape("state.v", state.v, (*v.shape[:-2], capacity, v.shape[-1]), "(..., capacity, M)")
    if end > capacity:
        raise ValueError(
            f"state: no room, {k.shape[-2]} more tokens after {state.length} need a capacity of {end}, got {capacity}"
        )
    state.k[..., state.length : end, :] = k
    state.v[..., state.length : end, :] = v
    return state._replace(length=end)


@takes_gpu_arrays
def step(
    q_t: Array, k_t: Array, v_t: Array, state: State, *, scale: float | None = None, kernels: Any = reference
) -> tuple[Array, State]:
    """One token: add its key and value to the cache and attend to all of it, in ``O(L)``.

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
    state : State
        From :func:`init_state`, ``step`` or ``forward``. It is spent: its buffers are reused.
    scale : float, optional
        ``1/sqrt(D)`` unless given.
    kernels : module
        As in :func:`forward`.

    Returns
    -------
    out_t : ndarray ``(..., M)``
    state : State
    """
    for name, x in (("q_t", q_t), ("k_t", k_t), ("v_t", v_t)):
        check_array(name, x, ndim=1)
    _check_state(state)
    q, k, v = q_t[..., None, :], k_t[..., None, :], v_t[..., None, :]  # (..., 1, D), (..., 1, D), (..., 1, M)
    out, saved = forward(q, k, v, causal=True, scale=scale, state=state, kernels=kernels)
    return out[..., 0, :], saved.state  # type: ignore[return-value]
