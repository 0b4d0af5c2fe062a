"""Putting together what several blocks have found for the same rows: `pattern_tasks` deals out long tasks.

A piece stands in its slot, ``TILE`` rows for one after the other. Each number is added up by one thread, in order.
"""

import math

from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.half_tiles import ZERO
from linattn_ref.kernels.cuda.loops.online_softmax import decayed
from linattn_ref.kernels.cuda.loops.sparse.pattern_tasks import FIRST_SLOT, LAST_ROW, LAST_SLOT, ROW
from linattn_ref.kernels.cuda.loops.tile import THREADS, TILE


@inlined
def share(maximum, highest):
    """What is summed up under one maximum counts so much under a higher one; all of it where no score is a number."""
    return math.exp(maximum - highest if maximum < highest else ZERO)


@kernel
def join_softmax(joins, numbers, pieces, of_pieces, so_far, out, with_it):
    """What pieces have summed up, with that of earlier parts, ``so_far`` and ``out``: (1)-(3) with a piece in place of
    a key. Grid: rows of ``joins`` * heads.
    """
    head, task, width = cuda.blockIdx.x % out.shape[0], cuda.blockIdx.x // out.shape[0], out.shape[2]
    for e in range(cuda.threadIdx.x, TILE * width, THREADS):
        i, m = e // width, e % width
        if joins[task, ROW] + i < joins[task, LAST_ROW]:
            query = numbers[joins[task, ROW] + i]
            highest = so_far[head, query, 0]
            for slot in range(joins[task, FIRST_SLOT], joins[task, LAST_SLOT]):
                highest = max(highest, of_pieces[head, slot * TILE + i, 0])  # (1)
            weight = share(so_far[head, query, 0], highest)
            mixed, total = decayed(out[head, query, m], weight), ZERO
            if so_far[head, query, 1] != -math.inf:
                total = weight * so_far[head, query, 1]
            for slot in range(joins[task, FIRST_SLOT], joins[task, LAST_SLOT]):
                weight = share(of_pieces[head, slot * TILE + i, 0], highest)
                total += weight * of_pieces[head, slot * TILE + i, 1]  # (2)
                mixed += decayed(pieces[head, slot * TILE + i, m], weight)  # (3)
            out[head, query, m] = mixed
            if m == 0:
                with_it[head, query, 0], with_it[head, query, 1] = highest, total


@kernel
def add_pieces(joins, numbers, pieces, d):
    """``d[numbers] += `` the sum of their pieces. Grid: rows of ``joins`` * heads."""
    head, task, width = cuda.blockIdx.x % d.shape[0], cuda.blockIdx.x // d.shape[0], d.shape[2]
    for e in range(cuda.threadIdx.x, TILE * width, THREADS):
        i, m = e // width, e % width
        if joins[task, ROW] + i < joins[task, LAST_ROW]:
            for slot in range(joins[task, FIRST_SLOT], joins[task, LAST_SLOT]):
                d[head, numbers[joins[task, ROW] + i], m] += pieces[head, slot * TILE + i, m]
