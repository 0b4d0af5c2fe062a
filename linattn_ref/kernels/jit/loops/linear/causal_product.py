"""The causal product of linear attention in Numba, Algorithm 1 of the paper, by `causal_scan`.

    S_i = S_{i-1} + phi(k_i) v_i^T                           (1)  (C, M)
    out_i = phi(q_i)^T S_i                                   (2)  (M,)

A scan goes over the rows of one head, first to last or last to first, with a state ``S``, two numbers ``x, y`` per row,
and three arrays ``a, b, u``:

    S_i = S_{i-1} + b_i (x_i u_i)^T,   out_i = y_i S_i^T a_i

Forward, ``a, b, u`` are ``phi_q, phi_k, v``. With ``G`` for ``d_out`` and ``A_i`` for the gradient of ``S_i``, to which
(2) adds ``phi(q_i) G_i^T`` and which (1) passes on to ``S_{i-1}``:

    A_i = phi(q_i) G_i^T + A_{i+1}                           (3)

The three gradients are scans as well: that of ``phi_q`` runs forward with the transposed state, those of ``phi_k`` and
``v`` backward with ``A``:

    gradient       step    a       b       u       S after the last row
    d_phi_q  (4)    1      G       v       phi_k   S^T
    d_phi_k  (5)   -1      v       G       phi_q   A^T
    d_v      (6)   -1      phi_k   phi_q   G       A

These are ``6 C M`` multiply-adds per row, where ``5 C M`` would do, since ``A`` is made twice: once with the lanes
along ``M`` for (6), and once along ``C`` for (5), which otherwise would be a sum across the lanes for each of its
numbers, and as expensive.

With the denominator there is a column of ones beside ``v``. Beside ``G`` that makes ``e = -G . out``, and ``G`` and
``e`` are divided by the denominator: by ``y`` in (4), by ``x`` in (5) and (6). No array as large as the inputs is made.

Each head is a task, and of a single head each panel, which costs nothing. How the work is cut depends on shapes alone:
the same bits for any number of threads.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.heads import give, side_by_side, table_of, to_write
from linattn_ref.kernels.jit.loops.linear.causal_scan import scan
from linattn_ref.kernels.jit.loops.linear.causal_step import step_heads
from linattn_ref.kernels.jit.loops.simd.reciprocal import OUT_OF_RANGE, POWER
from linattn_ref.kernels.jit.loops.simd.vector import lanes

__all__ = ["backward", "forward", "normalised_backward", "normalised_forward", "step"]

# --- Without the denominator ----------------------------------------------------------------------------------------


def forward(phi_q, phi_k, v, state, *, out=None):
    """The causal product, equations (1) and (2).

    Parameters
    ----------
    phi_q, phi_k, v : ndarray, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    state : ndarray ``(..., C, M)`` or None
        ``S_0``; None is 0. Not written to.
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    state : ndarray ``(..., C, M)``
        ``S_N``.
    """
    phi_q, phi_k, v = side_by_side(phi_q, phi_k, v)
    written = to_write(out, v.shape, v.dtype)
    s = _scan(phi_q, phi_k, v, written, *_start(phi_k, v, state), None)
    return give(out, written), s.reshape(*v.shape[:-2], *s.shape[1:])


def backward(d_out, d_state, phi_q, phi_k, v, state):
    """Gradients of :func:`forward`.

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    d_state : ndarray ``(..., C, M)`` or None
        Gradient of the state that :func:`forward` returned; None is 0.
    phi_q, phi_k, v, state
        What :func:`forward` was given.

    Returns
    -------
    d_phi_q, d_phi_k, d_v, d_state : ndarray
        Shaped like their inputs; ``d_state`` is never None.
    """
    return _backward(d_out, d_state, None, phi_q, phi_k, v, state, None, None)


# --- With the denominator -------------------------------------------------------------------------------------------


def normalised_forward(phi_q, phi_k, v, s, z, eps, *, out=None):
    """Causal linear attention: ``out_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps)``, ``Z`` as ``S`` with ``v = 1``.

    Parameters
    ----------
    phi_q, phi_k, v
        As in :func:`forward`.
    s, z : ndarray ``(..., C, M)``, ``(..., C)``, or None and None
        ``S_0`` and ``Z_0``. Not written to.
    eps : float
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
        0 where the denominator is 0, which is a query that has seen nothing.
    denominator : ndarray ``(..., N)``
        ``eps`` included.
    s, z : ndarray ``(..., C, M)``, ``(..., C)``
        ``S_N`` and ``Z_N``.
    """
    phi_q, phi_k, v = side_by_side(phi_q, phi_k, v)
    (*leading, n, m), c, heads = v.shape, phi_k.shape[-1], math.prod(v.shape[:-2])
    s = np.zeros((heads, c, m), v.dtype) if s is None else s.reshape(heads, c, m)
    z = np.zeros((heads, c), v.dtype) if z is None else z.reshape(heads, c).copy()
    written = to_write(out, v.shape, v.dtype)
    denominator = np.empty((heads, n), v.dtype)
    s = _scan(phi_q, phi_k, v, written, s, (_ones(v),) * 4, ones=(z, v.dtype.type(eps), denominator))
    denominator, s, z = denominator.reshape(*leading, n), s.reshape(*leading, c, m), z.reshape(*leading, c)
    return give(out, written), denominator, s, z


def normalised_backward(d_out, d_s, d_z, phi_q, phi_k, v, s, z, out, denominator):
    """Gradients of :func:`normalised_forward`.

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    d_s, d_z : ndarray ``(..., C, M)``, ``(..., C)``, or None and None
        Gradients of the state that :func:`normalised_forward` returned.
    phi_q, phi_k, v, s, z
        What it was given.
    out, denominator
        What it returned.

    Returns
    -------
    d_phi_q, d_phi_k, d_v, d_s, d_z : ndarray
        As :func:`backward`.
    """
    d_out, share = _shares(d_out, denominator)
    d_out, out = side_by_side(d_out, out)
    e = np.einsum("...nm,...nm->...n", d_out, out, order="C")
    return _backward(d_out, d_s, d_z, phi_q, phi_k, v, s, z, (share, -e.reshape(share.shape)))


def step(phi_q, phi_k, v, s, z, eps):
    """One row of :func:`normalised_forward`: ``(..., C)``, ``(..., C)``, ``(..., M)`` -> ``out (..., M)``.

    ``s (..., C, M)`` and ``z (..., C)`` are brought up to date in place.
    """
    out, whole = np.empty(v.shape, v.dtype), np.ascontiguousarray
    step_heads(whole(phi_q), whole(phi_k), whole(v), s, z, float(eps), out)
    return out


# --- Both -----------------------------------------------------------------------------------------------------------


def _backward(d_out, d_s, d_z, phi_q, phi_k, v, s, z, ones):
    """The scans of the table above; ``ones`` is ``1 / denominator`` and ``e``, or None."""
    d_out, phi_q, phi_k, v = side_by_side(d_out, phi_q, phi_k, v)
    s, a = _start(phi_k, v, s, d_s)  # (heads, C, M)
    s_t, a_t, rows_q, rows_k, rows_v = s.swapaxes(1, 2), a.swapaxes(1, 2), None, None, None  # (heads, M, C)
    if ones is not None:
        x, e = ones  # (heads, N)
        one = np.ones_like(x)
        s_t, a_t = _with_row(s_t, z), _with_row(a_t, d_z)  # (heads, M + 1, C)
        rows_q, rows_k, rows_v = (one, x, e, one), (x, one, one, e), (x, one, one, one)
    d_phi_q, d_phi_k, d_v = np.empty(phi_q.shape, v.dtype), np.empty(phi_k.shape, v.dtype), np.empty(v.shape, v.dtype)
    _scan(d_out, v, phi_k, d_phi_q, s_t, rows_q)  # (4)
    a_t = _scan(v, d_out, phi_q, d_phi_k, a_t, rows_k, step=-1)  # (5)
    a = _scan(phi_k, phi_q, d_out, d_v, a, rows_v, step=-1)  # (6)
    d_state = a.reshape(*v.shape[:-2], *a.shape[1:])
    d_state = (d_state,) if ones is None else (d_state, a_t[:, -1].reshape(d_state.shape[:-1]))
    return d_phi_q, d_phi_k, d_v, *d_state


def _scan(a, b, u, out, s, rows, *, step=1, ones=None):
    """The state after `causal_scan.scan`, from ``s`` on; ``ones`` is ``z, eps, denominator``, ``z`` in and out."""
    heads, m, states = len(s), u.shape[-1], s.copy()
    columns, tasks = m, 1
    if heads == 1:  # a task is a panel
        columns, tasks = lanes(u), -(-m // lanes(u))
    z_end, eps, denominator = (s[:, :0, 0], s.dtype.type(0), s[:, 0, :0]) if ones is None else ones
    z = np.empty((heads, tasks, z_end.shape[1]), s.dtype)  # (heads, tasks, C)
    z[...] = z_end[:, None]
    denominators = np.empty((heads, tasks, denominator.shape[1]), s.dtype)  # each task writes its own, all the same
    scan(heads * tasks, table_of(a, b, u, out), states, step, columns, rows, z, eps, denominators)
    if ones is not None:
        z_end[...], denominator[...] = z[:, 0], denominators[:, 0]
    return states


# --- Arrays in ------------------------------------------------------------------------------------------------------


def _shares(d_out, denominator):
    """``1 / denominator (heads, N)``, contiguous, and ``d_out``, divided by what is left where that is infinite (1)."""
    power, nothing = POWER[denominator.dtype], denominator == 0
    few = (abs(denominator) <= OUT_OF_RANGE / power) & ~nothing
    share = np.divide(1, denominator, out=np.zeros(denominator.shape, denominator.dtype), where=~(nothing | few))
    if few.any():
        share[few] = power
        left = np.where(few, denominator, power.dtype.type(0)) * power
        d_out = d_out / np.where(few, left, power.dtype.type(1))[..., None]
    if nothing.any():
        d_out = np.where(nothing[..., None], d_out.dtype.type(0), d_out)
    return d_out, share.reshape(math.prod(share.shape[:-1]), share.shape[-1])


def _ones(v):
    """``(heads, N)``"""
    ones = np.empty((math.prod(v.shape[:-2]), v.shape[-2]), v.dtype)
    ones.fill(1)  # np.ones is slower: it is Python
    return ones


def _start(phi_k, v, *states):
    """The states ``(heads, C, M)`` to start from, not to be written to."""
    shape = math.prod(v.shape[:-2]), phi_k.shape[-1], v.shape[-1]
    return [np.zeros(shape, v.dtype) if s is None else s.reshape(shape) for s in states]


def _with_row(s, z):
    """``s (heads, M, C)`` and below it ``z (..., C)``, or zeros."""
    shape = len(s), 1, s.shape[2]
    row = np.zeros(shape, s.dtype) if z is None else z.reshape(shape)
    return np.concatenate([s, row], axis=1)
