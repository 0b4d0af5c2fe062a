"""Online softmax over tiles of scores.

For each of its ``TILE`` rows, a block knows the highest score so far and the sum of its weights. A tile of scores ``a``
comes, ``-inf`` for pairs that do not see one another and for no others (`saturated`)::

    highest = max(maximum, max_j a_ij)                       (1)
    sum     = sum exp(maximum - highest) + sum_j exp(a_ij - highest)   (2)
    acc     = acc exp(maximum - highest) + exp(a - highest) @ v        (3)

``SIDE`` threads have a part of a row each, which goes through ``panel``; one thread per row puts the parts together.

What queries have met in earlier parts of a pattern, or rounds, is ``so_far (heads, N, 2)``: ``maximum`` and ``sum``
apart, since where the first is large their ``maximum + log sum`` has no room for the second. At the start both are
``-inf``. Outputs are divided by their sums at the end (`rows.finish`).
"""

import math

from linattn_ref.kernels.cuda.loops.device import inlined, syncthreads
from linattn_ref.kernels.cuda.loops.tile import EACH, SIDE, TILE

MAXIMUM, SUM, DECAY = 0, 1, 2  # rows of `state`, a column for each query of the tile
ROW_SUM = 1  # beside the maximum, in a backward pass


@inlined
def saturated(score, largest):
    """A score beyond the range of its dtype as the largest, or smallest, finite number; NaN stays what it is."""
    return largest if score > largest else (-largest if score < -largest else score)


@inlined
def decayed(x, decay):
    """What is left of ``x``: nothing where no weight is left, also of a NaN or infinity."""
    return decay * x if decay != 0 else decay


@inlined
def to_scores(x, y, acc, tile, scale, largest):
    """Products of all threads to scores in shared memory."""
    for r in range(EACH):
        for s in range(EACH):
            tile[y + SIDE * r, x + SIDE * s] = saturated(scale * acc[r, s], largest)


@inlined
def begin(t, state):
    """Row ``t`` has met no key."""
    state[MAXIMUM, t] = -math.inf
    state[SUM, t] = 0


@inlined
def go_on(t, state, so_far, head, query):
    """Row ``t`` has met those of earlier parts."""
    if so_far[head, query, 1] != -math.inf:
        state[MAXIMUM, t], state[SUM, t] = so_far[head, query, 0], so_far[head, query, 1]


@inlined
def to_weights(x, y, t, tile, panel, state, acc):
    """A tile of scores to weights, (1) and (2), and what was added up so far to the new maximum."""
    for r in range(EACH):  # each thread's part of its rows
        i = y + SIDE * r
        panel[x, i] = -math.inf
        for s in range(EACH):
            panel[x, i] = max(panel[x, i], tile[i, x + SIDE * s])
    syncthreads()
    if t < TILE:
        highest = state[MAXIMUM, t]
        for c in range(SIDE):
            highest = max(highest, panel[c, t])  # (1)
        state[DECAY, t] = 1
        if highest > state[MAXIMUM, t]:
            state[DECAY, t] = math.exp(state[MAXIMUM, t] - highest)
        state[MAXIMUM, t] = highest
    syncthreads()
    for r in range(EACH):
        i = y + SIDE * r
        panel[x, i] = 0
        for s in range(EACH):
            j = x + SIDE * s
            if tile[i, j] == -math.inf:  # also where the maximum is -inf
                tile[i, j] = 0
            else:
                tile[i, j] = math.exp(tile[i, j] - state[MAXIMUM, i])
            panel[x, i] += tile[i, j]
    syncthreads()
    if t < TILE:
        state[SUM, t] *= state[DECAY, t]
        for c in range(SIDE):
            state[SUM, t] += panel[c, t]  # (2)
    for r in range(EACH):
        for s in range(EACH):
            acc[r, s] = decayed(acc[r, s], state[DECAY, y + SIDE * r])
