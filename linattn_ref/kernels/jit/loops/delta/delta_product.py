"""The delta rule in Numba, in chunks, at the speed of matrix products.

The formulas are (13)-(22) of `attention.chunked_delta`. A head is a task, and nothing in it depends on the number of
threads. Heads may lie anywhere in memory (`heads`); none is copied but a chunk at a time.

    `delta_chunk`       rows and pairs of a chunk, products of gates
    `delta_state`       the state between chunks
    `delta_forward`     the forward pass
    `delta_backward`    the backward pass; `delta_gradients` what pairs send to queries and keys;
    `delta_log_gate`    the gradient of gates
    `delta_step`        one row, for decoding
    `triangle`          pieces of triangular products and systems of equations

With ``T = CHUNK`` rows per chunk the formulas have ``3 C M + T (C + M)`` multiply-adds per row forward and
``7 C M + 3 T (C + M)`` backward; without ``erase`` a third less. Products of pairs are made of whole Blocks, and half
of ``P, A, dP, dA`` is thrown away. ``linattn-ref bench delta`` says what share of the processor's multiply-adds that
is: with AVX-512 some three fifths forward, and half in both passes. What a chunk and its state need is twice a
first-level cache. Chunks of 16 rows would fit, and took a sixth longer when they were tried: the state is loaded and
stored twice as often. With chunks of 64 rows it is a tenth longer forward: there are more pairs.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.delta.delta_backward import backward_heads
from linattn_ref.kernels.jit.loops.delta.delta_forward import forward_heads
from linattn_ref.kernels.jit.loops.delta.delta_step import step_heads
from linattn_ref.kernels.jit.loops.heads import side_by_side, table_of, zeros_aligned

__all__ = ["backward", "forward", "step"]

NOTHING = {np.dtype(dtype): np.empty(0, dtype) for dtype in (np.float32, np.float64)}


def forward(q, k, v, erase, log_gate, state, beta=None, scale=1.0):
    """A causal product whose state fades and corrects itself.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    erase : ndarray ``(..., N, C)`` or None
        ``e``; None is 0.
    log_gate : ndarray ``(..., N)`` or ``(..., N, C)``, or None
        ``log g <= 0``; -inf forgets everything. None is 0.
    state : ndarray ``(..., C, M)`` or None
        ``S_0``; None is 0. Not written to.
    beta : ndarray ``(..., N)`` or None
        With it, ``erase`` is ``beta k`` and values are ``beta v``, of which no array is made.
    scale : float
        Of ``out``.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    state : ndarray ``(..., C, M)``
        ``S_N``.
    u : ndarray ``(..., N, M)``
        What was written, for :func:`backward`; ``v`` itself where ``erase`` is None.
    """
    q, k, values = side_by_side(q, k, v)
    erase, beta = (erase, None) if beta is None else (k, beta[..., None])
    out, written = np.empty(v.shape, v.dtype), None if erase is None else np.empty(v.shape, v.dtype)
    s = _copy_or_zeros(state, k, v)
    more = _rows(v, erase, beta, _channels(log_gate, v))
    arrays = q, k, values, *more, out, *_rows(v, written)  # kept until it is done
    heads = _heads(s)
    forward_heads(len(heads), table_of(*arrays), heads, float(scale))
    return out, s, v if written is None else written


def backward(d_out, d_state, q, k, v, erase, log_gate, state, u):
    """Gradients of :func:`forward`.

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    d_state : ndarray ``(..., C, M)`` or None
        Gradient of the state that :func:`forward` returned; None is 0.
    q, k, v, erase, log_gate, state
        What :func:`forward` was given.
    u : ndarray ``(..., N, M)``
        What it returned.

    Returns
    -------
    d_q, d_k, d_v, d_erase, d_log_gate, d_state : ndarray
        Shaped like their inputs; ``d_erase`` and ``d_log_gate`` are None where the input is, ``d_state`` never is.
    """
    d_out, q, k, u = side_by_side(d_out, q, k, u)
    d_q, d_k, d_v, d_erase, d_log_gate = (
        None if x is None else np.empty(x.shape, x.dtype) for x in (q, k, v, erase, log_gate)
    )
    s, d_s = _copy_or_zeros(state, k, v), _copy_or_zeros(d_state, k, v)
    inputs = q, k, *_rows(v, erase, _channels(log_gate, v)), d_out, u
    gradients = d_q, d_k, *_rows(v, d_erase, _channels(d_log_gate, v)), d_v
    heads = _heads(s)
    backward_heads(len(heads), table_of(*inputs, *gradients), heads, _heads(d_s))
    return d_q, d_k, d_v, d_erase, d_log_gate, d_s


def step(q, k, v, erase, log_gate, s, after=None, *, beta=None, scale=1.0, normalise=False):
    """One row, (1)-(4) of the rule: ``q, k, erase (..., C)``, ``v (..., M)`` -> ``out (..., M)``.

    ``erase`` and ``log_gate (...)`` or ``(..., C)`` may be None. The state ``s (..., C, M)`` becomes ``after``, or is
    brought up to date in place. With ``beta (...)``, ``erase`` is ``beta k`` and values are ``beta v``; ``normalise``
    scales queries and keys to unit length first. Where a gate or ``beta`` is out of range, None, and nothing is done.
    """
    after = s if after is None else after
    whole = after if after.flags.c_contiguous else np.empty(after.shape, after.dtype)
    out, none, (c, m) = np.empty(v.shape, v.dtype), NOTHING[v.dtype], s.shape[-2:]
    erase = none if erase is None else erase.ravel()  # one by one: a loop in Python would take as long as a head
    beta = none if beta is None else beta.ravel()
    log_gate = none if log_gate is None else log_gate.ravel()
    q, k, v, scale = q.ravel(), k.ravel(), v.ravel(), float(scale)
    fine = step_heads(q, k, v, erase, beta, log_gate, s.ravel(), whole.ravel(), out.ravel(), c, m, scale, normalise)
    if fine and whole is not after:
        after[...] = whole
    return out if fine else None


# --- Arrays in ------------------------------------------------------------------------------------------------------


def _channels(log_gate, v):
    """``(..., N, 1)`` where there is one gate for all channels; a view."""
    return log_gate[..., None] if log_gate is not None and log_gate.ndim < v.ndim else log_gate


def _rows(v, *arrays):
    """The arrays `side_by_side`, without columns where there is none."""
    nothing = np.empty((*v.shape[:-1], 0), v.dtype)
    return side_by_side(*(nothing if x is None else x for x in arrays))


def _copy_or_zeros(state, k, v):
    """Contiguous, to be written to, at once or by steps."""
    s = zeros_aligned((*v.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)
    if state is not None:
        s[...] = state
    return s


def _heads(s):
    return s.reshape(math.prod(s.shape[:-2]), *s.shape[-2:])
