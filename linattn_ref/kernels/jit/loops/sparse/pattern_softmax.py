"""Pattern softmax in Numba: the page `linattn_ref.attention.pattern_softmax` on the tiles of `softmax`.

Numbers of equations are those of `online_softmax`. One part of the pattern is run after the other, each with a task for
every ``lanes`` queries of a head (forward) or ``lanes`` keys (backward), one query or key per lane, as in `softmax`::

    forward    lanes: queries of a tile, fetched by their numbers      streamed: the keys in its runs, in tiles of KEYS
    backward   lanes: keys of a tile, fetched by their numbers         streamed: the rows in its runs, of QUERIES

What is streamed is put in the part's order beforehand, unless it is in order already. Only tiles at the ends of a run
compare a column with the ``low`` and ``high`` of a row.

Forward, a task begins with what its queries have seen in earlier parts: the maximum, the sum, and the output times the
sum. Backward, each part adds to the gradients. A part has a query or key no more than once, so every number is written
by one task, and the result is the same to the last bit for any number of threads.
"""

import numpy as np

from linattn_ref.attention.sparse.part import TILE
from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.entrance import check_indices
from linattn_ref.kernels.jit.loops.heads import four_heads_of, give, head_of, new_like, side_by_side, table_of, to_write
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.simd.panel import new_panel, product, zero_panel
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, keep, lanes, load, store, where_greater
from linattn_ref.kernels.jit.loops.softmax import softmax_tile as shared
from linattn_ref.kernels.jit.loops.sparse.lsh_meet import pack_tokens

LOW, HIGH = 0, 1  # rows of the panel with each query's limits


# --- Forward --------------------------------------------------------------------------------------------------------


