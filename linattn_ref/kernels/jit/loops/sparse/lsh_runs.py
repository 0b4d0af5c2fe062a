"""A round of LSH attention in Numba, a task for each run of sorted tokens: the loops of `lsh`.

In each round the tokens are sorted and cut into chunks of ``C``; a chunk of queries meets the ``2 C`` keys of the chunk
before and its own. A task gathers the rows of one chunk's tokens and works on them as `softmax` does on its tiles.

Forward: a task is a chunk of queries, ``lanes`` of them at a time, a query per lane::

    scores  = K (scale Q^T)                   (2 C, queries), -inf for keys that are not met
    weights = exp(scores - maximum)
    out^T   = V^T weights                     (M, queries)

Then the output, maximum and sum of the round are added to those of the rounds before, brought to one maximum: that is
the combination by log-sum-exp. In a round every token is in one chunk of queries, so every number is written by one
task.

Backward: a task is a chunk of *keys*, ``lanes`` of them at a time, a key per lane; its queries are the ``2 C`` of its
own chunk and the one after::

    p   = exp(Q (scale K^T) - m) share  d_s = p * (d_out V^T - row_sum)        (2 C, keys)
    d_v^T = d_out^T p                   d_k^T = Q^T d_s                        (M, keys), (D, keys)
    d_q  += d_s (scale K)                                                      (2 C, D)

Neighbours both add to the ``d_q`` of the chunk between them. So first all even chunks are taken and then all odd ones:
no two tasks at a time write the same row, and the order of the sums is the same for any number of threads.

Memory: the output, two numbers per row, one per token and round; backward the gradients. A pair that meets in several
rounds counts in the first of them alone, `lsh_meet`. Masked tokens come last in every order and are left out.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.heads import four_heads_of, head_of
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.simd.panel import new_panel, product
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, keep, lanes, load, maximum, store, where_greater
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.softmax import softmax_tile as tile
from linattn_ref.kernels.jit.loops.sparse import lsh_meet as meet
from linattn_ref.kernels.jit.loops.views import unit_stride

RUN = 512  # sorted tokens per task, about: a chunk is gathered once for those it meets
MAXIMUM, SUM, BEYOND = 0, 1, 2  # rows of the panel with what there is of each query
ROUND = {"order": "some rounds N < N", "chunks": "some rounds N", "seen": "some <= N"}  # arrays of both kernels


@inner
def run_length(chunk):
    """How many sorted tokens a task takes: whole chunks, with gathered rows that stay in the second-level cache."""
    return chunk * max(1, RUN // chunk)


# --- Forward ----------------------------------------------------------------------------------------------------------


@kernel(table=("heads N D", "heads N D", "heads N M", "heads N M"), **ROUND, row_max="some N", row_sum="some N")
def forward_round(task, r, table, first_head, order, chunks, seen, chunk, causal, scale, row_max, row_sum):
    """``q, k, v, out`` from a table, of all heads; the other arrays of some, from the first of them on."""
    n, run, dtype = order.shape[2], run_length(chunk), row_max.dtype
    runs = (n + run - 1) // run
    h, first = task // runs, task % runs * run
    if first < seen[h]:
        before = min(first, chunk)  # the run's first queries meet the chunk before
        tokens = order[h, r, first - before : min(first + run, seen[h])]
        q, k, v, out = four_heads_of(table, 0, first_head + h, dtype)
        results = out, row_max[h], row_sum[h]
        _forward_run(r, q, k, v, tokens, before, chunks[h], chunk, causal, scale, results)


@once
def _forward_run(r, q, k, v, tokens, before, chunks, chunk, causal, scale, results):
    """The queries ``tokens[before:]``, chunk by chunk."""
    width = lanes(q)
    k_rows, v_rows = meet.gather(k, tokens), meet.gather(v, tokens)
    places = tokens.astype(q.dtype).reshape(1, -1)
    their_chunks = meet.chunks_before(chunks, r, tokens)
    of_queries, of_scores = tile.apart(scale, q)
    q_t = new_panel(q.shape[1], q)  # (D, queries)
    rows = np.empty((width, v_rows.shape[1]), q.dtype)  # (queries, M), by panels of columns
    scores = new_panel(2 * chunk, q)  # (keys, queries)
    my_place, my_chunks, sums = new_panel(1, q), new_panel(r, q), new_panel(3, q)
    for start in range(before, tokens.size, chunk):
        end = min(start + chunk, tokens.size)
        keys = slice(max(start - chunk, 0), end)
        some = scores[: end - keys.start]
        for first in range(start, end, width):
            mine = slice(first, min(first + width, end))
            meet.pack_tokens(q_t, q, tokens[mine], of_queries)
            meet.into_lanes(my_place, places[:, mine])
            meet.into_lanes(my_chunks, their_chunks[:, mine])
            theirs = places[0, keys], their_chunks[:, keys]
            for careful in (False, True):
                if not careful or _is_beyond(sums, end - first):
                    tile.scores_of(some, k_rows[keys, : q.shape[1]], q_t, of_scores, careful)
                    _hide(some, first - keys.start, causal, (my_place, my_chunks), theirs, sums)
            _softmax(some, sums)
            for c in range(0, v_rows.shape[1], width):
                product(rows[:, c : c + width], some.T, v_rows[keys, c : c + width], False)
            if tile.has_none(rows, mine.stop - first):
                for c in range(0, v_rows.shape[1], width):
                    tile.product_of_seen(rows[:, c : c + width], some.T, v_rows[keys, c : c + width], False)
            _combine(tokens[mine], rows, sums, results)


@inner
def _hide(scores, first, causal, mine, theirs, sums):
    """``-inf`` for keys that are not met, or were met before; the maximum, and what `_is_beyond` looks at.

    That is 0 times the sum of scores. The query in lane 0 is key ``first``.
    """
    highest = broadcast(np.finfo(scores.dtype).min)  # below any score, yet exp(-inf - it) is 0, not NaN
    zero = broadcast(scores.dtype.type(0))
    beyond = zero
    (my_place, my_chunks), (places, their_chunks) = mine, theirs
    for j in range(scores.shape[0]):
        beyond = fma(load(scores, j), zero, beyond)
        score = meet.hide_met_before(load(scores, j), my_chunks, their_chunks, j, scores.dtype.type(0.5))
        if causal:
            score = where_greater(load(my_place, 0), broadcast(places[j]), score, -np.inf)
        elif first <= j < first + lanes(scores):
            score = meet.hide_itself(score, my_place, places[j])
        store(scores, j, score)
        highest = maximum(score, highest)
    store(sums, MAXIMUM, highest)
    store(sums, BEYOND, beyond)


@inner
def _is_beyond(sums, queries):
    """Whether a score of one of the queries is infinite, or NaN: 0 times it is not 0."""
    return not (sums[BEYOND, : min(queries, sums.shape[1])] == 0).all()


@inner
def _softmax(scores, sums):
    """Scores to weights, and their sum."""
    highest, total = load(sums, MAXIMUM), broadcast(scores.dtype.type(0))
    for j in range(scores.shape[0]):
        weight = exp(load(scores, j) - highest)
        store(scores, j, weight)
        total = total + weight
    store(sums, SUM, total)


@inner
def _combine(queries, rows, sums, results):
    """Add a round to those before it, both brought to the larger maximum."""
    out, row_max, row_sum = unit_stride(results[0]), results[1], results[2]
    for i in range(queries.size):
        meet.fetch(out, queries, i)
        if sums[SUM, i] == 0:  # meets nobody new; a NaN is not 0 and goes on
            continue
        token, highest = queries[i], max(row_max[queries[i]], sums[MAXIMUM, i])
        old_share, share = math.exp(row_max[token] - highest), math.exp(sums[MAXIMUM, i] - highest)
        row_max[token] = highest
        row_sum[token] = old_share * row_sum[token] + share * sums[SUM, i]
        for m in range(out.shape[1]):
            out[token, m] = old_share * out[token, m] + share * rows[i, m]


# --- Backward ---------------------------------------------------------------------------------------------------------


@kernel(
    table=("heads N M", "heads N D", "heads N D", "heads N M", "heads N D", "heads N D", "heads N M"),
    **ROUND,
    **dict.fromkeys(("shift", "share", "row_sum"), "some N"),
)
def backward_round(
    task, r, parity, table, first_head, order, chunks, seen, chunk, causal, scale, shift, share, row_sum, careful
):
    """Likewise ``d_out, q, k, v, d_q, d_k, d_v``."""
    n, run, dtype = order.shape[2], run_length(chunk), shift.dtype
    runs = ((n + run - 1) // run + 1 - parity) // 2  # every second one
    h, first = task // runs, (2 * (task % runs) + parity) * run
    if first < seen[h]:
        keys = min(run, seen[h] - first)
        tokens = order[h, r, first : min(first + run + chunk, seen[h])]  # the chunk after meets the run's last keys
        d_out, q, k, v = four_heads_of(table, 0, first_head + h, dtype)
        d_q, d_k = head_of(table, 4, first_head + h, dtype), head_of(table, 5, first_head + h, dtype)
        d_v = head_of(table, 6, first_head + h, dtype)
        mine = d_out, q, shift[h], share[h], row_sum[h], d_q
        _backward_run(r, mine, k, v, tokens, keys, chunks[h], chunk, causal, scale, d_k, d_v, careful)


@once
def _backward_run(r, rows, k, v, tokens, n_keys, chunks, chunk, causal, scale, d_k, d_v, careful):
    """The keys ``tokens[:n_keys]``, chunk by chunk, and what they give to the queries ``tokens``."""
    width = lanes(k)
    g_rows, q_rows = meet.gather(rows[0], tokens), meet.gather(rows[1], tokens)  # (queries, M), (queries, D)
    k_rows, d_q = meet.gather(k, tokens[:n_keys]), np.zeros(q_rows.shape, k.dtype)  # (keys, D), (queries, D)
    shift, share, row_sum = rows[2][tokens], rows[3][tokens], rows[4][tokens]
    places = tokens.astype(k.dtype).reshape(1, -1)
    their_chunks = meet.chunks_before(chunks, r, tokens)
    of_keys, of_scores = tile.apart(scale, k)
    k_t, v_t = new_panel(k.shape[1], k), new_panel(v.shape[1], k)  # (D, keys), (M, keys)
    columns = new_panel(width, k)  # (keys, lanes), of d_k or d_v
    p, d_s = new_panel(2 * chunk, k), new_panel(2 * chunk, k)  # (queries, keys)
    my_place, my_chunks = new_panel(1, k), new_panel(r, k)
    for start in range(0, n_keys, chunk):
        queries = slice(start, min(start + 2 * chunk, tokens.size))
        some_p, some_d_s = p[: queries.stop - start], d_s[: queries.stop - start]
        for first in range(start, min(start + chunk, n_keys), width):
            mine = slice(first, min(first + width, start + chunk, n_keys))
            keys = mine.stop - first
            meet.pack_tokens(k_t, k, tokens[mine], of_keys)
            meet.pack_tokens(v_t, v, tokens[mine], k.dtype.type(1))
            careful = careful or tile.has_none(k_t, len(k_t)) or tile.has_none(v_t, len(v_t))
            meet.into_lanes(my_place, places[:, mine])
            meet.into_lanes(my_chunks, their_chunks[:, mine])
            tile.scores_of(some_p, q_rows[queries, : k.shape[1]], k_t, of_scores, careful)
            product(some_d_s, g_rows[queries, : v.shape[1]], v_t, False)
            theirs = places[0, queries], their_chunks[:, queries]
            _hide_keys(some_p, first - start, keys, causal, (my_place, my_chunks), theirs)
            for i in range(len(some_p)):
                query = start + i
                tile.weigh(some_p, some_d_s, i, load(some_p, i), shift[query], share[query], row_sum[query], careful)
            for c in range(0, v.shape[1], width):
                tile.multiply(columns, some_p.T, g_rows[queries, c : c + width], False, careful)
                _add_rows(d_v, tokens[mine], c, columns, k.dtype.type(1))
            for c in range(0, k.shape[1], width):
                tile.multiply(columns, some_d_s.T, q_rows[queries, c : c + width], False, careful)
                sent = d_q[queries, c : c + width]
                tile.multiply(sent, some_d_s[:, :keys], k_rows[mine, c : c + width], True, careful)
                _add_rows(d_k, tokens[mine], c, columns, scale)
    _add_rows(rows[5], tokens, 0, d_q, scale)


@inner
def _hide_keys(scores, first, keys, causal, mine, theirs):
    """``-inf`` for pairs that do not meet, or met before. The key in lane 0 is query ``first``; there are ``keys``."""
    (my_place, my_chunks), (places, their_chunks) = mine, theirs
    for i in range(scores.shape[0]):
        score = meet.hide_met_before(load(scores, i), my_chunks, their_chunks, i, scores.dtype.type(-0.5))
        if causal:
            score = where_greater(broadcast(places[i]), load(my_place, 0), score, -np.inf)
        elif first <= i < first + lanes(scores):
            score = meet.hide_itself(score, my_place, places[i])
        if keys < lanes(scores):
            score = keep(score, 0, keys, -np.inf)
        store(scores, i, score)


@inner
def _add_rows(x, tokens, first, rows, scale):
    """``x[tokens[i], first + t] += scale * rows[i, t]``, for as many columns as there are."""
    x = unit_stride(x)
    columns = min(x.shape[1] - first, rows.shape[1])
    for i in range(tokens.size):
        token = tokens[i]
        meet.fetch(x, tokens, i)
        for t in range(columns):
            x[token, first + t] += scale * rows[i, t]
