"""One token of softmax attention with a key/value cache, once over it.

    a = scale K q                                            (1)  (t,)
    w = exp(a - max a)                                       (2)  (t,)
    out = V^T w / sum(w)                                     (3)  (M,)

The cache is read where it stands, a tile of ``TILE`` keys and then their values, by ``ROWS`` rows at a time. A score is
the sum of the lanes of ``k * q``, the output a sum of rows of ``V``, each times a weight::

             D                                            M
          +-------+     +---+                         +-------+
    keys  |   K   |  *  | q |  sum   scores (1),      |   V   |  *  weights, each in all lanes, sum over keys (3)
          |       |     +---+  --->  weights (2)      |       |
          +-------+                                   +-------+

The maximum and the sum so far are carried from tile to tile as in `softmax`. What takes the time is to read the cache:
``AHEAD`` rows before they are needed, rows are asked for. `linattn-ref bench steps` compares a step with NumPy's and
with reading the cache once (figures/bench_steps.json).

What a call adds are some 4 microseconds of checks, and more where a large cache has driven Python itself out of the
processor's caches. Tried, and no faster: a tile's values asked for while its keys are read, and the next keys while its
values are; rows fetched past the second-level cache, or not ahead at all; whole rows loaded without a mask.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.simd.panel import new_panel
from linattn_ref.kernels.jit.loops.simd.row_sums import add_products, prefetch_rows, store_totals
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, largest_lane, load, maximum, spread, total
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, zero_block
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.softmax.softmax_tile import apart
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, rows_of, store_row

TILE = 1024  # keys; their scores stay in the first-level cache
AHEAD = 48  # rows


def step(q, k, v, length, scale):
    """The output ``(..., M)`` of one query ``(..., D)`` that sees the first ``length`` rows of a cache.

    ``k`` and ``v`` are ``(..., capacity, D)`` and ``(..., capacity, M)``; what stands in later rows changes nothing.
    """
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    step_heads(np.ascontiguousarray(q), k, v, length, float(scale), out)
    return out


# --- Compiled -------------------------------------------------------------------------------------------------------


@serial_kernel(q="... D", k="... capacity D", v="... capacity M", out="... M", written="out")
def step_heads(q, k, v, length, scale, out):
    """Write ``out (..., M)``."""
    attend(rows_of(q), rows_of(k), rows_of(v), length, scale, rows_of(out))


@inner
def append(cache, x, length):
    """The last of the first ``length`` rows of each head's, ``x (heads, D)``.

    (To set a row to another compiles the text of errors.)
    """
    capacity = len(cache) // len(x)
    for c in range(0, x.shape[1], lanes(x)):
        some_cache, some_x = columns_from(cache, c), columns_from(x, c)
        for head in range(len(x)):
            store_row(some_cache, head * capacity + length - 1, load_row(some_x, head))


@inner
def attend(q, k, v, length, scale, out):
    """The step on rows: ``q (heads, D)``, ``k, v (heads * capacity, D or M)``, ``out (heads, M)``."""
    if k.shape[1] != q.shape[1] or v.shape[1] != out.shape[1] or len(out) != len(q):
        raise ValueError("expected q (..., D), k (..., capacity, D), v (..., capacity, M) and out (..., M)")
    if len(q) == 0:
        return
    if len(k) % len(q) != 0 or len(v) != len(k):
        raise ValueError("expected the same leading axes of q, k, v and out, and the same capacity of k and v")
    if not 0 < length <= len(k) // len(q):
        raise ValueError("length: expected a number from 1 to the capacity of k and v")
    query, scores = new_panel(-(-q.shape[1] // lanes(q)), q), new_panel(TILE // lanes(q), q)
    query[:] = 0
    of_query, of_scores = apart(q.dtype.type(scale), q)
    for head in range(len(q)):
        for c in range(q.shape[1]):
            query[c // lanes(q), c % lanes(q)] = q[head, c] * of_query
        first, own_out = head * (len(k) // len(q)), out[head : head + 1]
        _attend_head(query, k, v, first, length, of_scores, scores, own_out, False)
        if not np.isfinite(own_out).all():  # a value of weight 0 may be the reason
            _attend_head(query, k, v, first, length, of_scores, scores, own_out, True)


@once
def _attend_head(query, k, v, first, length, factor, scores, out, careful):
    """A head whose rows of the cache begin at ``first``; ``out (1, M)``. ``careful``: by `_add_seen`."""
    largest, weight = query.dtype.type(np.finfo(query.dtype).min), query.dtype.type(0)  # so far
    out[:] = 0
    for start in range(first, first + length, TILE):
        keys = min(TILE, first + length - start)
        _score(scores, k, query, factor, start, keys)
        new_largest = _largest(scores, keys, largest)
        if new_largest == np.inf or new_largest == np.finfo(query.dtype).min:  # scores beyond the range
            _saturate(scores, keys)
            new_largest = _largest(scores, keys, largest)
        decay = query.dtype.type(math.exp(largest - new_largest))
        largest, weight = new_largest, decay * weight + _weigh(scores, keys, new_largest)
        if careful:
            _add_seen(out, v, scores, start, keys, decay)
        else:
            for c in range(0, v.shape[1], lanes(v)):
                _add(columns_from(out, c), columns_from(v, c), scores, start, keys, decay)
    share = weight if weight == 0 else query.dtype.type(1) / weight
    for m in range(out.shape[1]):
        out[0, m] *= share


@inner
def _score(scores, k, query, factor, start, keys):
    """(1) of the keys from row ``start`` on, times a factor; ``-inf`` in the lanes after the last of them."""
    width, whole = lanes(k), keys - keys % ROWS
    for j in range(0, whole, ROWS):
        block = zero_block(scores)
        for c in range(len(query)):
            columns = columns_from(k, c * width)
            prefetch_rows(columns, start + j + AHEAD)
            block = add_products(block, columns, start + j, load(query, c), columns.shape[1])
        store_totals(scores, j // width, j % width, block)
    for j in range(whole, keys):
        x = broadcast(k.dtype.type(0))
        for c in range(len(query)):
            x = fma(load_row(columns_from(k, c * width), start + j), load(query, c), x)
        scores[j // width, j % width] = total(x)
    if factor != 1:
        for r in range(-(-keys // width)):
            store_row(scores, r, load(scores, r) * broadcast(factor))
    if keys % width:
        scores[keys // width, keys % width :] = -np.inf


@inner
def _saturate(scores, keys):
    """Infinite scores of the keys there are go to the end of the range, also those of infinite keys."""
    largest, width = scores.dtype.type(np.finfo(scores.dtype).max), lanes(scores)
    for j in range(keys):
        r, lane = j // width, j % width
        if scores[r, lane] > largest:
            scores[r, lane] = largest
        elif scores[r, lane] < -largest:
            scores[r, lane] = -largest


@inner
def _largest(scores, keys, largest):
    high = broadcast(largest)
    for r in range(-(-keys // lanes(scores))):
        high = maximum(load(scores, r), high)
    return largest_lane(high)


@inner
def _weigh(scores, keys, largest):
    """(2): scores to weights, and their sum."""
    shift = broadcast(largest)
    sums = broadcast(largest - largest)
    for r in range(-(-keys // lanes(scores))):
        weights = exp(load(scores, r) - shift)
        store_row(scores, r, weights)
        sums = sums + weights
    return total(sums)


@inner
def _add(out, v, weights, start, keys, decay):
    """(3), some columns of it. The sums of every fourth row do not wait for one another."""
    width, whole = lanes(weights), keys - keys % ROWS
    a = load_row(out, 0) * broadcast(decay)
    b = c = d = broadcast(decay - decay)
    for j in range(0, whole, ROWS):
        prefetch_rows(v, start + j + AHEAD)
        for h in range(j, j + ROWS, 4):
            r, lane, row = h // width, h % width, start + h
            a = fma(spread(weights, r, lane), load_row(v, row), a)
            b = fma(spread(weights, r, lane + 1), load_row(v, row + 1), b)
            c = fma(spread(weights, r, lane + 2), load_row(v, row + 2), c)
            d = fma(spread(weights, r, lane + 3), load_row(v, row + 3), d)
    for j in range(whole, keys):
        a = fma(spread(weights, j // width, j % width), load_row(v, start + j), a)
    store_row(out, 0, (a + b) + (c + d))


@inner
def _add_seen(out, v, weights, start, keys, decay):
    """(3) without what has weight 0, whatever it is."""
    for m in range(out.shape[1]):
        total = out[0, m] * decay if decay != 0 else decay
        for j in range(keys):
            weight = weights[j // lanes(weights), j % lanes(weights)]
            if weight != 0:
                total += weight * v[start + j, m]
        out[0, m] = total
