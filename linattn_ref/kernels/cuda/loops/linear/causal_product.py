"""The causal product of linear attention on a GPU, by `causal_chunks`.

    S_i = S_{i-1} + phi(k_i) v_i^T                           (1)  (C, M)
    out_i = phi(q_i)^T S_i                                   (2)  (M,)

Algorithm 1 of the paper goes from row to row, which keeps one thread per number of the state busy, and a GPU wants a
hundred thousand. So the rows are cut into chunks: what each adds to the state, and later each chunk's output, is a
matter of matrix products that do not wait for one another; in between, a scan over the chunks makes states out of sums.
It is the only part that takes turns, and has ``TILE`` times fewer of them than Algorithm 1.

Forward, ``a, b, u`` are ``phi_q, phi_k, v``. The three gradients are products of the same form, with ``G`` for
``d_out``, and with two states, ``S`` of the rows before and of the rows after

    A_i = phi(q_i) G_i^T + A_{i+1}                           (3)

    gradient       state   a       b       u
    d_phi_q  (4)   S^T     G       v       phi_k
    d_phi_k  (5)   A^T     v       G       phi_q
    d_v      (6)   A       phi_k   phi_q   G

With the denominator there is a column of ones beside ``v``. ``G`` is divided by the denominator, into a new array: the
reciprocal of a small one would be infinite where the quotient is not. Beside it the column makes ``e = -G . out``.

The states before all chunks are kept while a function runs, ``N C M / TILE`` numbers per head, as many as ``phi_q`` has
where ``M = TILE``. Nothing is added up in an order that could change from run to run.

Arrays may be NumPy's, which are copied to the GPU and back, or a GPU library's (`arrays`). Those of bfloat16 and
float16 go to `half_causal_product`: the same on tensor cores, with float32 states.

References
----------
Yang et al. (2024), "Gated linear attention transformers with hardware-efficient training", sections 3.3
and 4.2.
"""

from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.loops.half_words import format_of
from linattn_ref.kernels.cuda.loops.linear import causal_chunks as chunks
from linattn_ref.kernels.cuda.loops.linear import causal_states as states_by_chunk
from linattn_ref.kernels.cuda.loops.linear import half_causal_product
from linattn_ref.kernels.cuda.loops.linear.causal_product_plain import backward_by_row, forward_by_row
from linattn_ref.kernels.cuda.loops.linear.causal_step import step
from linattn_ref.kernels.cuda.loops.rows import divided_rows, dot_rows
from linattn_ref.kernels.cuda.loops.tile import BLOCK, tiles

__all__ = ["backward", "backward_by_row", "forward", "forward_by_row", "step"]
__all__ += ["normalised_backward", "normalised_forward"]

# --- Without the denominator ----------------------------------------------------------------------------------------


def forward(phi_q, phi_k, v, state):
    """The causal product, equations (1) and (2).

    Parameters
    ----------
    phi_q, phi_k, v : array, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    state : array ``(..., C, M)`` or None
        ``S_0``; None is 0. Not written to.

    Returns
    -------
    out : array ``(..., N, M)``
    state : array ``(..., C, M)``
        ``S_N``.
    """
    if format_of(v):
        return half_causal_product.forward(phi_q, phi_k, v, state)
    call = Call(v.shape[:-2], phi_q=phi_q, phi_k=phi_k, v=v, state=state)
    out, _, s, _ = forward_of_heads(call, phi_q, phi_k, v, state, None, None)
    return call.results(out, s)


def backward(d_out, d_state, phi_q, phi_k, v, state):
    """Gradients of :func:`forward`.

    Parameters
    ----------
    d_out : array ``(..., N, M)``
    d_state : array ``(..., C, M)`` or None
        Gradient of the state that :func:`forward` returned; None is 0.
    phi_q, phi_k, v, state
        What :func:`forward` was given.

    Returns
    -------
    d_phi_q, d_phi_k, d_v, d_state : array
        Shaped like their inputs; ``d_state`` is never None.
    """
    if format_of(v):
        return half_causal_product.backward(d_out, d_state, phi_q, phi_k, v, state)
    call = Call(v.shape[:-2], d_out=d_out, d_state=d_state, phi_q=phi_q, phi_k=phi_k, v=v, state=state)
    g = call.flat(d_out)
    *gradients, d_s, _ = backward_of_heads(call, g, d_state, None, phi_q, phi_k, v, state, None, None)
    return call.results(*gradients, d_s)


# --- With the denominator -------------------------------------------------------------------------------------------


