"""Online softmax over tiles of scores, in the steps that lie between two barriers.

For each of its ``TILE`` rows, a block knows the highest score so far and the sum of its weights. A tile of scores ``a``
comes, ``-inf`` for pairs that do not see one another and for no others (`saturated`)::

    highest = max(maximum, max_j a_ij)                       (1)
    sum     = sum exp(maximum - highest) + sum_j exp(a_ij - highest)   (2)
    acc     = acc exp(maximum - highest) + exp(a - highest) @ v        (3)

Of a row ``SIDE`` threads have a part each, which goes through ``panel``; one thread per row puts them together.

What queries have met in earlier parts of a pattern, or rounds, is ``so_far (heads, N, 2)``: ``maximum`` and ``sum``
apart, since where the first is large their ``maximum + log sum`` has no room for the second. At the start both are
``-inf``. Outputs are divided by their sums at the end (`rows.finish`).
"""

import math

from linattn_ref.kernels.cuda.loops.device import inlined
from linattn_ref.kernels.cuda.loops.tile import EACH, SIDE, TILE

MAXIMUM, SUM, DECAY = 0, 1, 2  # rows of `state`, a column for each query of the tile


@inlined
def saturated(score, largest):
    """A score beyond the range of its dtype as the largest, or smallest, finite number; NaN stays what it is."""
    return largest if score > largest else (-largest if score < -largest else score)


@inlined
def to_scores(x, y, tile, scale, largest):
    """A tile of products to scores."""
    for i in range(y, TILE, SIDE):
        for j in range(x, TILE, SIDE):
            tile[i, j] = saturated(scale * tile[i, j], largest)


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
def highest_parts(x, y, tile, panel):
    """The highest score of each thread's part of its rows."""
    for i in range(y, TILE, SIDE):
        panel[x, i] = -math.inf
        for j in range(x, TILE, SIDE):
            panel[x, i] = max(panel[x, i], tile[i, j])


@inlined
def raise_maximum(t, panel, state):
    """Row ``t``'s, and the factor for what was added up with the old one."""
    highest = state[MAXIMUM, t]
    for c in range(SIDE):
        highest = max(highest, panel[c, t])  # (1)
    state[DECAY, t] = 1
    if highest > state[MAXIMUM, t]:
        state[DECAY, t] = math.exp(state[MAXIMUM, t] - highest)
    state[MAXIMUM, t] = highest


@inlined
def scores_to_weights(x, y, tile, panel, state):
    """In ``tile``, and the sum of each thread's part of its rows."""
    for i in range(y, TILE, SIDE):
        panel[x, i] = 0
        for j in range(x, TILE, SIDE):
            if tile[i, j] == -math.inf:  # also where the maximum is -inf
                tile[i, j] = 0
            else:
                tile[i, j] = math.exp(tile[i, j] - state[MAXIMUM, i])
            panel[x, i] += tile[i, j]


@inlined
def add_sum(t, panel, state):
    """Row ``t``'s."""
    state[SUM, t] *= state[DECAY, t]
    for c in range(SIDE):
        state[SUM, t] += panel[c, t]  # (2)


@inlined
def decay(y, acc, state):
    """The products so far, to the new maximum."""
    for r in range(EACH):
        for s in range(EACH):
            acc[r, s] *= state[DECAY, y + SIDE * r]
