"""What softmax attention costs against its length: the dense and the online form, forward and backward together.

Nothing is timed. Multiply-adds are counted while the code runs, the bytes that ``forward`` keeps for ``backward`` are
added up, the most memory in use at once is measured. Next to each stands what a reader of the code computes.

With ``N`` queries and ``L`` keys, from the equations of `linattn_ref.attention.softmax` and `online_softmax`, in
numbers:

=======================  =========================  ==========================================
..                       dense                      online
=======================  =========================  ==========================================
multiply-adds, forward   ``N L (D + M)``            ``N L (D + M)``
multiply-adds, backward  ``2 N L (D + M)``          ``2 N L (D + M) + N L D``: again (1)
kept beyond the inputs   ``N L``                    ``N (M + 2)``
in use at once, about    ``max(4 N L, 3 N L + W)``  ``6 N TILE + N (2 D + 2 M)``
=======================  =========================  ==========================================

The first three rows are exact; what the online form keeps of a row is its output, the largest score and the sum. In the
last, the dense form has the scores, their exponentials, the quotients of these, and P, which are the quotients again
where the sum is not 0. With few tokens its backward pass has more: P, ``dP``, ``dA`` and ``W = (N + L) (D + M) + L D``,
which are the output, three gradients, and one of them before it is scaled. The online form reads ``TILE`` keys at a
time: from the second tile on, three arrays ``(N, TILE)`` of the last tile are still there when the next one's weights
are made, which takes three more, besides the output and three gradients.
"""

from typing import Any

import numpy as np

from linattn_ref.attention import online_softmax, softmax
from linattn_ref.experiments.measuring.counting import by_formula, costs
from linattn_ref.experiments.publishing.kit import Figure, Generator, Ints, Results, labels, style

__all__ = ["compute", "draw"]

LENGTHS = (128, 256, 512, 1024, 2048)
QUICK = {"lengths": LENGTHS[:3]}


def compute(
    lengths: Ints = LENGTHS, *, rng: Generator, key_width: int = 64, value_width: int = 64, dtype: Any = np.float32
) -> Results:
    """Count and measure both forms at every length.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``. The longest takes about ``4 N^2`` numbers of memory in the dense form.
    rng : numpy.random.Generator
        Draws the inputs, which nothing depends on.
    key_width, value_width : int
        ``D`` and ``M``.
    dtype : float32 or float64
    """
    n = np.array(lengths, np.int64)
    pairs, d, m = n * n, key_width, value_width
    dense = 3 * pairs * (d + m), pairs, np.maximum(4 * pairs, 3 * pairs + n * (3 * d + 2 * m))
    online = 3 * pairs * (d + m) + pairs * d, n * (m + 2), n * (6 * online_softmax.TILE + 2 * d + 2 * m)
    inputs = [[rng.standard_normal((i, w)).astype(dtype) for w in (d, d, m, m)] for i in lengths]  # q, k, v, d_out
    return Results(
        lengths=n,  # (T,), N = L
        key_width=d,
        value_width=m,
        dtype=np.dtype(dtype).name,
        dense=costs(softmax.forward, softmax.backward, inputs, dense),
        online=costs(online_softmax.forward, online_softmax.backward, inputs, online),
    )


def draw(results: Results) -> Figure:
    """Softmax attention, one head, forward and backward: operations grow with the square of the length in both
    forms, memory only where the matrix P is kept. Points are counted or measured, lines are the formulas.
    """
    figure, axes = style.figure(1, 3, height=0.36)
    forms = {
        "dense,\n": (results.dense, style.MECHANISMS["softmax"], "o"),
        "online,\n": (results.online, style.MECHANISMS["softmax online"], "s"),
    }
    by_formula(axes, results.lengths, forms, {"multiply_adds": 1, "kept": 1024, "peak": 1024})
    for axis, title in zip(axes, ("multiply-adds", "kept for backward (KiB)", "most in use (KiB)"), strict=True):
        axis.set(title=title, xlabel="length N = L (tokens)")
        labels.ticks(axis, results.lengths[::2])
        labels.at_ends(axis)
    return figure
