"""A causal product whose state fades and corrects itself, on a GPU.

The formulas are (13)-(22) of `attention.chunked_delta`, with chunks of ``TILE`` rows. What a chunk is before any state,
its faded rows and pairs, takes no turns (`delta_rows`), nor does what it reads once the states are there, ``out`` and
all gradients (`delta_chunks`). In between a loop over the chunks carries the state. Where nothing is erased it is a
scan of sums; else each chunk needs the state for what it writes, ``U`` forward and ``R`` backward, and a block for each
``TILE`` columns of a head goes from chunk to chunk.

    forward     faded rows, P, A  ->  U, states  ->  out
    backward    faded rows, P, A  ->  states from U;   P^T G, (c * Q)^T G  ->  R, dS' of each chunk  ->  gradients

Besides inputs and results, a call holds ``N (4 C + 2 TILE)`` numbers per head for the first part and ``N C M / TILE``
for the states before all chunks, backward two times. With gates the backward pass holds ``N (3 C + 2 TILE)`` numbers
more, what rows read of states alone and the gradients of pairs, which (22) needs by themselves. Every sum has one
order.

Arrays are of float32 or float64, NumPy's, which are copied to the GPU and back, or a GPU library's (`arrays`).

References
----------
Yang et al. (2024), "Parallelizing linear transformers with the delta rule over sequence length".
"""

from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.loops.delta import delta_chunks, delta_rows
from linattn_ref.kernels.cuda.loops.delta.delta_step import step
from linattn_ref.kernels.cuda.loops.linear import causal_states
from linattn_ref.kernels.cuda.loops.rows import copy_or_zeros, dot_rows
from linattn_ref.kernels.cuda.loops.tile import BLOCK, THREADS, TILE, tiles

__all__ = ["backward", "forward", "step"]


def forward(q, k, v, erase, log_gate, state):
    """A causal product whose state fades and corrects itself.

    Parameters
    ----------
    q, k, v : array, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    erase : array ``(..., N, C)`` or None
        ``e``; None is 0.
    log_gate : array ``(..., N)`` or ``(..., N, C)``, or None
        ``log g <= 0``; -inf forgets everything. None is 0.
    state : array ``(..., C, M)`` or None
        ``S_0``; None is 0. Not written to.

    Returns
    -------
    out : array ``(..., N, M)``
    state : array ``(..., C, M)``
        ``S_N``.
    u : array ``(..., N, M)``
        What was written, for :func:`backward`; ``v`` itself where ``erase`` is None.
    """
    call, given = Call(v.shape[:-2], q=q, k=k, v=v, erase=erase, log_gate=log_gate, state=state), v
    q, k, v, e, log_gate = _flat(call, q, k, v, erase, log_gate)
    gate, q_since, e_since, k_until, whole = delta_rows.faded_rows(call, q, k, e, log_gate)
    p, minus_a = delta_rows.pairs_of_rows(call, q, k, e, gate)
    s = copy_or_zeros(call, state, k, v)
    u = v
    if e is None:
        states = _sums(call, k_until, u)
        _fade_on(call, states, whole, s)
    else:
        states = call.full((whole.shape[1], *s.shape[1:]), dtype_of(v), 0)
        u = _correct(call, v, e_since, k_until, minus_a, whole, states, s)  # (13), (15)
    out = _read(call, q_since, p, u, states)  # (14)
    results = call.results(out, s, u)
    return results if e is not None else (*results[:2], given)


def backward(d_out, d_state, q, k, v, erase, log_gate, state, u):
    """Gradients of :func:`forward`.

    Parameters
    ----------
    d_out : array ``(..., N, M)``
    d_state : array ``(..., C, M)`` or None
        Gradient of the state that :func:`forward` returned; None is 0.
    q, k, v, erase, log_gate, state
        What :func:`forward` was given.
    u : array ``(..., N, M)``
        What it returned.

    Returns
    -------
    d_q, d_k, d_v, d_erase, d_log_gate, d_state : array
        Shaped like their inputs; ``d_erase`` and ``d_log_gate`` are None where the input is, ``d_state`` never is.
    """
    arrays = {"q": q, "k": k, "v": v, "erase": erase, "log_gate": log_gate, "state": state, "u": u}
    call = Call(v.shape[:-2], d_out=d_out, d_state=d_state, **arrays)
    channels = log_gate is not None and log_gate.ndim == k.ndim
    q, k, u, e, log_gate = _flat(call, q, k, u, erase, log_gate)
    g = call.flat(d_out)
    gate, q_since, e_since, k_until, whole = delta_rows.faded_rows(call, q, k, e, log_gate)
    p, minus_a = delta_rows.pairs_of_rows(call, q, k, e, gate)
    states, s = _sums(call, k_until, u), copy_or_zeros(call, state, k, u)
    _fade_on(call, states, whole, s)
    later, d_s = _sums(call, q_since, g), copy_or_zeros(call, d_state, k, u)
    if e is None:
        _fade_on(call, later, whole, d_s, backwards=True)  # (18)
        r = _read(call, k_until, p, g, later, transposed=True)  # (16)
    else:
        r = _read(call, k_until, p, g, later, transposed=True, reads_state=False)  # P^T G
        r = _correct(call, r, k_until, e_since, minus_a, whole, later, d_s, backwards=True)  # (16), (18)

    keeps = log_gate is not None
    d_q, of_q = _gradient(call, g, u, states, k, gate, keeps=keeps)  # (19)
    d_k, of_k = _gradient(call, u, g, later, q, gate, keeps=keeps, backwards=True)
    d_e = of_e = None
    if e is not None:
        d_e, of_e = _gradient(call, r, u, states, k, gate, sign=-1, keeps=keeps)  # (20)
        _gradient(call, u, r, later, e, gate, sign=-1, backwards=True, out=d_k)  # (21)
    d_log_gate = None
    if log_gate is not None:
        ungated = call.full(u.shape[1:], dtype_of(u), 1)
        d_pairs = delta_rows.pairs_of_rows(call, g, u, None if e is None else r, ungated)
        d_log_gate = _gate_gradient(call, (q, k, e), (of_q, of_k, of_e), d_pairs, gate, states, later)  # (22)
        if not channels:  # one gate serves them all
            d_log_gate = dot_rows(call, d_log_gate, call.full(k.shape[1:], dtype_of(k), 1))
    return call.results(d_q, d_k, r, d_e, d_log_gate, d_s)


