"""A token of a whole transformer in one compiled call: the step of `linattn_ref.models.causal`, all layers of it.

One token asks for every weight once, so what takes the time is to read them. They stand in one array in the order in
which they are needed, cut into panels of as many columns as a Vector has lanes, each with its bias in front::

     W (K, columns)                    weights (rows, lanes)
    +------+------+----+              +------+
    |      |      |    |              | bias |   of the first panel
    |  1   |  2   |  3 |     --->     |  1   |   K rows
    |      |      |    |              | bias |
    +------+------+----+              |  2   |
                                      | ...  |

A single row ``x`` goes through a panel in four sums, which do not wait for one another. More of them do so ``ROWS`` at
a time, so that a row of the panel that was read is used for all of these; for that, the batch is filled up. ``AHEAD``
rows before they are needed, weights are asked for, those of the next matrix during the last of this one.

At batch size 1 no step can be faster than to read every weight once. ``linattn-ref bench generation`` measures that in
the same run, and README says what share of a token it is. If a peer takes ``r`` times as long as this step,
no step can be more than ``r / share`` times as fast as the peer.

Widths are filled up to whole Vectors, by zeros. (Reference: the text itself, `linattn_ref.models.causal.step`.)
"""

from functools import lru_cache

import numpy as np

from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.layers.layer_norm import norm_row
from linattn_ref.kernels.jit.loops.linear.causal_step import step_rows
from linattn_ref.kernels.jit.loops.linear.elu_plus_one import write_features
from linattn_ref.kernels.jit.loops.rows import in_panels, widened
from linattn_ref.kernels.jit.loops.simd.normal import gelu
from linattn_ref.kernels.jit.loops.simd.row_sums import prefetch_rows
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, load, maximum, spread, store
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, add_scaled, load_block, store_block
from linattn_ref.kernels.jit.loops.softmax.softmax_step import append, attend
from linattn_ref.kernels.jit.loops.views import columns_from, rows_at

AHEAD = 64  # rows of a panel
EPS = 1e-5  # of the norms


def pack(tokens, places, norms, maps):
    """Arrays of a `linattn_ref.models.decoding.Packed`, each widened to whole Vectors.

    ``weights (rows, lanes)`` are affine maps ``w (K, columns)``, ``b (columns,)``, in the order of their use.
    """
    weights = np.concatenate([_panels(w, b) for w, b in maps])
    return widened(tokens), widened(places), widened(norms), weights


def _panels(w, b):
    k, n = len(w), lanes(w)
    return in_panels(np.concatenate([b[None], w, np.zeros((-k % n, len(b)), w.dtype)])).reshape(-1, n)


def check(packed):
    """Compiled code looks at no index: the arrays must have the sizes that the numbers beside them say."""
    n, width, dtype, blocks = lanes(packed.weights), packed.width, packed.tokens.dtype, len(packed.norms) // 2
    rows, wide = _rows_of_weights(blocks, width, packed.hidden, packed.outputs, n), width + -width % n
    for name, shape in (
        ("tokens", (len(packed.tokens), wide)),
        ("places", (len(packed.places), wide)),
        ("norms", (2 * blocks + 1, 2, wide)),
        ("weights", (rows, n)),  # in panels as wide as this processor's Vectors
    ):
        x = getattr(packed, name)
        if (x.shape, x.dtype) != (shape, dtype) or not x.flags.c_contiguous:
            raise ValueError(
                f"packed: expected C-contiguous {name} of shape {shape} and {dtype} on this processor, got shape"
                f" {x.shape} and {x.dtype}; pack the network again here"
            )


