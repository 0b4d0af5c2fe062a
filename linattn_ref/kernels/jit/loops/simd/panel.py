"""Matrix products with panels: the inner loops that all kernels share.

Every product is of one form, ``C = A B`` or ``C += A B``, with ``C`` and ``B`` panels (one Vector wide, see `vector`)
and ``A`` any matrix: its numbers are read one at a time and broadcast, so a transposed view does as well::

             B (terms, lanes)
             +-----------+
             | row t     |      for t in range(terms):
             +-----------+          block[r] += A[r, t] * B[t]
    A        C (rows, lanes)
    +-----+  +-----------+
    |  t  |  | block of  |      the block stays in registers until all terms are in
    |     |  | ROWS rows |
    +-----+  +-----------+

``pack`` makes a panel of up to ``lanes`` rows of a matrix, transposed, so that each of them has a lane of its own.
"""

import numpy as np

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.vector import LINE, broadcast, fma, lanes, load, store
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, add_scaled, load_block, store_block, zero_block
from linattn_ref.kernels.jit.loops.views import copy_columns, give_rows


@inner
def new_panel(rows, like):
    """An uninitialised panel with the dtype of ``like``."""
    return np.empty((rows, lanes(like)), like.dtype)


@inner
def zero_panel(rows, like):
    """A panel of zeros with the dtype of ``like``."""
    return np.zeros((rows, lanes(like)), like.dtype)


@inner
def new_rows(count, rows, width, like):
    """Room for ``count`` arrays ``(rows, width)``, aligned to cache lines."""
    size = count * rows * width
    memory = np.empty(size + LINE, like.dtype)
    skip = -memory.ctypes.data % LINE // memory.itemsize
    return memory[skip : skip + size].reshape(count, rows, width)


@inner
def rounded_up(n, multiple):
    return (n + multiple - 1) // multiple * multiple


@inner
def panels_of(state, multiple=1):
    """The columns of a matrix as panels ``(panels, rows, lanes)``, with rows of 0 up to a ``multiple`` of rows."""
    count = (state.shape[1] + lanes(state) - 1) // lanes(state)
    s = new_rows(count, rounded_up(len(state), multiple), lanes(state), state)
    for p in range(count):
        copy_columns(s[p], state, p * lanes(state))
        s[p, len(state) :] = 0
    return s


@inner
def write_back(state, s):
    for p in range(s.shape[0]):
        give_rows(state, 0, len(state), s[p], p * lanes(s))


@inner
def product(c, a, b, accumulate):
    """``c[:rows] = a @ b[:terms]``, or ``+=``, for ``a (rows, terms)``; rows of the panels beyond are left alone."""
    rows, terms = a.shape
    whole_blocks = rows - rows % ROWS
    for r in range(0, whole_blocks, ROWS):
        block = load_block(c, r) if accumulate else zero_block(c)
        for t in range(terms):
            block = add_scaled(block, a, r, t, load(b, t))
        store_block(c, r, block)
    for r in range(whole_blocks, rows):
        x = load(c, r) if accumulate else broadcast(c.dtype.type(0))
        for t in range(terms):
            x = fma(broadcast(a[r, t]), load(b, t), x)
        store(c, r, x)


@inner
def pack(panel, rows, scale):
    """``panel[t, i] = scale * rows[i, t]``; lanes beyond the last row are 0."""
    n, terms = rows.shape
    for t in range(terms):
        for i in range(n):
            panel[t, i] = scale * rows[i, t]
        panel[t, n:] = 0


@inner
def unpack(rows, panel, scale):
    """``rows[i, t] = scale * panel[t, i]``, for as many rows as there are."""
    n, terms = rows.shape
    for i in range(n):
        for t in range(terms):
            rows[i, t] = scale * panel[t, i]
