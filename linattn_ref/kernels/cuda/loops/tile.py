"""What the kernels share: the sizes, and products of tiles.

A block of ``SIDE x SIDE`` threads makes a tile of ``TILE x TILE`` numbers. Thread ``(x, y)`` keeps ``EACH x EACH`` of
them in registers, in rows ``y, y + SIDE, ...`` and columns ``x, x + SIDE, ...``::

              columns of b, STEP at a time
                 +---------------+
                 |     panel     |  STEP rows          acc[r, s] += sum_c tile[y + SIDE r, c] panel[c, x + SIDE s]
                 +---------------+
    +------+     +---------------+
    |      |     |               |                     EACH + EACH numbers are read from shared memory for EACH^2
    | tile |     |      acc      |  TILE rows          products, so the larger EACH the better; its square is the
    |      |     |               |                     number of registers.
    +------+     +---------------+
      STEP             TILE

Shared memory is two arrays: ``tile (TILE, PITCH)``, which holds two such strips of ``STEP`` columns beside one another
or a square of scores, and ``panel (STEP, PITCH)``. Rows are ``PITCH = TILE + 1`` apart, so that threads that read down
a column find their numbers in different banks. In float64 that is 41 600 bytes, in float32 half of it.

A loop over ``acc`` is written with ``range(EACH)`` and a short body, so that the compiler unrolls it: registers have no
addresses. It does not unroll ``for c in range(STEP)``, and spends a dozen instructions on each turn; a ``while`` it
unrolls. Loops that rarely run, as with NaN, stay ``for``, and so does the recurrence in `delta_chunks.gradient`.

In Python a negative index counts from the end, and compiled code allows for that at every access, unless the compiler
knows that the index is not negative. ``x & NATURAL`` tells it, and of what begins as 32 bits ``max(cuda.threadIdx.x,
0)``, which takes no instruction. A thread loads those places of a tile that its own ``x`` and ``y`` name, without a
division. Chapter 16 has what a profiler said before and after these three rules.

Python's numbers in a kernel are int64 and float64, and float64 arithmetic is 2 to 64 times slower: sums start from an
integer 0 stored to an array of the inputs' type, and every other factor is read from one or is an argument.

Thread ``(x, y)`` is number ``t = y SIDE + x``. Functions for kernels of other modules take these as arguments, and
barriers from `device`, not from ``cuda``: the simulator puts its own into the module of the kernel only.

The sizes are plain names in every module that uses them, because Numba wants shapes that are known when it compiles.
The simulator does not, and a test sets smaller ones there: ``SIDE, EACH, TILE, PITCH, STEP, HALF, THREADS`` of
``3, 2, 6, 7, 3, 1, 9``.
"""

import math

from linattn_ref.kernels.cuda.loops.device import NATURAL, inlined, syncthreads, syncthreads_or
from linattn_ref.kernels.cuda.loops.tensor_cores import here

SIDE = 16  # threads along either side of a block
EACH = 4  # numbers per thread, along either side
TILE = 64  # SIDE * EACH
PITCH = 65  # TILE + 1
STEP = 16  # SIDE: a thread loads the row of its y, or the column of its x; at most half of TILE
HALF = 8  # STEP / 2; the threads of the other half of x, or y, load what lies below
THREADS = 256  # SIDE * SIDE; at least TILE
BLOCK = (SIDE, SIDE)
TURNS = 3  # of a product with NaN or infinity in it