def normalised_forward(phi_q, phi_k, v, s, z, eps):
    """Causal linear attention: ``out_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps)``, ``Z`` as ``S`` with ``v = 1``.

    Parameters
    ----------
    phi_q, phi_k, v
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
        return half_causal_product.normalised_forward(phi_q, phi_k, v, s, z, eps)
    call = Call(v.shape[:-2], phi_q=phi_q, phi_k=phi_k, v=v, s=s, z=z)
    return call.results(*forward_of_heads(call, phi_q, phi_k, v, s, z, eps))


def normalised_backward(d_out, d_s, d_z, phi_q, phi_k, v, s, z, out, denominator):
    """Gradients of :func:`normalised_forward`.

    Parameters
    ----------
    d_out : array ``(..., N, M)``
    d_s, d_z : array ``(..., C, M)``, ``(..., C)``, or None and None
        Gradients of the state that :func:`normalised_forward` returned.
    phi_q, phi_k, v, s, z
        What it was given.
    out, denominator
        What it returned.

    Returns
    -------
    d_phi_q, d_phi_k, d_v, d_s, d_z : array
        As :func:`backward`.
    """
    if format_of(v):
        return half_causal_product.normalised_backward(d_out, d_s, d_z, phi_q, phi_k, v, s, z, out, denominator)
    arrays = {"phi_q": phi_q, "phi_k": phi_k, "v": v, "s": s, "z": z}
    call = Call(v.shape[:-2], d_out=d_out, d_s=d_s, d_z=d_z, out=out, denominator=denominator, **arrays)
    g = divided_rows(call, call.flat(d_out), call.flat(denominator, axes=1))  # (heads, N, M)
    e = dot_rows(call, g, call.flat(out), sign=-1)  # (heads, N)
    return call.results(*backward_of_heads(call, g, d_s, d_z, phi_q, phi_k, v, s, z, e))


# --- Both -----------------------------------------------------------------------------------------------------------


def forward_of_heads(call, phi_q, phi_k, v, s, z, eps):
    """``out, denominator, s, z``; there is a denominator if ``eps`` is not None."""
    dtype, normalised = dtype_of(v), eps is not None
    phi_q, phi_k, v = call.flat(phi_q), call.flat(phi_k), call.flat(v)
    n, m = v.shape[1:]
    states, z_states, s, z = states_of_chunks(call, phi_k, v, call.full((n,), dtype, 1), s, z)
    out, denominator = call.empty((n, m), dtype), call.empty((n,), dtype)
    rest = states, z_states, dtype.type(eps or 0), out, denominator, normalised
    call.launch(chunks.forward, (call.heads * tiles(n), tiles(m)), BLOCK, phi_q, phi_k, v, *rest)
    return out, denominator, s, z


def backward_of_heads(call, g, d_s, d_z, phi_q, phi_k, v, s, z, e):
    """The products of the table above; ``g (heads, N, M)`` is ``G``, and without a denominator ``e`` is None."""
    dtype = dtype_of(v)
    phi_q, phi_k, v = call.flat(phi_q), call.flat(phi_k), call.flat(v)
    zero = call.full(v.shape[1:2], dtype, 0)
    e, v_beside = (zero, zero) if e is None else (e, call.full(v.shape[1:2], dtype, 1))
    states, z_states, _, _ = states_of_chunks(call, phi_k, v, v_beside, s, z)
    later, z_later, d_s, d_z = states_of_chunks(call, phi_q, g, e, d_s, d_z, backwards=True)

    def product(a, b, u, a_beside, b_beside, states, z, *, backwards, transposed):
        out = call.empty(u.shape[1:], dtype)
        grid = call.heads * tiles(out.shape[1]), tiles(out.shape[2])
        arrays = a, b, u, a_beside, b_beside, states, z, out
        call.launch(chunks.gradient, grid, BLOCK, *arrays, backwards, transposed)
        return out

    d_phi_q = product(g, v, phi_k, e, v_beside, states, z_states, backwards=False, transposed=True)  # (4)
    d_phi_k = product(v, g, phi_q, v_beside, e, later, z_later, backwards=True, transposed=True)  # (5)
    no_z = zero.reshape((*zero.shape, 1))  # its numbers times 0 might be NaN
    d_v = product(phi_k, phi_q, g, zero, zero, later, no_z, backwards=True, transposed=False)  # (6)
    return d_phi_q, d_phi_k, d_v, d_s, d_z


def states_of_chunks(call, b, u, beside, s, z, *, backwards=False):
    """The states before each chunk ``(heads, chunks, C, M)`` and ``(heads, chunks, C)``, and those after the last."""
    dtype, count, width, value_width = dtype_of(b), tiles(b.shape[1]), b.shape[2], u.shape[2]
    states, z_states = call.empty((count, width, value_width), dtype), call.empty((count, width), dtype)
    grid = call.heads * count, tiles(width), tiles(value_width)
    call.launch(states_by_chunk.sums, grid, BLOCK, b, u, beside, states, z_states)
    return states, z_states, *states_by_chunk.scanned(call, states, z_states, s, z, backwards)
