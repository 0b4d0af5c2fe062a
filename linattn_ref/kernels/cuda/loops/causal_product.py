"""The causal product of linear attention on a GPU: `linattn_ref.kernels.reference.causal_product` by `causal_chunks`.

The formulas are the reference's. Algorithm 1 goes from row to row, which keeps one thread a number of the state busy,
and a GPU wants a hundred thousand. So the rows are cut into chunks: what each adds to the state, and later each chunk's
output, is a matter of matrix products that do not wait for one another; in between, a scan over the chunks makes states
out of sums. It is the only part that takes turns, and has ``TILE`` times fewer of them than Algorithm 1.

Forward, ``a, b, u`` are ``phi_q, phi_k, v``. The three gradients are products of the same form, with ``G`` for
``d_out``, and with the two states of the reference, ``S`` of the rows before and ``A`` of the rows after::

    gradient       state   a       b       u       weight of b's rows, factor of the result
    d_phi_q  (4)   S^T     G       v       phi_k   w, 1
    d_phi_k  (5)   A^T     v       G       phi_q   1, w
    d_v      (6)   A       phi_k   phi_q   G       1, w

With the denominator there is a column of ones beside ``v``. ``G`` is divided by the denominator, into a new array: the
reciprocal of a small one would be infinite where the quotient is not. Beside it the column makes ``e = -G . out``.

The states before all chunks are kept while a function runs, ``N C M / TILE`` numbers a head, as many as ``phi_q`` has
where ``M = TILE``. Nothing is added up in an order that could change from run to run.

Arrays may be NumPy's, which are copied to the GPU and back, or a GPU library's (`arrays`). Those of bfloat16 and
float16 go to `half_causal_product`: the same on tensor cores, without gates and weights, and with float32 states.

References
----------
Yang et al. (2024), "Gated linear attention transformers with hardware-efficient training", sections 3.3
and 4.2.
"""

import math
from typing import Any, NamedTuple

from linattn_ref.kernels.cuda.loops import causal_chunks as chunks
from linattn_ref.kernels.cuda.loops import causal_states as states_by_chunk
from linattn_ref.kernels.cuda.loops import half_causal_product
from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.loops.causal_product_plain import backward_by_row, forward_by_row
from linattn_ref.kernels.cuda.loops.causal_step import step
from linattn_ref.kernels.cuda.loops.gate_gradient import gate_gradient
from linattn_ref.kernels.cuda.loops.half_words import format_of
from linattn_ref.kernels.cuda.loops.rows import divided_rows, dot_rows, filled, scale_rows
from linattn_ref.kernels.cuda.loops.tile import BLOCK, THREADS, tiles

__all__ = [
    "backward",
    "backward_by_row",
    "forward",
    "forward_by_row",
    "normalised_backward",
    "normalised_forward",
    "step",
]


# --- Without the denominator ----------------------------------------------------------------------------------------


def forward(phi_q, phi_k, v, gate, weight, state):
    """The causal product; arguments and results are those of the reference.

    Parameters
    ----------
    phi_q, phi_k, v : array, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    gate, weight : array ``(..., N)`` or None
        ``g`` and ``w``; None is 1 everywhere.
    state : array ``(..., C, M)`` or None
        ``S_0``; None is 0. Not written to.

    Returns
    -------
    out : array ``(..., N, M)``
    state : array ``(..., C, M)``
        ``S_N``.
    """
    if format_of(v):
        return half_causal_product.forward(phi_q, phi_k, v, gate, weight, state)
    call = Call(v.shape[:-2], phi_q=phi_q, phi_k=phi_k, v=v, gate=gate, weight=weight, state=state)
    out, _, s, _ = forward_of_heads(call, phi_q, phi_k, v, gate, weight, state, None, None)
    return call.results(out, s)


def backward(d_out, d_state, phi_q, phi_k, v, gate, weight, state):
    """Gradients of :func:`forward`.

    Parameters
    ----------
    d_out : array ``(..., N, M)``
    d_state : array ``(..., C, M)`` or None
        Gradient of the state that :func:`forward` returned; None is 0.
    phi_q, phi_k, v, gate, weight, state
        What :func:`forward` was given.

    Returns
    -------
    d_phi_q, d_phi_k, d_v, d_gate, d_weight, d_state : array
        Shaped like their inputs; ``d_gate`` and ``d_weight`` are None where the input is, ``d_state`` never is.
    """
    if format_of(v):
        return half_causal_product.backward(d_out, d_state, phi_q, phi_k, v, gate, weight, state)
    arrays = {"phi_q": phi_q, "phi_k": phi_k, "v": v, "gate": gate, "weight": weight, "state": state}
    call = Call(v.shape[:-2], d_out=d_out, d_state=d_state, **arrays)
    g = call.flat(d_out)
    *gradients, d_s, _ = backward_of_heads(call, g, d_state, None, phi_q, phi_k, v, gate, weight, state, None, None)
    return call.results(*gradients, d_s)