@lru_cache
def _rows_of_weights(blocks, width, hidden, outputs, n):
    """Of all panels: a bias and as many rows as there are inputs, filled up, for each Vector of columns."""

    def panels(columns, inputs):
        return -(-columns // n) * (1 + inputs + -inputs % n)

    of_block = panels(3 * width, width) + panels(width, width) + panels(hidden, width) + panels(width, hidden)
    return blocks * of_block + panels(outputs, width)


def step(tokens, place, packed, memory, length, scores):
    """Write ``scores (B, V)`` of what comes after ``tokens (B,)``, all at ``place``; brings ``memory`` up to date.

    `linattn_ref.models.decoding.step` has looked at all of them, at ``packed`` by :func:`check`.

    Parameters
    ----------
    tokens : ndarray of int64 ``(B,)``
    place : int
    packed : linattn_ref.models.decoding.Packed
    memory : (ndarray, ndarray)
        Of linear attention ``s (blocks, B, H, D, D)`` and ``z (blocks, B, H, D)``; of softmax the caches, ``k`` and
        ``v (blocks, B, H, capacity, D)``. C-contiguous.
    length : int
        Rows of the caches with this token's.
    scores : ndarray ``(B, V)``
    """
    first, second = (x.reshape(-1, x.shape[-1]) for x in memory)
    arrays, sizes = packed[:4], (packed.width, packed.hidden, packed.heads)
    kinds = packed.norms_first, packed.activation == "gelu", packed.attention == "linear"
    number = packed.tokens.dtype.type(packed.number)
    write_scores(tokens, place, *arrays, sizes, kinds, number, first, second, length, scores)


# --- Compiled -------------------------------------------------------------------------------------------------------


@serial_kernel(
    tokens="B",
    table="V W",
    places="P W",
    norms="norms 2 W",
    weights="rows lanes",
    first="rows D",
    second="rows D",
    scores="B outputs",
)
def write_scores(tokens, place, table, places, norms, weights, sizes, kinds, number, first, second, length, scores):
    """:func:`step`; ``number`` is the eps of linear attention, or the scale of softmax."""
    (width, hidden, heads), norms_first = sizes, kinds[0]
    batch = len(tokens)
    rows = 1 if batch == 1 else batch + -batch % ROWS
    blocks = len(norms) // 2
    parts = blocks * batch
    x, a, merged = _rows(rows, width, table), _rows(rows, width, table), _rows(rows, width, table)
    qkv, h, out = _rows(rows, 3 * width, table), _rows(rows, hidden, table), _rows(rows, scores.shape[1], table)
    _embed(x, tokens, table, place, places)
    at = 0
    for block in range(blocks):
        before = _norm(a, x, norms[2 * block], width) if norms_first else x
        at = _affine(qkv, before, weights, at, False)
        for b in range(batch):
            one, q, o = block * batch + b, _row(qkv, b, 0, heads, width), _row(merged, b, 0, heads, width)
            k, v = _row(qkv, b, 1, heads, width), _row(qkv, b, 2, heads, width)
            _attend(q, k, v, _part(first, one, parts), _part(second, one, parts), number, length, kinds, o)
        at = _affine(x, merged, weights, at, True)
        if not norms_first:
            _norm(x, x, norms[2 * block], width)
        before = _norm(a, x, norms[2 * block + 1], width) if norms_first else x
        at = _affine(h, before, weights, at, False)
        _bend(h, kinds)
        at = _affine(x, h, weights, at, True)
        if not norms_first:
            _norm(x, x, norms[2 * block + 1], width)
    _norm(a, x, norms[2 * blocks], width)
    _affine(out, a, weights, at, False)
    for b in range(batch):
        for c in range(scores.shape[1]):
            scores[b, c] = out[b, c]


@inner
def _rows(rows, width, like):
    """Zeros, as wide as so many whole Vectors."""
    return np.zeros((rows, width + -width % lanes(like)), like.dtype)


@inner
def _embed(x, tokens, table, place, places):
    for b in range(len(tokens)):
        for c in range(0, x.shape[1], lanes(x)):
            some = load(columns_from(table, c), tokens[b]) + load(columns_from(places, c), place)
            store(columns_from(x, c), b, some)


@inner
def _row(x, b, i, heads, width):
    """Part ``i`` of row ``b``, ``width`` numbers, as ``(heads, D)``."""
    address = x.ctypes.data + (b * x.shape[1] + i * width) * x.itemsize
    return rows_at(address, heads, width // heads, x.dtype)


@inner
def _part(x, i, parts):
    """Part ``i`` of so many."""
    rows = len(x) // parts
    return rows_at(x.ctypes.data + i * rows * x.shape[1] * x.itemsize, rows, x.shape[1], x.dtype)


@once
def _attend(q, k, v, first, second, number, length, kinds, out):
    """One sequence's attention in one block, ``(heads, D)`` each; ``first, second`` are its memory."""
    if kinds[2]:
        write_features(q, q)
        write_features(k, k)
        step_rows(q, k, v, first, second, number, out)
    else:
        append(first, k, length)
        append(second, v, length)
        attend(q, first, second, length, number, out)


@inner
def _norm(y, x, params, width):
    """Write the first ``width`` columns of ``y``, layer norm of each row of ``x``; ``params`` are its gain and bias."""
    for r in range(len(x)):
        norm_row(x[r, :width], params[0, :width], params[1, :width], x.dtype.type(EPS), y[r, :width])
    return y


@inner
def _bend(h, kinds):
    """GELU or ReLU, in place."""
    minus_half = broadcast(h.dtype.type(-0.5))
    zero = minus_half - minus_half
    for r in range(len(h)):
        for c in range(0, h.shape[1], lanes(h)):
            some = columns_from(h, c)
            x = load(some, r)
            store(some, r, gelu(x, minus_half) if kinds[1] else maximum(zero, x))


@inner
def _affine(y, x, weights, at, add):
    """``y = x W + b``, or ``+=``, the panels from row ``at`` on; where the next matrix begins."""
    for c in range(0, y.shape[1], lanes(y)):
        some = columns_from(y, c)
        for r in range(len(y)):
            bias = load(weights, at)
            store(some, r, load(some, r) + bias if add else bias)
        if len(y) == 1:
            _add_row(some, x, weights, at + 1)
        else:
            _add_blocks(some, x, weights, at + 1)
        at += 1 + x.shape[1]
    return at


@inner
def _add_row(y, x, weights, at):
    """``y += x @ panel``, a single row."""
    a = load(y, 0)
    b = c = d = broadcast(x.dtype.type(0))
    for t in range(0, x.shape[1], ROWS):
        prefetch_rows(weights, at + t + AHEAD)
        for u in range(t, t + ROWS, 4):
            a = fma(spread(x, 0, u), load(weights, at + u), a)
            b = fma(spread(x, 0, u + 1), load(weights, at + u + 1), b)
            c = fma(spread(x, 0, u + 2), load(weights, at + u + 2), c)
            d = fma(spread(x, 0, u + 3), load(weights, at + u + 3), d)
    store(y, 0, (a + b) + (c + d))


@inner
def _add_blocks(y, x, weights, at):
    """The same for ``ROWS`` rows at a time."""
    for r in range(0, len(y), ROWS):
        block = load_block(y, r)
        for t in range(0, x.shape[1], ROWS):
            if r == 0:
                prefetch_rows(weights, at + t + AHEAD)
            for u in range(t, t + ROWS):
                block = add_scaled(block, x, r, u, load(weights, at + u))
        store_block(y, r, block)
