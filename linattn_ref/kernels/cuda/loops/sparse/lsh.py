"""LSH attention on a GPU: `linattn_ref.attention.reformer` on the tiles of `softmax`.

In each round the tokens are sorted and cut into chunks of ``C``; a chunk of queries meets the ``2 C`` keys of the chunk
before and its own. One round is run after the other, each with a block for every stretch of the order of every head,
which need not begin or end with a chunk (`lsh_tiles`)::

    gradient    a row is    sums over                                   weights      times
    out         a query     keys of its chunk and the one before        P            v
    d_q         a query     keys of its chunk and the one before        d_S          scale k
    d_v         a key       queries of its chunk and the one after      P^T          d_out
    d_k         a key       queries of its chunk and the one after      d_S^T        scale q

Forward, a block begins with what its queries have seen in earlier rounds: maximum, sum and weighted sum of values, as
`online_softmax` has them. Backward, each round adds to the gradients. A round has a token once, so every number is
written by one block, and sums have one order.

In place of the share ``1 / c_ij`` in each of its ``c_ij`` rounds a pair counts in full in the first of them, which is
the same sum and needs no look at later rounds. Two tokens met if the numbers of their chunks ``c_q - c_k`` were 0 or 1
apart. They pass through the arrays' dtype, in which they are exact: `check_chunks`.

References
----------
Kitaev, Kaiser and Levskaya (2020), "Reformer: the efficient transformer", section 2 and appendix A.
Dao et al. (2022), "FlashAttention", Algorithms 1 and 4.
"""

import math

import numpy as np

from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of, on_gpu
from linattn_ref.kernels.cuda.loops.rows import finish
from linattn_ref.kernels.cuda.loops.softmax.softmax import gradients
from linattn_ref.kernels.cuda.loops.sparse.lsh_tiles import forward_tile, gradient_tile, write_chunks
from linattn_ref.kernels.cuda.loops.tile import BLOCK, TILE, tiles


def forward(q, k, v, order, seen, chunk, causal, scale):
    """Softmax attention to all tokens that are met in any round: the output and two numbers per row.

    Parameters
    ----------
    q, k, v : array, ``(..., N, D)``, ``(..., N, D)``, ``(..., N, M)``
    order : array of integers ``(..., rounds, N)``
        The tokens in each round's sorted order: a permutation. Of NumPy, or where the others are.
    seen : array of integers ``(...)``
        How many tokens take part: the first so many of each order. Of NumPy, or where the others are.
    chunk : int
        ``C``.
    causal : bool
        Token ``i`` sees tokens ``j < i``; nobody sees itself.
    scale : float

    Returns
    -------
    out : array ``(..., N, M)``
    m, share : array ``(..., N)``
        The largest score, and one over the sum of weights, which is 0 for a token that sees nobody, whose output is 0.
    """
    check_chunks(q, chunk)
    call, dtype = Call(q.shape[:-2], q=q, k=k, v=v), dtype_of(q)
    q, k, v = call.flat(q), call.flat(k), call.flat(v)
    n, m = v.shape[1:]
    order, chunks, seen, chunk, rows = _meeting(call, order, seen, chunk)
    out = call.full((n, m), dtype, 0)
    with_it, so_far = (call.full((n, 2), dtype, -math.inf) for _ in range(2))
    grid = call.heads * -(-n // rows), tiles(m)
    for current in range(order.shape[1]):
        with_it, so_far = so_far, with_it  # a round writes all tokens that take part; others stay -inf in both
        who = order, chunks, seen, current, rows, chunk, bool(causal)
        call.launch(
            forward_tile, grid, BLOCK, q, k, v, *who, dtype.type(scale), np.finfo(dtype).max, so_far, out, with_it
        )
    return call.results(out, *finish(call, out, with_it))


def backward(d_out, q, k, v, out, m, share, order, seen, chunk, causal, scale):
    """Gradients of :func:`forward`: ``d_q``, ``d_k``, ``d_v``, shaped like their inputs."""
    check_chunks(q, chunk)
    call = Call(q.shape[:-2], d_out=d_out, q=q, k=k, v=v, out=out, m=m, share=share)
    dtype, scale = dtype_of(q), dtype_of(q).type(scale)
    g, q, k, v = call.flat(d_out), call.flat(q), call.flat(k), call.flat(v)
    m, share, out = call.flat(m, axes=1), call.flat(share, axes=1), call.flat(out)
    d_q, d_k, d_v = (call.full(x.shape[1:], dtype, 0) for x in (q, k, v))
    order, chunks, seen, chunk, rows = _meeting(call, order, seen, chunk)

    def add(d, a, b, a_value, b_value, u, factor, *, rows_are_queries, derivative, row_sum):
        grid = call.heads * -(-d.shape[1] // rows), tiles(d.shape[2])
        scores = scale, np.finfo(dtype).max, m, row_sum
        modes = rows_are_queries, derivative
        for current in range(order.shape[1]):
            who = order, chunks, seen, current, rows, chunk, bool(causal)
            call.launch(gradient_tile, grid, BLOCK, a, b, a_value, b_value, u, *who, *scores, factor, d, *modes)

    return gradients(call, add, (d_q, d_k, d_v), g, q, k, v, out, share, scale)


def check_chunks(q, chunk):
    """No more chunks of the tokens ``q (..., N, D)`` than have a number in their dtype.

    Raises
    ------
    ValueError
        More than 2^24 in float32, more than 2^53 in float64.
    """
    count, most = -(-q.shape[-2] // int(chunk)), 2 << np.finfo(dtype_of(q)).nmant
    if count > most:
        raise ValueError(f"chunk: expected at most {most} chunks in {dtype_of(q)}, got {count}")


def _meeting(call, order, seen, chunk):
    """``order (heads, rounds, N)``, chunks ``(heads, N, rounds)``, ``seen (heads,)``; ``C <= N``, rows per block."""
    order, seen = _integers(call, order, 2), _integers(call, seen, 0)
    rounds, n = order.shape[1:]
    chunk = min(int(chunk), n)
    chunks = call.empty((n, rounds), np.int32)
    call.for_each(write_chunks, math.prod(order.shape), order, chunk, chunks)
    return order, chunks, seen, chunk, _rows(chunk)


def _rows(chunk):
    """Of short chunks as many as with the chunk before them fill a tile's columns; of longer ones a tile."""
    return (TILE // chunk - 1) * chunk if 2 * chunk <= TILE else TILE


def _integers(call, x, axes):
    """``(heads, ...)`` with so many axes after ``heads``, on the GPU."""
    if on_gpu(x):
        return call.flat(x, axes)
    x = np.ascontiguousarray(x, np.int32)
    return call.library.constant(x.reshape((call.heads, *x.shape[x.ndim - axes :])))
