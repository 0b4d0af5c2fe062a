"""Who meets whom in a round of LSH attention, for a Vector of tokens at a time; see `lsh`.

A pair that meets in several rounds must count once. `linattn_ref.attention.reformer` gives it the share ``1 / c_ij``
in each of its ``c_ij`` rounds, as the paper does; here it counts in full in the first of them and not at
all in the others, which is the same sum and needs no look at later rounds. Two tokens meet in a round if the numbers of
their chunks ``c_q - c_k`` are 0 or 1 apart, that is

    (c_q - 1/2 - c_k)^2 = 1/4, and 9/4 or more for all others  (1)

Numbers of chunks and tokens are held in the dtype of the arrays, so that they fit into Vectors. They and the halves
between them are exact below 2^23 in float32, and `check_length` sees to that.
"""

import numpy as np

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.panel import rounded_up
from linattn_ref.kernels.jit.loops.simd.vector import LINE, broadcast, lanes, load, prefetch, where_greater
from linattn_ref.kernels.jit.loops.views import unit_stride

AHEAD = 6  # tokens: a row from the third-level cache or beyond arrives in time


def check_length(q):
    """No more tokens ``q (..., N, D)`` than have a number in their dtype.

    Raises
    ------
    ValueError
        More than 2^23 in float32, more than 2^52 in float64.
    """
    n, longest = q.shape[-2], 1 << np.finfo(q.dtype).nmant
    if n > longest:
        raise ValueError(f"q: expected at most {longest} tokens in {q.dtype}, got {n}")


@inner
def hide_met_before(score, chunks, others, column, half):
    """``-inf`` where a token in the Vector meets the token ``column`` of ``others`` in an earlier round.

    ``chunks (rounds before, lanes)`` are those of the Vector's tokens, ``others (rounds before, tokens)`` those of the
    others; the Vector holds queries and ``half`` is 1/2, or it holds keys and ``half`` is -1/2.
    """
    for r in range(others.shape[0]):
        apart = load(chunks, r) - broadcast(others[r, column] + half)
        score = where_greater(apart * apart, broadcast(chunks.dtype.type(1)), score, -np.inf)  # (1)
    return score


@inner
def hide_itself(score, places, place):
    """``-inf`` in the lane whose number in ``places`` is ``place``."""
    apart = load(places, 0) - broadcast(places.dtype.type(place))
    return where_greater(apart * apart, broadcast(places.dtype.type(0.5)), score, -np.inf)


@inner
def fetch(x, tokens, i):
    """Have the processor fetch the row of a token that is AHEAD of the ``i``-th: rows lie anywhere in memory."""
    if i + AHEAD < tokens.size:
        token = tokens[i + AHEAD]
        for t in range(0, x.shape[1], LINE // x.itemsize):
            prefetch(x, token, t)


@inner
def gather(x, tokens):
    """``x[tokens]`` with as many columns as fill Vectors, those left over 0."""
    x = unit_stride(x)
    rows = np.empty((tokens.size, rounded_up(x.shape[1], lanes(x))), x.dtype)
    for i in range(tokens.size):
        token = tokens[i]
        fetch(x, tokens, i)
        for t in range(x.shape[1]):
            rows[i, t] = x[token, t]
        for t in range(x.shape[1], rows.shape[1]):
            rows[i, t] = 0
    return rows


@inner
def pack_tokens(panel, x, tokens, scale):
    """``panel[t, i] = scale * x[tokens[i], t]``; lanes beyond the last token are 0."""
    x = unit_stride(x)
    for i in range(tokens.size):
        token = tokens[i]
        fetch(x, tokens, i)
        for t in range(x.shape[1]):
            panel[t, i] = scale * x[token, t]
    panel[:, tokens.size :] = 0


@inner
def chunks_before(chunks, rounds, tokens):
    """The chunks of some tokens in the first ``rounds`` rounds: ``(rounds, tokens)``."""
    some = np.empty((rounds, tokens.size), chunks.dtype)
    for r in range(rounds):
        for i in range(tokens.size):
            some[r, i] = chunks[r, tokens[i]]
    return some


@inner
def into_lanes(panel, numbers):
    """``numbers (rows, some)`` into the first lanes of a panel, 0 into the others."""
    for r in range(numbers.shape[0]):
        for i in range(panel.shape[1]):
            panel[r, i] = numbers[r, i] if i < numbers.shape[1] else 0