# --- Launches -------------------------------------------------------------------------------------------------------


def _correct(call, x, a, b, pairs, whole, states, s, *, backwards=False):
    """``u``; ``states`` and ``s`` are brought up to date."""
    u = call.empty(x.shape[1:], dtype_of(x))
    grid = call.heads, tiles(x.shape[2])
    call.launch(delta_chunks.correct, grid, BLOCK, x, a, b, pairs, whole, states, s, u, backwards)
    return u


def _fade_on(call, states, whole, s, *, backwards=False):
    grid = (call.heads * -(-s.shape[1] * s.shape[2] // THREADS),)
    call.launch(delta_chunks.fade_on, grid, (THREADS,), states, whole, s, backwards)


def _sums(call, b, u):
    """``b^T u`` of each chunk: ``(heads, chunks, C, M)``."""
    dtype, count = dtype_of(b), tiles(b.shape[1])
    sums, one = call.empty((count, b.shape[2], u.shape[2]), dtype), call.full(b.shape[1:2], dtype, 1)
    z = call.empty((count, b.shape[2]), dtype)  # of a denominator, which there is none of
    grid = call.heads * count, tiles(b.shape[2]), tiles(u.shape[2])
    call.launch(causal_states.sums, grid, BLOCK, b, u, one, sums, z)
    return sums


def _read(call, a, pairs, u, states, *, reads_state=True, transposed=False):
    out = call.empty(u.shape[1:], dtype_of(u))
    grid = call.heads * states.shape[1], tiles(out.shape[2])
    call.launch(delta_chunks.read, grid, BLOCK, a, pairs, u, states, out, reads_state, transposed)
    return out


def _gradient(call, g, u, states, b, gate, *, sign=1, keeps=False, backwards=False, out=None):
    """What :func:`delta_chunks.gradient` writes to a new array, or adds to ``out``; and what it keeps, or None."""
    adds, dtype = out is not None, dtype_of(g)
    out = out if adds else call.empty(b.shape[1:], dtype)
    of_state = call.empty(b.shape[1:], dtype) if keeps else None
    grid, options = (call.heads * states.shape[1], tiles(b.shape[2])), (dtype.type(sign), adds, backwards, keeps)
    written = out, of_state if keeps else out
    call.launch(delta_chunks.gradient, grid, BLOCK, g, u, states, b, gate, *written, *options)
    return out, of_state


def _gate_gradient(call, rows, of_states, d_pairs, gate, states, later):
    """One number per row and channel."""
    (q, k, e), (of_q, of_k, of_e), (d_p, d_a), erases = rows, of_states, d_pairs, rows[2] is not None
    d_log_gate = call.empty(k.shape[1:], dtype_of(k))
    given = (e, of_e, d_a) if erases else (q, of_q, d_p)  # what is not there is not read
    arrays = q, k, given[0], of_q, of_k, given[1], d_p, given[2], gate, states, later, d_log_gate
    grid = call.heads * states.shape[1], tiles(k.shape[2])
    call.launch(delta_rows.gate_gradient, grid, (TILE,), *arrays, erases)
    return d_log_gate


# --- Arrays in ------------------------------------------------------------------------------------------------------


def _flat(call, q, k, v, erase, log_gate):
    """Each as ``(heads, N, width)``, a gate for all channels with a width of 1; None as None."""
    e = None if erase is None else call.flat(erase)
    if log_gate is not None and log_gate.ndim < k.ndim:
        log_gate = call.flat(log_gate, axes=1).reshape((call.heads, k.shape[-2], 1))
    elif log_gate is not None:
        log_gate = call.flat(log_gate)
    return call.flat(q), call.flat(k), call.flat(v), e, log_gate