# --- With the denominator -------------------------------------------------------------------------------------------


def normalised_forward(phi_q, phi_k, v, gate, weight, s, z, eps):
    """Causal linear attention: ``out_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps)``, ``Z`` as ``S`` with ``v = 1``.

    Parameters
    ----------
    phi_q, phi_k, v, gate, weight
        As in :func:`forward`.
    s, z : array ``(..., C, M)``, ``(..., C)``, or None and None
        ``S_0`` and ``Z_0``. Not written to.
    eps : float

    Returns
    -------
    out : array ``(..., N, M)``
        0 where the denominator is 0, which is a query that has seen nothing.
    denominator : array ``(..., N)``
        ``eps`` included.
    s, z : array ``(..., C, M)``, ``(..., C)``
        ``S_N`` and ``Z_N``.
    """
    if format_of(v):
        return half_causal_product.normalised_forward(phi_q, phi_k, v, gate, weight, s, z, eps)
    call = Call(v.shape[:-2], phi_q=phi_q, phi_k=phi_k, v=v, gate=gate, weight=weight, s=s, z=z)
    return call.results(*forward_of_heads(call, phi_q, phi_k, v, gate, weight, s, z, eps))


def normalised_backward(d_out, d_s, d_z, phi_q, phi_k, v, gate, weight, s, z, out, denominator):
    """Gradients of :func:`normalised_forward`.

    Parameters
    ----------
    d_out : array ``(..., N, M)``
    d_s, d_z : array ``(..., C, M)``, ``(..., C)``, or None and None
        Gradients of the state that :func:`normalised_forward` returned.
    phi_q, phi_k, v, gate, weight, s, z
        What it was given.
    out, denominator
        What it returned.

    Returns
    -------
    d_phi_q, d_phi_k, d_v, d_gate, d_weight, d_s, d_z : array
        As :func:`backward`.
    """
    if format_of(v):
        rows = phi_q, phi_k, v, gate, weight
        return half_causal_product.normalised_backward(d_out, d_s, d_z, *rows, s, z, out, denominator)
    arrays = {"phi_q": phi_q, "phi_k": phi_k, "v": v, "gate": gate, "weight": weight, "s": s, "z": z}
    call = Call(v.shape[:-2], d_out=d_out, d_s=d_s, d_z=d_z, out=out, denominator=denominator, **arrays)
    g = divided_rows(call, call.flat(d_out), call.flat(denominator, axes=1))  # (heads, N, M)
    e = dot_rows(call, g, call.flat(out), sign=-1)  # (heads, N)
    return call.results(*backward_of_heads(call, g, d_s, d_z, phi_q, phi_k, v, gate, weight, s, z, e))


# --- Both -----------------------------------------------------------------------------------------------------------


def forward_of_heads(call, phi_q, phi_k, v, gate, weight, s, z, eps):
    """``out, denominator, s, z``; there is a denominator if ``eps`` is not None."""
    dtype, normalised = dtype_of(v), eps is not None
    phi_q, phi_k, v = call.flat(phi_q), call.flat(phi_k), call.flat(v)
    n, m = v.shape[1:]
    one = filled(call, (n,), dtype, 1)
    gates = products_of_gates(call, gate, one)
    weight = one if weight is None else call.flat(weight, axes=1)
    states, z_states, s, z = states_of_chunks(call, phi_k, v, weight, gates, one, s, z)
    out, denominator = call.empty((n, m), dtype), call.empty((n,), dtype)
    rest = gates.gate, gates.since_start, states, z_states, dtype.type(eps or 0), out, denominator
    flags = gate is not None, normalised
    grid = call.heads * tiles(n), tiles(m)
    call.launch(chunks.forward, grid, BLOCK, phi_q, phi_k, v, weight, *rest, *flags)
    return out, denominator, s, z


