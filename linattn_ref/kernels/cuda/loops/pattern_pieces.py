"""Putting together what several blocks have found for the same rows: `pattern_tasks` deals out long tasks.

A piece stands in its slot, ``TILE`` rows for one after the other. Each number is added up by one thread, in order.
"""

import math

from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.pattern_tasks import FIRST_SLOT, LAST_ROW, LAST_SLOT, ROW
from linattn_ref.kernels.cuda.loops.tile import THREADS, TILE


@kernel
def join_softmax(joins, numbers, pieces, piece_log_sums, so_far, out, log_sum_exp):
    """Outputs and log-sum-exps of pieces, with those of earlier parts, ``so_far`` and ``out``: (1)-(4) with a piece in
    place of a key. Grid: rows of ``joins`` * heads.
    """
    head, task, width = cuda.blockIdx.x % out.shape[0], cuda.blockIdx.x // out.shape[0], out.shape[2]
    for e in range(cuda.threadIdx.x, TILE * width, THREADS):
        i, m = e // width, e % width
        if joins[task, ROW] + i < joins[task, LAST_ROW]:
            query = numbers[joins[task, ROW] + i]
            highest = so_far[head, query]
            for slot in range(joins[task, FIRST_SLOT], joins[task, LAST_SLOT]):
                highest = max(highest, piece_log_sums[head, slot * TILE + i])  # (1)
            if highest != -math.inf:
                total = math.exp(so_far[head, query] - highest)
                mixed = total * out[head, query, m]
                for slot in range(joins[task, FIRST_SLOT], joins[task, LAST_SLOT]):
                    weight = math.exp(piece_log_sums[head, slot * TILE + i] - highest)
                    total += weight  # (2)
                    mixed += weight * pieces[head, slot * TILE + i, m]
                out[head, query, m] = mixed / total  # (3)
                if m == 0:
                    log_sum_exp[head, query] = highest + math.log(total)  # (4)


@kernel
def add_pieces(joins, numbers, pieces, d):
    """``d[numbers] += `` the sum of their pieces. Grid: rows of ``joins`` * heads."""
    head, task, width = cuda.blockIdx.x % d.shape[0], cuda.blockIdx.x // d.shape[0], d.shape[2]
    for e in range(cuda.threadIdx.x, TILE * width, THREADS):
        i, m = e // width, e % width
        if joins[task, ROW] + i < joins[task, LAST_ROW]:
            for slot in range(joins[task, FIRST_SLOT], joins[task, LAST_SLOT]):
                d[head, numbers[joins[task, ROW] + i], m] += pieces[head, slot * TILE + i, m]