def forward(q, k, v, key_mask, pattern, scale, *, out=None):
    """Softmax attention over the pairs of a pattern: the output and two numbers per row.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``
    key_mask : ndarray of bool ``(..., L)`` or None
    pattern : tuple of `linattn_ref.attention.sparse.part.Part`
        Disjoint, with ``N`` queries and ``L`` keys; the same for all leading axes.
    scale : float
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    m, share : ndarray ``(..., N)``
        The largest score, and one over the sum of weights, which is 0 for a query that sees nothing, whose output is 0.
    """
    (q, k, v), key_mask = side_by_side(q, k, v), shared.flat_mask(key_mask, k)
    written = to_write(out, (*q.shape[:-1], v.shape[-1]), q.dtype)
    written[...] = 0
    row_max = np.full((len(key_mask), q.shape[-2]), np.finfo(q.dtype).min, q.dtype)  # (heads, N), below any score
    row_sum = np.zeros_like(row_max)  # (heads, N)
    for part in pattern:
        some_k, some_v, mask = (_in_order(x, part.keys, axis) for x, axis in ((k, -2), (v, -2), (key_mask, -1)))
        tasks = len(row_max) * (part.tiles.size - 1) * (TILE // lanes(q))
        _forward(tasks, table_of(q, some_k, some_v, written), mask, part, q.dtype.type(scale), row_max, row_sum)
    share = np.divide(1, row_sum, out=row_sum, where=row_sum != 0)
    return give(out, written), row_max.reshape(q.shape[:-1]), share.reshape(q.shape[:-1])


def _in_order(x, order, axis):
    """``x`` with its rows along an axis in the order given; no copy if they are."""
    if _ascending(order, x.shape[axis]):
        return x
    check_indices("pattern", order, x.shape[axis])  # from the end it would count negative ones
    return np.take(x, order, axis=axis)


def _ascending(order, length):
    return np.array_equal(order, np.arange(length))


PART = {
    "queries": "rows < N",
    "keys": "columns < L",
    "low": "rows <= columns",
    "high": "rows <= columns",
    "tiles": "tiles+1 <= rows",
    "first_run": "tiles+1 <= runs",
    "runs": "runs 2 <= columns",
    "key_tiles": "key_tiles+1 <= columns",
}


@kernel(
    table=("heads N D", "heads columns D", "heads columns M", "heads N M"),
    key_mask="heads columns",
    part=PART | {"keys": "columns"},
    row_max="heads N",
    row_sum="heads N",
)
def _forward(task, table, key_mask, part, scale, row_max, row_sum):
    width, dtype = lanes(row_max), row_max.dtype
    pieces = TILE // width  # tasks per tile
    tasks = (part.tiles.size - 1) * pieces
    head, turn = task // tasks, task % tasks
    tile, piece = turn // pieces, turn % pieces
    first = part.tiles[tile] + piece * width
    last = min(first + width, part.tiles[tile + 1])
    runs = part.runs[part.first_run[tile] : part.first_run[tile + 1]]
    if first < last and len(runs) > 0:
        rows = part.queries[first:last], part.low[first:last], part.high[first:last]
        q, k, v, out = four_heads_of(table, 0, head, dtype)
        results = out, row_max[head], row_sum[head]
        if not _forward_tile(q, k, v, key_mask[head], rows, runs, scale, results, False):
            _forward_tile(q, k, v, key_mask[head], rows, runs, scale, results, True)


@once
def _forward_tile(q, k, v, key_mask, rows, runs, scale, results, careful):
    """The queries of one head that stand in ``rows``, at most ``lanes``, and the keys in ``runs``.

    False, and nothing is written, if it has to be ``careful``.
    """
    queries, low, high = rows
    out, row_max, row_sum = results
    q_t, (out_t, state) = new_panel(q.shape[1], q), shared.nothing_seen(v.shape[1], q)  # (D, queries), (M, queries)
    of_queries, of_scores = shared.apart(scale, q)
    pack_tokens(q_t, q, queries, of_queries)
    _start(queries, results, out_t, state)
    scores, limits = new_panel(shared.KEYS, q), new_panel(2, q)  # (keys, queries)
    for run in range(len(runs)):
        begin, end = max(runs[run, 0], low.min()), min(runs[run, 1], high.max())
        for start in range(begin, end, shared.KEYS):
            stop = min(start + shared.KEYS, end)
            shared.scores_of(scores, k[start:stop], q_t, of_scores, careful)
            _hide(scores, key_mask[start:stop], low, high, start, limits)
            shared.online_softmax(scores, v[start:stop], state, out_t, careful)
    if not careful:
        if shared.has_none(out_t, len(out_t)):
            return False
        for i in range(queries.size):
            if shared.is_beyond(state, i):
                return False
    for i in range(queries.size):
        shared.write_row(out[queries[i]], i, out_t, state)
        row_max[queries[i]], row_sum[queries[i]] = state[shared.MAXIMUM, i], state[shared.SUM, i]
    return True


@inner
def _start(queries, results, out_t, state):
    """What the queries have seen so far."""
    out, row_max, row_sum = results
    for i in range(queries.size):
        row = queries[i]
        state[shared.MAXIMUM, i], state[shared.SUM, i] = row_max[row], row_sum[row]
        if row_sum[row] != 0:
            for m in range(out_t.shape[0]):
                out_t[m, i] = row_sum[row] * out[row, m]


@inner
def _hide(scores, key_mask, low, high, start, limits):
    """``-inf`` for masked keys in all lanes, for column ``start + j`` where it is not from ``low`` to ``high``."""
    some_hidden = low.max() > start or high.min() < start + key_mask.size
    if some_hidden:
        limits[:] = 0
        for i in range(low.size):
            limits[LOW, i] = min(max(low[i] - start, 0), shared.KEYS) - 1  # small numbers, which any dtype holds
            limits[HIGH, i] = min(max(high[i] - start, 0), shared.KEYS)
    for j in range(key_mask.size):
        if not key_mask[j]:
            scores[j] = -np.inf
        elif some_hidden:
            column = broadcast(scores.dtype.type(j))
            score = where_greater(load(limits, HIGH), column, load(scores, j), -np.inf)
            store(scores, j, where_greater(column, load(limits, LOW), score, -np.inf))


# --- Backward -------------------------------------------------------------------------------------------------------


def backward(d_out, q, k, v, out, m, share, key_mask, pattern, scale):
    """Gradients of :func:`forward`: ``d_q (..., N, D)``, ``d_k (..., L, D)``, ``d_v (..., L, M)``."""
    d_out, q, k, v = side_by_side(d_out, q, k, v)
    shift, share, row_sum, careful = shared.rows_to_weigh(m, share, d_out, out, q)
    key_mask = shared.flat_mask(key_mask, k)
    d_q, d_k, d_v = new_like(q, k, v)
    q, rest, left = shared.scaled_first(q, scale)
    tasks, shares = shared.room_for_shares(d_q, len(shift), -(-k.shape[-2] // TILE))
    for x in (shares, d_k, d_v):
        x[...] = 0
    for part in pattern:
        rows = [_in_order(x, part.queries, -2) for x in (d_out, q)]
        rows += [_in_order(x, part.queries, -1) for x in (shift, share, row_sum)]
        own = shares if _ascending(part.queries, q.shape[-2]) else np.zeros_like(shares)
        table = table_of(*rows[:2], k, v, d_k, d_v)
        options = key_mask, part, *part.by_key, q.dtype.type(rest), careful
        _backward(len(shift) * tasks, table, table_of(own), tasks, *rows[2:], *options)
        if own is not shares:
            _add_rows(len(shift) * tasks, table_of(shares, own), part.queries, shift)
    shared.add_shares(d_q, shares, left)
    return d_q, d_k, d_v


@kernel(
    table=("heads rows M", "heads rows D", "heads L D", "heads L M", "heads L D", "heads L M"),
    shares=("parts rows *",),
    **dict.fromkeys(("shift", "share", "row_sum"), "heads rows"),
    key_mask="heads L",
    part=PART | {"queries": "rows"},
    first_run="key_tiles+1 <= own_runs",
    runs="own_runs 2 <= rows",
)
def _backward(task, table, shares, tasks, shift, share, row_sum, key_mask, part, first_run, runs, scale, careful):
    dtype = shift.dtype
    h, turn = task // tasks, task % tasks
    d_out, q, k, v = four_heads_of(table, 0, h, dtype)
    d_k, d_v, d_q = head_of(table, 4, h, dtype), head_of(table, 5, h, dtype), head_of(shares, 0, task, dtype)
    rows = (d_out, q, shift[h], share[h], row_sum[h], part.low, part.high, d_q)
    for tile in range(turn, part.key_tiles.size - 1, tasks):
        own_runs = runs[first_run[tile] : first_run[tile + 1]]
        for first in range(part.key_tiles[tile], part.key_tiles[tile + 1], lanes(shift)):
            keys = part.keys[first : min(first + lanes(shift), part.key_tiles[tile + 1])]
            if len(own_runs) > 0:
                _backward_tile(rows, own_runs, keys, first, k, v, key_mask[h], scale, d_k, d_v, careful)


@once
def _backward_tile(rows, runs, keys, first, k, v, key_mask, scale, d_k, d_v, careful):
    """What one head's ``keys``, the columns from ``first`` on, add to the gradients of the rows in ``runs``, and these
    to theirs."""
    d_out, q, shift, share, row_sum, low, high, d_q = rows
    of_keys, of_scores = shared.apart(scale, q)
    k_t, v_t, k_columns = shared.key_panels(_take(k, keys), _take(v, keys), d_q.shape[1], of_keys)
    careful = careful or shared.has_none(k_t, len(k_t)) or shared.has_none(v_t, len(v_t))
    d_k_t, d_v_t = zero_panel(k.shape[1], q), zero_panel(v.shape[1], q)  # (D, keys), (M, keys)
    p, d_s = new_panel(shared.QUERIES, q), new_panel(shared.QUERIES, q)  # (queries, keys)
    bias = shared.mask_bias(key_mask[keys], q)
    for run in range(len(runs)):
        for start in range(runs[run, 0], runs[run, 1], shared.QUERIES):
            here = slice(start, min(start + shared.QUERIES, runs[run, 1]))
            shared.scores_of(p, q[here], k_t, of_scores, careful)
            if careful:
                shared.hide_masked(p, bias)
            product(d_s, d_out[here], v_t, False)
            ends = low[here], high[here], first, first + keys.size
            _weights(p, d_s, shift[here], share[here], row_sum[here], bias, *ends, careful)
            shared.add_gradients(q[here], d_out[here], p, d_s, k_columns, keys.size, d_q[here], d_k_t, d_v_t, careful)
    _add(d_k, keys, d_k_t, scale)
    _add(d_v, keys, d_v_t, q.dtype.type(1))


@inner
def _weights(p, d_s, shift, share, row_sum, bias, low, high, first, last, careful):
    """Scores to probabilities in ``p``, the gradients of both in ``d_s``; row i sees columns ``low[i] : high[i]``."""
    for i in range(shift.size):
        score = load(p, i) + load(bias, 0)
        if low[i] > first or high[i] < last:
            score = keep(score, low[i] - first, high[i] - first, -np.inf)
        shared.weigh(p, d_s, i, score, shift[i], share[i], row_sum[i], careful)


@kernel(table=("heads N W", "heads rows W"), numbers="rows < N")
def _add_rows(head, table, numbers, like):
    """``x[numbers] += rows`` of a head, the two arrays of a table, for which NumPy makes copies of both."""
    x, rows = head_of(table, 0, head, like.dtype), head_of(table, 1, head, like.dtype)
    for r in range(numbers.size):
        for t in range(rows.shape[1]):
            x[numbers[r], t] += rows[r, t]


@inner
def _take(x, numbers):
    """``x[numbers]``, a copy, entry by entry: for whole rows Numba would compile the text of errors too."""
    rows = np.empty((numbers.size, x.shape[1]), x.dtype)
    for i in range(numbers.size):
        for t in range(x.shape[1]):
            rows[i, t] = x[numbers[i], t]
    return rows


@inner
def _add(x, numbers, panel, scale):
    """``x[numbers[i], t] += scale * panel[t, i]``."""
    for i in range(numbers.size):
        for t in range(x.shape[1]):
            x[numbers[i], t] += scale * panel[t, i]