def tiles(length):
    """How many tiles cover ``length``."""
    return -(-length // TILE)


# --- From memory to shared memory -----------------------------------------------------------------------------------


@inlined
def load_rows(x, y, tile, column, a, head, row, first):
    """``TILE`` rows and ``STEP`` columns of ``a[head]``, from ``(row, first)`` on; 0 beyond its end."""
    head, row, first = head & NATURAL, row & NATURAL, first & NATURAL
    for r in range(EACH):
        i = y + SIDE * r
        tile[i, column + x] = 0
        if row + i < a.shape[1] and first + x < a.shape[2]:
            tile[i, column + x] = a[head, row + i, first + x]


@inlined
def load_panel(x, y, panel, a, head, row, first):
    """``STEP`` rows and ``TILE`` columns of ``a[head]``, from ``(row, first)`` on; 0 beyond its end.

    Returns 1 if one of the thread's numbers is NaN or infinite, else 0.
    """
    odd, head, row, first = 0, head & NATURAL, row & NATURAL, first & NATURAL
    for s in range(EACH):
        j = x + SIDE * s
        panel[y, j] = 0
        if row + y < a.shape[1] and first + j < a.shape[2]:
            panel[y, j] = a[head, row + y, first + j]
            if not math.isfinite(panel[y, j]):
                odd = 1
    return odd


@inlined
def load_strips(x, y, panel, a, b, head, row, column, first):
    """``HALF`` columns of ``TILE`` rows of ``a[head]`` and of ``b[head]``, transposed, one below the other."""
    head, row, column, first = head & NATURAL, row & NATURAL, column & NATURAL, first & NATURAL
    for r in range(EACH):
        i = y + SIDE * r
        panel[x, i] = 0
        if x < HALF:
            if row + i < a.shape[1] and first + x < a.shape[2]:
                panel[x, i] = a[head, row + i, first + x]
        elif column + i < b.shape[1] and first + x - HALF < b.shape[2]:
            panel[x, i] = b[head, column + i, first + x - HALF]


# --- Products -------------------------------------------------------------------------------------------------------


@inlined
def clear(acc):
    for r in range(EACH):
        for s in range(EACH):
            acc[r, s] = 0


@inlined
def add_rows_by_rows(x, y, acc, tile):
    """``acc += a b^T``, of ``a`` and ``b`` the first and second ``STEP`` columns of ``tile``."""
    c = 0
    while c < STEP:
        for r in range(EACH):
            for s in range(EACH):
                acc[r, s] += tile[y + SIDE * r, c] * tile[x + SIDE * s, STEP + c]
        c += 1


@inlined
def add_rows_by_panel(x, y, acc, tile, column, panel):
    """``acc += a @ panel``, of ``a`` the ``STEP`` columns of ``tile`` from ``column`` on."""
    c = 0
    while c < STEP:
        for r in range(EACH):
            for s in range(EACH):
                acc[r, s] += tile[y + SIDE * r, column + c] * panel[c, x + SIDE * s]
        c += 1


@inlined
def add_seen_rows(x, y, acc, tile, column, panel):
    """The same with NaN or infinity in ``panel``, of which a 0 in ``tile`` takes nothing.

    For kernels with registers to spare; the others have :func:`take_turn`.
    """
    for c in range(STEP):
        for r in range(EACH):
            if tile[y + SIDE * r, column + c] != 0:
                for s in range(EACH):
                    acc[r, s] += tile[y + SIDE * r, column + c] * panel[c, x + SIDE * s]


@inlined
def take_turn(t, turn, tile, column, panel, largest):
    """Of a product ``a @ panel`` with NaN or infinity in ``panel``, of which a weight of 0 takes nothing, one turn.

    In the first such numbers are 0. In the next two they are the ``largest`` and its negative, weights that are not 0
    are the ``largest`` and all else is 0, so that infinity, then infinity of the other sign is added: NaN together.
    """
    t, column = here(t) & NATURAL, column & NATURAL  # no addresses that wait in registers for what is rare
    for e in range(t, TILE * STEP, THREADS):
        c, j = e // TILE, e % TILE
        is_odd = not math.isfinite(panel[c, j])
        if is_odd or turn > 0:
            panel[c, j] = 0
        if is_odd and turn > 0:
            panel[c, j] = largest if turn == 1 else -largest
        i, c = e // STEP, e % STEP
        if turn == 1 and tile[i, column + c] != 0:
            tile[i, column + c] = largest


@inlined
def add_panel_by_panel(x, y, acc, left, right):
    """``acc += left^T @ right``, of two panels."""
    c = 0
    while c < STEP:
        for r in range(EACH):
            for s in range(EACH):
                acc[r, s] += left[c, y + SIDE * r] * right[c, x + SIDE * s]
        c += 1


@inlined
def add_seen_panel(x, y, acc, left, right):
    """The same with NaN or infinity in ``right``, of which a 0 in ``left`` takes nothing."""
    for c in range(STEP):
        for r in range(EACH):
            if left[c, y + SIDE * r] != 0:
                for s in range(EACH):
                    acc[r, s] += left[c, y + SIDE * r] * right[c, x + SIDE * s]


@inlined
def add_strips(x, y, acc, panel):
    """``acc += a b^T``, of what :func:`load_strips` has loaded."""
    c = 0
    while c < HALF:
        for r in range(EACH):
            for s in range(EACH):
                acc[r, s] += panel[c, y + SIDE * r] * panel[HALF + c, x + SIDE * s]
        c += 1


@inlined
def write(x, y, acc, out, head, row, first_m):
    """The tile ``acc`` to ``out``, from ``(row, first_m)`` on."""
    head, row, first_m = head & NATURAL, row & NATURAL, first_m & NATURAL
    for r in range(EACH):
        i = y + SIDE * r
        for s in range(EACH):
            m = first_m + x + SIDE * s
            if row + i < out.shape[1] and m < out.shape[2]:
                out[head, row + i, m] = acc[r, s]


# --- Products of arrays in memory -----------------------------------------------------------------------------------


@inlined
def multiply_strips(x, y, acc, panel, a, b, head, row, column):
    """``acc = a b^T``, of ``TILE`` rows of ``a[head]`` and of ``b[head]``, from ``row`` and from ``column`` on."""
    clear(acc)
    for first in range(0, a.shape[2], HALF):
        load_strips(x, y, panel, a, b, head, row, column, first)
        syncthreads()
        add_strips(x, y, acc, panel)
        syncthreads()


@inlined
def add_product(x, y, t, acc, tile, panel, u, head, row, first_m, largest):
    """``acc += tile @ u[head]``, of its rows from ``row`` on; a weight of 0 takes nothing, not even NaN."""
    for first in range(0, min(TILE, u.shape[1] - row), STEP):
        turn, turns = 0, 1
        while turn < turns:
            syncthreads()
            odd = load_panel(x, y, panel, u, head, row + first, first_m)
            if syncthreads_or(odd):
                turns = TURNS
                take_turn(t, turn, tile, first, panel, largest)
                syncthreads()
            add_rows_by_panel(x, y, acc, tile, first, panel)
            turn += 1
    syncthreads()