def backward_of_heads(call, g, d_s, d_z, phi_q, phi_k, v, gate, weight, s, z, e):
    """The products of the table above; ``g (heads, N, M)`` is ``G``, and without a denominator ``e`` is None."""
    dtype, gated, weighted = dtype_of(v), gate is not None, weight is not None
    phi_q, phi_k, v = call.flat(phi_q), call.flat(phi_k), call.flat(v)
    one, zero = filled(call, v.shape[1:2], dtype, 1), filled(call, v.shape[1:2], dtype, 0)
    e, v_beside = (zero, zero) if e is None else (e, one)
    gates = products_of_gates(call, gate, one)
    w = call.flat(weight, axes=1) if weighted else one
    states, z_states, _, _ = states_of_chunks(call, phi_k, v, w, gates, one, s, z)
    later, z_later, d_s, d_z = states_of_chunks(call, phi_q, g, one, gates, e, d_s, d_z, backwards=True)
    d_phi_q, d_phi_k, d_v = (call.empty(x.shape[1:], dtype) for x in (phi_q, phi_k, v))

    def product(a, b, u, a_beside, b_beside, weight, factor, decay, states, z, out, *, backwards, transposed):
        arrays = a, b, u, a_beside, b_beside, weight, factor, gates.gate, decay, states, z, out
        grid = call.heads * tiles(out.shape[1]), tiles(out.shape[2])
        call.launch(chunks.gradient, grid, BLOCK, *arrays, gated, backwards, transposed)

    since, until = gates.since_start, gates.until_end
    product(g, v, phi_k, e, v_beside, w, one, since, states, z_states, d_phi_q, backwards=False, transposed=True)
    product(v, g, phi_q, v_beside, e, one, one, until, later, z_later, d_phi_k, backwards=True, transposed=True)
    product(phi_k, phi_q, g, zero, zero, one, w, until, later, z_later, d_v, backwards=True, transposed=False)
    d_gate, d_weight = None, None
    if gated:
        rows = phi_q, phi_k, g, v, gates.gate, one, e, v_beside, w
        d_gate = gate_gradient(call, *rows, states, z_states, later, z_later)  # (8)
    if weighted:
        d_weight = dot_rows(call, phi_k, d_phi_k)  # (7)
        scale_rows(call, d_phi_k, w)  # (5)
    return d_phi_q, d_phi_k, d_v, d_gate, d_weight, d_s, d_z


class Gates(NamedTuple):
    """Products of the gates within each chunk; all of them 1 without gates."""

    gate: Any  # (heads, N)
    since_start: Any  # (heads, N), g_1 ... g_i of the chunk
    until_end: Any  # (heads, N), g_{i+1} ... g_T
    whole: Any  # (heads, chunks), g_1 ... g_T


def products_of_gates(call, gate, one):
    count = tiles(one.shape[1])
    if gate is None:
        return Gates(one, one, one, filled(call, (count,), dtype_of(one), 1))
    gates = Gates(call.flat(gate, axes=1), *(call.empty(one.shape[1:], dtype_of(one)) for _ in range(2)), None)
    gates = gates._replace(whole=call.empty((count,), dtype_of(one)))
    call.launch(states_by_chunk.products_of_gates, (-(-call.heads * count // THREADS),), (THREADS,), *gates)
    return gates


def states_of_chunks(call, b, u, weight, gates, beside, s, z, *, backwards=False):
    """The states before each chunk ``(heads, chunks, C, M)`` and ``(heads, chunks, C)``, and those after the last."""
    dtype, count, width, value_width = dtype_of(b), tiles(b.shape[1]), b.shape[2], u.shape[2]
    states, z_states = call.empty((count, width, value_width), dtype), call.empty((count, width), dtype)
    decay = gates.since_start if backwards else gates.until_end
    grid = call.heads * count, tiles(width), tiles(value_width)
    call.launch(states_by_chunk.sums, grid, BLOCK, b, u, weight, decay, beside, states, z_states)
    ends = []
    for x, start in ((states, s), (z_states, z)):
        shape, size = x.shape[2:], math.prod(x.shape[2:])
        start = filled(call, (size,), dtype, 0) if start is None else call.flat(start, axes=len(shape))
        end = call.empty(shape, dtype)
        views = start.reshape((call.heads, size)), end.reshape((call.heads, size))
        grid = (call.heads * -(-size // THREADS),)
        flat = x.reshape((call.heads, count, size))
        call.launch(states_by_chunk.scan, grid, (THREADS,), flat, gates.whole, *views, backwards)
        ends.append(end)
    return states, z_states, *ends
