"""Pattern softmax on a GPU: the page `linattn_ref.attention.pattern_softmax` on the tiles of `softmax`.

Numbers of equations are those of `online_softmax`. One part of the pattern is run after the other, each with a block
for every ``TILE`` rows of a head (`pattern_tasks`)::

    gradient    a row is    sums over                       weights      times
    out         a query     the keys in its tile's runs     P            v
    d_q         a query     the keys in its tile's runs     d_S          scale k
    d_v         a key       the queries that see it         P^T          d_out
    d_k         a key       the queries that see it         d_S^T        scale q

Forward, a block begins with what its queries have seen in earlier parts: maximum, sum and weighted sum of values, as
`online_softmax` has them. Backward, each part adds to the gradients. A part has a query or key no more than once, so
every number is written by one block, and sums have one order.

Where a few rows have most of the work, as global tokens do, it is dealt out to several blocks (`pattern_pieces`).

References
----------
Dao et al. (2022), "FlashAttention", Algorithm 5 (block-sparse).
"""

import math

import numpy as np

from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.loops.rows import copied, finish, mask_of
from linattn_ref.kernels.cuda.loops.softmax.softmax import gradients
from linattn_ref.kernels.cuda.loops.sparse.pattern_pieces import add_pieces, join_softmax
from linattn_ref.kernels.cuda.loops.sparse.pattern_tasks import tasks_of_keys, tasks_of_queries
from linattn_ref.kernels.cuda.loops.sparse.pattern_tiles import forward_tile, gradient_tile
from linattn_ref.kernels.cuda.loops.tile import BLOCK, THREADS, TILE, tiles


def forward(q, k, v, key_mask, pattern, scale):
    """Softmax attention over the pairs of a pattern: the output and two numbers per row.

    Parameters
    ----------
    q, k, v : array, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``
    key_mask : array of bool ``(..., L)`` or None
    pattern : tuple of `linattn_ref.attention.sparse.part.Part`
        Disjoint, with ``N`` queries and ``L`` keys; the same for all leading axes. Of NumPy arrays always.
    scale : float

    Returns
    -------
    out : array ``(..., N, M)``
    m, share : array ``(..., N)``
        The largest score, and one over the sum of weights, which is 0 for a query that sees nothing, whose output is 0.
    """
    call, dtype = Call(q.shape[:-2], q=q, k=k, v=v, key_mask=key_mask), dtype_of(q)
    q, k, v = call.flat(q), call.flat(k), call.flat(v)
    mask, n, m = mask_of(call, key_mask, k), q.shape[1], v.shape[2]
    scale = dtype.type(scale), np.finfo(dtype).max
    out, with_it = call.full((n, m), dtype, 0), call.full((n, 2), dtype, -math.inf)
    for part in _with_pairs(pattern):
        work = tasks_of_queries(part, TILE)
        who = mask, *_on_gpu(call, work.tasks, work.runs, *_members(part))
        pieces, of_pieces = call.empty((_room(work), m), dtype), call.empty((_room(work), 2), dtype)
        seen, grid = (copied(call, with_it), out, with_it), (len(work.tasks) * call.heads, tiles(m))
        call.launch(forward_tile, grid, BLOCK, q, k, v, *who, *scale, *seen, pieces, of_pieces)
        _join(call, join_softmax, work, part.queries, pieces, of_pieces, *seen)
    return call.results(out, *finish(call, out, with_it))  # (4)


def backward(d_out, q, k, v, out, m, share, key_mask, pattern, scale):
    """Gradients of :func:`forward`: ``d_q (..., N, D)``, ``d_k (..., L, D)``, ``d_v (..., L, M)``."""
    arrays = {"q": q, "k": k, "v": v, "out": out, "m": m, "share": share, "key_mask": key_mask}
    call, dtype = Call(q.shape[:-2], d_out=d_out, **arrays), dtype_of(q)
    g, q, k, v = call.flat(d_out), call.flat(q), call.flat(k), call.flat(v)
    m, share, out = call.flat(m, axes=1), call.flat(share, axes=1), call.flat(out)
    d_q, d_k, d_v = (call.full(x.shape[1:], dtype, 0) for x in (q, k, v))
    mask, scale = mask_of(call, key_mask, k), dtype.type(scale)

    def rows_of(part, numbers, work):
        return work, numbers, (mask, *_on_gpu(call, work.tasks, work.runs, *_members(part)))

    by_query = [rows_of(part, part.queries, tasks_of_queries(part, TILE)) for part in _with_pairs(pattern)]
    by_key = [rows_of(part, part.keys, tasks_of_keys(part, TILE)) for part in _with_pairs(pattern)]

    def add(d, a, b, a_value, b_value, u, factor, *, rows_are_queries, derivative, row_sum):
        scores = scale, np.finfo(dtype).max, m, row_sum
        modes = rows_are_queries, derivative
        for work, numbers, who in by_query if rows_are_queries else by_key:
            grid = len(work.tasks) * call.heads, tiles(d.shape[2])
            pieces = call.full((_room(work), d.shape[2]), dtype, 0)
            call.launch(gradient_tile, grid, BLOCK, a, b, a_value, b_value, u, *who, *scores, factor, d, pieces, *modes)
            _join(call, add_pieces, work, numbers, pieces, d)

    return gradients(call, add, (d_q, d_k, d_v), g, q, k, v, out, share, scale)


def _join(call, kernel, work, numbers, *arrays):
    """Put pieces together, if there are any."""
    if work.slots:
        joins, numbers = _on_gpu(call, work.joins, numbers.astype(np.int32))
        call.launch(kernel, (len(work.joins) * call.heads,), (THREADS,), joins, numbers, *arrays)


def _room(work):
    """Rows for all pieces, and some for none: memory of a GPU has no arrays of size 0."""
    return max(1, work.slots) * TILE


def _with_pairs(pattern):
    """The parts in which a query sees anything."""
    return [part for part in pattern if len(part.runs) > 0]


def _members(part):
    """The part's queries and what they see, ``(rows, 3)``, and its keys ``(columns,)``."""
    return np.stack([part.queries, part.low, part.high], axis=1).astype(np.int32), part.keys.astype(np.int32)


def _on_gpu(call, *indices):
    return [call.library.constant(x) for x in indices]
