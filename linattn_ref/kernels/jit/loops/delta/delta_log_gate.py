"""The gradient of log gates in the delta product: equation (22) of the page, a sum in which nothing cancels.

Gate ``i`` stands between row ``l >= i``, which reads, and row ``j < i``, which has written, and its gradient adds up
what passes between all such pairs. With the state before the chunk as row 0 and that after it as row T + 1,

    d_log_g_i = sum of W_lj over j < i <= l                                             (22)

Sums over ``j < i`` come from going along a row, those over ``l >= i`` from adding up rows. One gate for all channels
needs numbers alone: ``W = P * G U^T - A * R U^T`` is there but for a product. With a gate per channel ``W_lj`` is a
Vector, and ``d_q_l`` and ``d_e_l``, while they are summed up along ``j``, are what row ``l`` gives to the gates
(`delta_gradients`).

It would be less work to sum up ``q_i * d_q_i + e_i * d_e_i - k_i * d_k_i`` over the rows from ``i`` on. That holds each
pair which no gate stands between twice, with opposite signs: at a log gate of -20 no digit would be right in float32.
"""

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, keep, load, store, total
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, store_row


@inner
def begin(shares, d_gate, first, count):
    """For a chunk, of one gate for all channels: nothing yet."""
    if d_gate.shape[1] == 1:
        shares[:] = 0
        for i in range(count):
            d_gate[first + i, 0] = 0


# --- From the end ---------------------------------------------------------------------------------------------------


@inner
def add_pairs(d_gate, first, count, chunk, gu, ru, column, rows, erases):
    """``W_lj`` of the rows ``j`` from ``column`` on, for one gate: ``gu`` is ``G U^T``, ``ru`` is ``R U^T``."""
    p, a = columns_from(chunk.room.p, column), columns_from(chunk.room.a, column)  # P and -A, faded
    zero = gu.dtype.type(0)
    over_l = broadcast(zero)
    for i in range(rows - 1, column, -1):
        over_l = fma(load(p, i), load(gu, i), over_l)
        if erases:
            over_l = fma(load(a, i), load(ru, i), over_l)
        if i < count:
            d_gate[first + i, 0] += total(keep(over_l, 0, i - column, zero))


@inner
def add_from_end(shares, d_gate, first, count, x, chunk, column):
    """``W_{T+1,j}``, of one Vector of channels; ``x`` is ``U dS'^T``."""
    k_until = columns_from(chunk.k_until, column)
    if d_gate.shape[1] == 1:
        for i in range(count):
            store(shares, i, fma(load(k_until, i), load(x, i), load(shares, i)))
    elif d_gate.shape[1] > 1:
        target, before = columns_from(d_gate, column), broadcast(x.dtype.type(0))
        for i in range(count):
            store_row(target, first + i, before)
            before = fma(load(k_until, i), load(x, i), before)


@inner
def give_from_end(shares, d_gate, first, count, chunk):
    """The same, for one gate, once all channels are in ``shares``."""
    if d_gate.shape[1] == 1:
        before = d_gate.dtype.type(0)
        for i in range(count):
            d_gate[first + i, 0] += before
            before += chunk.until[i, 0] * total(load(shares, i))


# --- From the start -------------------------------------------------------------------------------------------------


@inner
def add_from_start(shares, d_gate, count, x, y, chunk, column, erases):
    """``W_l0`` for one gate, of one Vector of channels; ``x`` is ``G S^T`` and ``y`` is ``R S^T``."""
    if d_gate.shape[1] == 1:
        q, e, zero = columns_from(chunk.q, column), columns_from(chunk.e, column), broadcast(x.dtype.type(0))
        for i in range(count):
            share = fma(load(q, i), load(x, i), load(shares, i))
            if erases:
                share = fma(zero - load(e, i), load(y, i), share)
            store(shares, i, share)


@inner
def give_from_start(shares, d_gate, first, count, chunk, through):
    """The same, once all channels are in ``shares``; ``through`` is ``W_{T+1,0}``, summed up over Vectors."""
    if d_gate.shape[1] == 1:
        over_l = total(through)
        for i in range(count - 1, -1, -1):
            over_l += chunk.since[i, 0] * total(load(shares, i))
            d_gate[first + i, 0] += over_l


@inner
def give_channels(shares, d_gate, first, count, column, through):
    """With a gate per channel: what ``shares`` has of one Vector of channels, and ``W_{T+1,0}``."""
    if d_gate.shape[1] > 1:
        target = columns_from(d_gate, column)
        for i in range(count):
            store_row(target, first + i, load_row(target, first + i) + load(shares, i) + through)
