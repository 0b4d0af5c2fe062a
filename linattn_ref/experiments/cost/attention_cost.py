"""What softmax attention costs against its length: the dense and the online form, forward and backward together.

Nothing is timed. Multiply-adds are counted while the code runs, the bytes that ``forward`` keeps for ``backward`` are
added up, the most memory in use at once is measured. Beside each stands what a reader of the code computes.

With ``N`` queries and ``L`` keys, from the equations of `linattn_ref.attention.softmax` and `online_softmax`, in
numbers:

=======================  =========================  ==========================================
..                       dense                      online
=======================  =========================  ==========================================
multiply-adds, forward   ``N L (D + M)``            ``N L (D + M)``
multiply-adds, backward  ``2 N L (D + M)``          ``2 N L (D + M) + N L D``: again (1)
kept beyond the inputs   ``N L``                    ``N (M + 2)``
in use at once, about    ``4 N L``                  ``5 N TILE + N (2 D + 2 M)``
=======================  =========================  ==========================================

The first three rows are exact; what the online form keeps of a row is its output, the largest score and the sum. In the
last, the dense form has the scores, their exponentials, the quotients of these, and P, which are the quotients again
where the sum is not 0. The online form reads ``TILE`` keys at a time: three arrays ``(N, TILE)`` of the last tile
are still there when the next one's scores are made, which takes two more, beside the output and three gradients.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.random import Generator
from numpy.typing import NDArray

from linattn_ref.attention import online_softmax, softmax
from linattn_ref.experiments.measuring.counting import count, kept_bytes, peak_bytes
from linattn_ref.experiments.measuring.scaling import growth_exponent
from linattn_ref.experiments.publishing import labels, style
from linattn_ref.op import Array

__all__ = ["Results", "compute", "draw"]

LENGTHS = (128, 256, 512, 1024, 2048)


class Costs(NamedTuple):
    """One form's costs, an entry a length."""

    multiply_adds: NDArray[np.int64]  # (T,), counted
    multiply_adds_formula: NDArray[np.int64]  # (T,)
    kept: NDArray[np.int64]  # (T,), bytes that forward keeps for backward beyond q, k and v
    kept_formula: NDArray[np.int64]  # (T,)
    peak: NDArray[np.int64]  # (T,), bytes in use at once, measured
    peak_formula: NDArray[np.int64]  # (T,), about


class Results(NamedTuple):
    lengths: NDArray[np.int64]  # (T,), N = L
    key_width: int  # D
    value_width: int  # M
    dtype: str
    dense: Costs
    online: Costs


def compute(
    lengths: Sequence[int] = LENGTHS,
    *,
    rng: Generator,
    key_width: int = 64,
    value_width: int = 64,
    dtype: type[np.floating[Any]] = np.float32,
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
    pairs, d, m, size = n * n, key_width, value_width, np.dtype(dtype).itemsize
    dense_formulas = 3 * pairs * (d + m), pairs * size, 4 * pairs * size
    online_formulas = (
        3 * pairs * (d + m) + pairs * d,
        n * (m + 2) * size,
        n * (5 * online_softmax.TILE + 2 * d + 2 * m) * size,
    )
    inputs = [[rng.standard_normal((i, w)).astype(dtype) for w in (d, d, m, m)] for i in lengths]  # q, k, v, d_out
    return Results(
        n,
        d,
        m,
        np.dtype(dtype).name,
        dense=_costs(softmax.forward, softmax.backward, inputs, dense_formulas),
        online=_costs(online_softmax.forward, online_softmax.backward, inputs, online_formulas),
    )


def _costs(forward: Any, backward: Any, inputs: list[list[Array]], formulas: tuple[NDArray[np.int64], ...]) -> Costs:
    def both(q: Array, k: Array, v: Array, d_out: Array) -> None:
        _, saved = forward(q, k, v)
        backward(d_out, saved)

    counted = [count(both, *arrays).multiply_adds for arrays in inputs]
    kept = [kept_bytes(forward(q, k, v)[1]) - kept_bytes((q, k, v)) for q, k, v, _ in inputs]
    peaks = [peak_bytes(both, *arrays) for arrays in inputs]
    multiply_adds_formula, kept_formula, peak_formula = formulas
    return Costs(np.array(counted), multiply_adds_formula, np.array(kept), kept_formula, np.array(peaks), peak_formula)


def draw(results: Results) -> Figure:
    """Softmax attention, one head, forward and backward: operations grow with the square of the length in both
    forms, memory only where the matrix P is kept. Points are counted or measured, lines are the formulas.
    """
    figure, axes = style.figure(1, 3, height=0.36)
    forms = (
        ("dense", results.dense, style.MECHANISMS["softmax"], "o"),
        ("online", results.online, style.MECHANISMS["softmax online"], "s"),
    )
    lines: list[list[tuple[Line2D, str]]] = [[], [], []]
    for name, costs, colour, marker in forms:
        panels = (
            (costs.multiply_adds, costs.multiply_adds_formula),
            (costs.kept / 1024, costs.kept_formula / 1024),
            (costs.peak / 1024, costs.peak_formula / 1024),
        )
        for axis, drawn, (measured, formula) in zip(axes, lines, panels, strict=True):
            axis.plot(results.lengths, measured, marker, color=colour, zorder=3)
            (line,) = axis.plot(results.lengths, formula, "-", color=colour)
            drawn.append((line, f"{name},\nslope {growth_exponent(results.lengths, measured):.2f}"))
    titles = ("multiply-adds", "kept for backward (KiB)", "most in use (KiB)")
    for axis, title, drawn in zip(axes, titles, lines, strict=True):
        axis.set(xscale="log", yscale="log", xlabel="length N = L (tokens)", title=title)
        axis.set_xticks(results.lengths[::2], [str(n) for n in results.lengths[::2]])
        axis.minorticks_off()
        axis.set_ylim(axis.get_ylim())
        labels.at_ends(axis, [line for line, _ in drawn], [name for _, name in drawn])
    return figure
