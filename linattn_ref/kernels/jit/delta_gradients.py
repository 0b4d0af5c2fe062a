"""What pairs of rows send to queries, keys and gates in the backward pass of the delta product.

With one gate for all channels the gradients of the pairs come multiplied by ``ratio``, and what is left is a product
with a triangle. With a gate a channel ``ratio`` is a Vector for each pair, and again it is made by going from row to
row: the keys of earlier rows fade on their way forward to row ``i``, as in `delta_chunk`; and the gradient of key ``j``
gathers what later rows send while it goes backward, by Horner's rule:

    d_k_j <- g_i * (d_k_j + dP_ij q_i + dA_ij e_i)    for i = T .. j + 1,   then + dP_jj q_j            (21)
"""

import math

import numpy as np
from numba import njit

from linattn_ref.kernels.jit.triangle import add_terms
from linattn_ref.kernels.jit.vector import broadcast, fma, keep_between, lanes, load, spread, store, total
from linattn_ref.kernels.jit.vector_block import ROWS, add_scaled, load_block, store_block, zero_block
from linattn_ref.kernels.jit.views import columns_from, load_row, store_row


@njit
def add_to_keys(x, chunk, d_p, d_a, column, rows, erases, per_channel):
    """``x_j = ratio_Tj * x_j + sum_i ratio_ij * (dP_ij q_i + dA_ij e_i)`` (21), one Vector of channels."""
    q, e, gate = columns_from(chunk.q, column), columns_from(chunk.e, column), columns_from(chunk.gate, column)
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
        block = add_scaled(zero_block(x), load_block(x, row), chunk.until, row)
        block = add_terms(block, d_p.T, row, q, row, rows)
        if erases:
            block = add_terms(block, d_a.T, row, e, row, rows)
        store_block(x, row, block)


@njit
def add_to_rows(x, y, chunk, d_p, d_a, column, rows, erases, per_channel):
    """``x_i = c_i * x_i + sum_j dP_ij ratio_ij * k_j`` (19); ``y_i`` with ``-c_i`` and ``dA`` (20)."""
    k = columns_from(chunk.k, column)
    if per_channel:
        _add_faded_keys(x, y, columns_from(chunk.gate, column), k, d_p, d_a, rows, erases)
        return
    for row in range(0, rows, ROWS):
        block = add_scaled(zero_block(x), load_block(x, row), chunk.since, row)
        store_block(x, row, add_terms(block, d_p, row, k, 0, row + ROWS))
        if erases:
            block = add_scaled(zero_block(y), load_block(y, row), chunk.minus, row)
            store_block(y, row, add_terms(block, d_a, row, k, 0, row + ROWS))


@njit
def _add_faded_keys(x, y, gate, k, d_p, d_a, rows, erases):
    """The keys fade in place: those of the chunk are not needed again in these channels, but ``ratio_T * K`` is."""
    zero, since = broadcast(x.dtype.type(0)), broadcast(x.dtype.type(1))
    for i in range(rows):
        g_i = load(gate, i)
        since = since * g_i
        x_i, y_i = fma(spread(d_p, i, i), load(k, i), load(x, i) * since), zero - load(y, i) * since
        for j in range(i):
            k_j = load(k, j) * g_i
            store(k, j, k_j)
            x_i = fma(spread(d_p, i, j), k_j, x_i)
            if erases:
                y_i = fma(spread(d_a, i, j), k_j, y_i)
        store(x, i, x_i)
        store(y, i, y_i)


# --- Gates ----------------------------------------------------------------------------------------------------------


@njit
def begin_shares(shares, d_gate):
    """Of one gate for all channels the shares of (12) are summed over channels: lanes first, then ``give_shares``."""
    if d_gate.shape[1] == 1:
        shares[:] = 0


@njit
def add_shares(shares, d_gate, first, count, d_x, x, column, sign):
    """Add ``sign x_i * d_x_i`` of one Vector of channels; for a gate a channel to rows of ``d_gate`` (12)."""
    columns, factor = columns_from(x, column), broadcast(x.dtype.type(sign))
    if d_gate.shape[1] == 1:
        for i in range(count):
            store(shares, i, fma(load(columns, i) * factor, load(d_x, i), load(shares, i)))
    elif d_gate.shape[1] > 1:
        target = columns_from(d_gate, column)
        for i in range(count):
            share = load(columns, i) * load(d_x, i) * factor
            store_row(target, first + i, share if sign < 0 else load_row(target, first + i) + share)


@njit
def give_shares(shares, d_gate, first, count, sign):
    """What the loop from the end has, which comes first, is written; what that from the start has is added."""
    if d_gate.shape[1] == 1:
        for i in range(count):
            share = total(load(shares, i))
            d_gate[first + i, 0] = share if sign < 0 else d_gate[first + i, 0] + share


@njit
def sum_up(d_gate, log_gate, state_t, end):
    """From each row's own share the sum over the rows from it on and ``rowsum(d_state * S_N)`` (12); all transposed."""
    zero = broadcast(d_gate.dtype.type(0))
    for column in range(0, state_t.shape[1], lanes(d_gate)):
        s, d_s, start = columns_from(state_t, column), columns_from(end, column), zero
        for t in range(len(state_t)):
            start = fma(load_row(s, t), load_row(d_s, t), start)
        if d_gate.shape[1] > 1:
            _sum_rows(columns_from(d_gate, column), columns_from(log_gate, column), start)
        else:
            d_gate[len(d_gate) - 1, 0] += total(start)
    if d_gate.shape[1] == 1:
        _sum_rows(d_gate, log_gate, zero)


@njit
def _sum_rows(d_gate, log_gate, start):
    """Sums from the last row on, with what rounding loses carried along; a gate of 0 gets 0, and a new start."""
    dtype = d_gate.dtype.type
    lowest, zero = dtype(math.log(np.finfo(dtype).tiny)), broadcast(dtype(0))
    always, result, lost = broadcast(lowest), start, zero
    for i in range(len(d_gate) - 1, -1, -1):
        share, gate = load_row(d_gate, i) - lost, load_row(log_gate, i)
        after = result + share
        lost = keep_between((after - result) - share, always, lowest, gate, 0)
        result = keep_between(after, always, lowest, gate, 0)
        store_row(d_gate, i, result)
