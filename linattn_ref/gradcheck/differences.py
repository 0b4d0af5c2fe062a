"""A gradient against central differences of the forward pass: entry by entry, or along random directions."""

from typing import Any

import numpy as np

from linattn_ref.gradcheck.inputs import check_step, generator
from linattn_ref.gradcheck.pair import MARGIN, Backward, Forward, Pair
from linattn_ref.gradcheck.report import Entry, Report

__all__ = ["check_directions", "check_elementwise"]

EPS = float(np.finfo(np.float64).eps)
DIFFERENCE_STEP = EPS ** (1 / 3)  # 6.1e-6, see "The step"
DIFFERENCE_ERROR = EPS ** (2 / 3)  # 3.7e-11, the error it leaves


def check_elementwise(
    forward: Forward,
    backward: Backward,
    *inputs: Any,
    rng: np.random.Generator | int,
    step: float = DIFFERENCE_STEP,
    rtol: float = 1e-7,
    atol: float | None = None,
) -> Report:
    """Compare every entry of every gradient with the central difference (1).

    Parameters
    ----------
    forward : callable, ``forward(*inputs) -> (out, saved)``
        ``out`` is a float64 array, or a number. It is called twice an entry, never with the caller's own arrays.
    backward : callable, ``backward(d_out, saved) -> gradients``
        A NamedTuple with fields called like the arguments of ``forward``; where those have no such names
        (``lambda *inputs: ...``), one field for each float input in order. A bare array will do for one input.
    *inputs
        Float64 arrays, or tuples of them. Integer and boolean arrays, None and anything else are passed on; they have
        no gradient, or one that is None. A float array whose name is no field is held fixed, and the report says so.
    rng : numpy.random.Generator or int
        Draws ``u``, the gradient of ``out``; an int is the seed of a new one.
    step : float
        ``h`` of (1) is ``step * max(1, |x_j|)``.
    rtol, atol : float
        An entry may be off by ``atol + rtol * max(|analytic|, |numeric|)``. Unless given, ``atol`` is
        ``64 eps^(2/3) <|u|, |out|>``: what the rounding of ``out`` can do to (1).

    Returns
    -------
    Report

    Raises
    ------
    TypeError
        An input, the output or a gradient is a float array, but not float64; an input with a gradient has integers.
    ValueError
        A gradient is missing, is one too many, or has not the shape of its input; no input is a float array.
    """
    check_step(step)
    pair = Pair.run(forward, backward, inputs, rng)
    atol = MARGIN * DIFFERENCE_ERROR * pair.magnitude if atol is None else atol
    entries = []
    for name, x, gradient in pair.matched:
        for index in np.ndindex(x.shape):
            centre = float(x[index])
            h = step * max(1.0, abs(centre))
            x[index] = high = centre + h
            change = pair.out()
            x[index] = low = centre - h
            change -= pair.out()
            x[index] = centre
            numeric = (pair.u * change).sum() / (high - low)  # (1), over 2h as it was rounded
            entries.append(Entry.compare(name, index, gradient[index], numeric, h, rtol, atol))
    return Report.of("central differences, element by element", entries, pair.constants)


def check_directions(
    forward: Forward,
    backward: Backward,
    *inputs: Any,
    rng: np.random.Generator | int,
    directions: int = 4,
    step: float = DIFFERENCE_STEP,
    rtol: float = 1e-7,
    atol: float | None = None,
) -> Report:
    """Compare ``<u, J w>`` with ``<J^T u, w>`` for random directions ``w`` of each input (2).

    A wrong gradient agrees with a random direction only by chance, but which entry is wrong this check cannot say.
    Parameters, returns and errors are those of :func:`check_elementwise`; ``index`` is the number of the direction, and

    directions : int
        How many for each input. The entries of ``w`` are standard normal, and ``h`` is ``step * max(1, rms(x))``.
    """
    if directions < 1:
        raise ValueError(f"directions: expected at least 1, got {directions}")
    check_step(step)
    rng = generator(rng)
    pair = Pair.run(forward, backward, inputs, rng)
    atol = MARGIN * DIFFERENCE_ERROR * pair.magnitude if atol is None else atol
    entries = []
    for name, x, gradient in pair.matched:
        centre = x.copy()
        h = step * max(1.0, float(np.sqrt(np.mean(centre**2))))
        for number in range(directions):
            w = rng.standard_normal(x.shape)
            high, low = centre + h * w, centre - h * w
            x[...] = high
            change = pair.out()
            x[...] = low
            change -= pair.out()
            x[...] = centre
            numeric = (pair.u * change).sum() / (2 * h)  # (2), <u, J w>
            analytic = (gradient * (high - low)).sum() / (2 * h)  # (2), <J^T u, w>, w as it was rounded
            entries.append(Entry.compare(name, (number,), analytic, numeric, h, rtol, atol))
    return Report.of("random directions", entries, pair.constants)
