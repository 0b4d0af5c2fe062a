"""`tensor_cores` in Numba's simulator: the lanes of a warp meet, and one of them does the work of all.

Which lane holds what is written down here as the instruction set's manual has it, for the eight numbers ``i`` of ``A``,
four of ``B`` and four of ``C`` that a lane has.
"""

import threading

import numpy as np

WIDTH = 32
_LANE = np.arange(WIDTH)[:, None]
_GROUP, _PLACE = _LANE // 4, _LANE % 4  # groupID, threadID_in_group
_A, _B = np.arange(8), np.arange(4)
A_ROW = np.where((_A < 2) | ((_A >= 4) & (_A < 6)), _GROUP, _GROUP + 8)  # (WIDTH, 8)
A_COLUMN = np.where(_A < 4, 2 * _PLACE + (_A & 1), 2 * _PLACE + (_A & 1) + 8)
B_ROW = np.where(_B < 2, 2 * _PLACE + (_B & 1), 2 * _PLACE + (_B & 1) + 8)  # (WIDTH, 4)
B_COLUMN = np.broadcast_to(_GROUP, B_ROW.shape)
C_ROW = np.where(_B < 2, _GROUP, _GROUP + 8)  # (WIDTH, 4)
C_COLUMN = 2 * _PLACE + (_B & 1)


# --- A warp ---------------------------------------------------------------------------------------------------------


class _Meetings:
    """Of the lanes of one warp of one block, again and again: what they bring, and what each takes away.

    No lane comes to a meeting before all have been at the one before, so that what the last two gave is enough.
    """

    def __init__(self):
        self.brought, self.taken, self.count = [], [None, None], [0] * WIDTH
        self.barrier = threading.Barrier(WIDTH)

    def wait(self, thread):
        """Until all lanes are here; a scheduler that lets one thread run at a time brings its own ``syncwarp``."""
        if hasattr(thread, "syncwarp"):
            thread.syncwarp()
        else:
            self.barrier.wait()


_LOCK = threading.Lock()


def _together(value, work):
    """``work(values of all lanes)[lane]``; every lane of the warp calls it, and the last one to come works."""
    thread = threading.current_thread()
    warp, lane = divmod(thread.thread_id, WIDTH)
    with _LOCK:
        meetings = thread._manager.__dict__.setdefault("meetings", {}).setdefault(warp, _Meetings())
        turn = meetings.count[lane] % 2
        meetings.count[lane] += 1
        meetings.brought.append((lane, value))
        if len(meetings.brought) == WIDTH:
            meetings.taken[turn] = work([value for _, value in sorted(meetings.brought, key=lambda pair: pair[0])])
            meetings.brought = []
    meetings.wait(thread)
    return meetings.taken[turn][lane]


def of_lane(x, step):
    """The ``x`` of the lane whose number differs from the own one in the bits of ``step``."""
    return _together(x, lambda values: [values[lane ^ step] for lane in range(WIDTH)])


def multiply_add(c0, c1, c2, c3, a0, a1, a2, a3, b0, b1):
    """``d0, d1, d2, d3`` of ``D = A B + C``."""
    return _together(((c0, c1, c2, c3), (a0, a1, a2, a3), (b0, b1)), _multiply_add)


def _multiply_add(lanes):
    """The product, from and to the registers of all lanes."""
    a, b, c = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32), np.empty((16, 8), np.float32)
    of_c, of_a, of_b = (np.array(registers) for registers in zip(*lanes, strict=True))  # (WIDTH, registers)
    a[A_ROW, A_COLUMN], b[B_ROW, B_COLUMN], c[C_ROW, C_COLUMN] = numbers(of_a), numbers(of_b), of_c
    d = a @ b + c
    return d[C_ROW, C_COLUMN]  # (WIDTH, 4)


# --- Words ----------------------------------------------------------------------------------------------------------


def numbers(words):
    """``(..., W)`` words as ``(..., 2 W)`` float32; int32 are of bfloat16, uint32 of float16."""
    words = np.ascontiguousarray(words)
    if words.dtype == np.uint32:
        return words.view(np.float16).astype(np.float32)
    return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def words(x, dtype):
    """The inverse of :func:`numbers`, rounding to nearest, to even in the middle."""
    x = np.ascontiguousarray(x, np.float32)
    if np.dtype(dtype) == np.uint32:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint32)
    bits = x.view(np.uint32)
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    upper = np.where(np.isnan(x), 0x7FFF, upper)
    return upper.astype(np.uint16).view(np.int32)


def pack(first, second, dtype):
    """A word of two float32."""
    return words([first, second], dtype)[0]


def low(word):
    """The first of a word's numbers, as float32."""
    return numbers(np.array([word]))[0]


def high(word):
    """The second one."""
    return numbers(np.array([word]))[1]


def here(x):
    """The same number."""
    return x
