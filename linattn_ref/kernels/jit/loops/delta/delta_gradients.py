"""What pairs of rows send to queries, keys and gates in the backward pass of the delta product.

With one gate for all channels the gradients of the pairs come multiplied by ``ratio``, and what is left is a product
with a triangle. With a gate per channel ``ratio`` is a Vector for each pair, and again it is made by going from row to
row: the keys of earlier rows fade on their way forward to row ``i``, as in `delta_chunk`; and the gradient of key ``j``
gathers what later rows send while it goes backward, by Horner's rule:

    d_k_j <- g_i * (d_k_j + dP_ij q_i + dA_ij e_i)    for i = T .. j + 1,   then + dP_jj q_j            (21)
"""

from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.simd.triangle import add_transposed, add_triangle
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, load, spread, store
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, add_scaled, load_block, store_block, zero_block
from linattn_ref.kernels.jit.loops.views import columns_from


@once
def add_to_keys(x, chunk, d_p, d_a, column, rows, erases, per_channel):
    """``x_j = ratio_Tj * x_j + sum_i ratio_ij * (dP_ij q_i + dA_ij e_i)`` (21), one Vector of channels."""
    q, e, gate = columns_from(chunk.q, column), columns_from(chunk.e, column), columns_from(chunk.room.gate, column)
    if per_channel:
        for i in range(rows - 1, -1, -1):
            q_i, e_i, g_i = load(q, i), load(e, i), load(gate, i)
            store(x, i, fma(spread(d_p, i, i), q_i, load(x, i)))
            for j in range(i):
                share = fma(spread(d_p, i, j), q_i, load(x, j))
                if erases:
                    share = fma(spread(d_a, i, j), e_i, share)
                store(x, j, share * g_i)
        return
    for row in range(0, rows, ROWS):
        block = add_scaled(zero_block(x), chunk.until, row, 0, load_block(x, row))
        block = add_transposed(block, d_p, row, q, rows)
        if erases:
            block = add_transposed(block, d_a, row, e, rows)
        store_block(x, row, block)


@once
def add_to_rows(values, chunk, column, rows, erases, per_channel):
    """``x_i = c_i * x_i + sum_j dP_ij ratio_ij * k_j`` (19); ``y_i`` with ``-c_i`` and ``dA`` (20).

    With a gate per channel ``shares`` gets what the pairs of rows, and of a row and the state before, are in (22).
    """
    x, y, k = values.x, values.y, columns_from(chunk.k, column)
    if per_channel:
        q, e, gate = columns_from(chunk.q, column), columns_from(chunk.e, column), columns_from(chunk.room.gate, column)
        _add_faded_keys(x, y, values.shares, gate, q, k, e, values.d_p, values.d_a, rows, erases)
        return
    for row in range(0, rows, ROWS):
        block = add_scaled(zero_block(x), chunk.since, row, 0, load_block(x, row))
        store_block(x, row, add_triangle(block, values.d_p, row, k))
        if erases:
            block = add_scaled(zero_block(y), chunk.minus, row, 0, load_block(y, row))
            store_block(y, row, add_triangle(block, values.d_a, row, k))


@inner
def _add_faded_keys(x, y, shares, gate, q, k, e, d_p, d_a, rows, erases):
    """The keys fade in place: those of the chunk are not needed again in these channels, but ``ratio_T * K`` is.

    When ``x_i`` holds the state and the rows up to ``j``, ``q_i * x_i`` is their part in the gate of row ``j + 1``.
    """
    zero, since = broadcast(x.dtype.type(0)), broadcast(x.dtype.type(1))
    for i in range(rows):
        store(shares, i, zero)
    for i in range(rows):
        q_i, e_i, g_i = load(q, i), load(e, i), load(gate, i)
        since = since * g_i
        x_i, y_i = load(x, i) * since, zero - load(y, i) * since
        share = fma(q_i, x_i, load(shares, 0))
        if erases:
            share = fma(e_i, y_i, share)
        store(shares, 0, share)
        for j in range(i):
            k_j = load(k, j) * g_i
            store(k, j, k_j)
            x_i = fma(spread(d_p, i, j), k_j, x_i)
            share = fma(q_i, x_i, load(shares, j + 1))
            if erases:
                y_i = fma(spread(d_a, i, j), k_j, y_i)
                share = fma(e_i, y_i, share)
            store(shares, j + 1, share)
        store(x, i, fma(spread(d_p, i, i), load(k, i), x_i))
        store(y, i, y_i)
