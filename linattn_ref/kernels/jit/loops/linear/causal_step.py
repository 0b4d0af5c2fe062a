"""One position of causal linear attention, for decoding: little to compute, so little may come before it.

    S = S + phi_k v^T,   Z = Z + phi_k                       (1)  (C, M), (C,)
    out = phi_q^T S / (phi_q^T Z + eps)                      (2)  (M,), 0 where the denominator is 0

A Python function around the kernel that looked at shapes and strides would take longer than the kernel. So the kernel
is compiled for arrays without gaps, for each number of axes. Rows with gaps are copied before it is called, which takes
a tenth of a microsecond to find out; states with gaps behind it (`cache.serial_kernel`).
"""

from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.simd.reciprocal import reciprocal, rest
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, spread, total
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, rows_of, store_row


@serial_kernel(phi_q="... C", phi_k="... C", v="... M", s="... C M", z="... C", out="... M", written="s z out")
def step_heads(phi_q, phi_k, v, s, z, eps, out):
    """Write ``out (..., M)`` and bring ``s (..., C, M)`` and ``z (..., C)`` up to date."""
    step_rows(rows_of(phi_q), rows_of(phi_k), rows_of(v), rows_of(s), rows_of(z), eps, rows_of(out))


@inner
def step_rows(q, k, v, s, z, eps, out, gate=None):
    """The step on rows: ``q, k, z (heads, C)``, ``v, out (heads, M)``, ``s (heads * C, M)``.

    With ``gate (heads, 1)``, or ``(1, 1)`` for all, ``S`` and ``Z`` are multiplied by it first.
    """
    heads, width = q.shape
    if k.shape != q.shape or z.shape != q.shape or v.shape != out.shape or s.shape != (heads * width, v.shape[1]):
        raise ValueError("expected q, k and z (..., C), v and out (..., M), s (..., C, M)")
    if len(v) != heads or (gate is not None and len(gate) != heads and len(gate) != 1):
        raise ValueError("expected the same leading axes of q, k, z, v, out, s and gate")
    for head in range(len(q)):
        share = q.dtype.type(eps)
        for first in range(0, q.shape[1], lanes(q)):
            some_z = columns_from(z, first)
            share += _meet_z(columns_from(q, first), columns_from(k, first), some_z, head, gate)
        is_nothing, more, share = share == 0, rest(share, q), reciprocal(share, q)  # of (2)
        for first in range(0, v.shape[1], lanes(v)):
            some_v, some_s, some_out = columns_from(v, first), columns_from(s, first), columns_from(out, first)
            _step_columns(q, k, some_v, some_s, some_out, head, share, more, gate)
        if is_nothing:
            out[head, :] = 0  # also of an infinite sum


@inner(forceinline=True)
def _faded(x, gate, head):
    """``x``, times the gate of the head, if there are gates."""
    if gate is None:
        return x
    return x * broadcast(gate[head if len(gate) > 1 else 0, 0])


@inner(forceinline=True)
def _meet_z(q, k, z, head, gate):
    """``z += k``, and ``q . z``."""
    x = _faded(load_row(z, head), gate, head) + load_row(k, head)  # (1)
    store_row(z, head, x)
    return total(x * load_row(q, head))


@once
def _step_columns(q, k, v, s, out, head, share, more, gate):
    """Some columns of ``S``. The sums of the even and of the odd features do not wait for one another."""
    width, u = q.shape[1], load_row(v, head)
    first, even_width = head * width, width - width % 2
    even = odd = broadcast(q.dtype.type(0))
    for c in range(0, even_width, 2):
        x = fma(spread(k, head, c), u, _faded(load_row(s, first + c), gate, head))  # (1)
        y = fma(spread(k, head, c + 1), u, _faded(load_row(s, first + c + 1), gate, head))
        store_row(s, first + c, x)
        store_row(s, first + c + 1, y)
        even, odd = fma(spread(q, head, c), x, even), fma(spread(q, head, c + 1), y, odd)  # (2)
    if even_width < width:
        x = fma(spread(k, head, even_width), u, _faded(load_row(s, first + even_width), gate, head))
        store_row(s, first + even_width, x)
        even = fma(spread(q, head, even_width), x, even)
    store_row(out, head, (even + odd) * broadcast(share) * broadcast(more))
