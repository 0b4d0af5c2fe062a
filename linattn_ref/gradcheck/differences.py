"""A gradient against central differences of the forward pass: entry by entry, or along random directions."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from linattn_ref.gradcheck.inputs import Array, check_numbers, generator, rms
from linattn_ref.gradcheck.pair import EPS, MARGIN, Backward, Forward, Pair
from linattn_ref.gradcheck.report import Entry, Report
from linattn_ref.gradcheck.verdict import judge, negligible, settled

__all__ = ["check_directions", "check_elementwise"]

DIFFERENCE_STEP = EPS ** (1 / 3)  # 6.1e-6, see "The step"
LADDER = 10.0 ** np.arange(-7, 6)  # in units of the first step: from 6e-13 to 0.6 for numbers up to 1


@dataclass(frozen=True)
class Line:
    """A line through the point that is checked: ``x[where] + t w``."""

    name: str
    index: tuple[int, ...]
    x: Array
    gradient: Array
    where: tuple[Any, ...]
    w: Any
    step: float

    def slopes(self, pair: Pair, step: float) -> tuple[float, float]:
        """The derivative along the line, from ``backward`` and a central difference (1), NaN where there is none."""
        centre = self.x[self.where].copy()
        with np.errstate(invalid="ignore"):  # of an infinite number
            high, low = centre + step * self.w, centre - step * self.w
            moved = high - low  # 2 h w as it was rounded
        length = float((moved * self.w).sum() / np.square(self.w).sum())
        if not abs(length) > 0:  # the step is rounded away, or the number infinite
            return float((self.gradient[self.where] * self.w).sum()), float("nan")
        numeric = float("nan")
        try:
            self.x[self.where] = high
            out = pair.out()
            self.x[self.where] = low
            numeric = pair.along(out, pair.out()) / length
        except (
            ArithmeticError,
            AssertionError,
            ValueError,
        ):  # beside the point ``forward`` may refuse its inputs, in whatever way it does
            pass
        finally:
            self.x[self.where] = centre
        return float((self.gradient[self.where] * moved).sum() / length), numeric

    def by_many_steps(self, pair: Pair) -> tuple[float, float, float, float]:
        """What ``backward`` and differences with the best of many steps say, the error left, and that step.

        Two neighbouring steps together cancel the truncation's first term. The best step is where three such values
        in a row agree best; what ``backward`` says plays no part in the choice.
        """
        steps = self.step * LADDER
        with np.errstate(all="ignore"):
            analytic, numeric = np.array([self.slopes(pair, float(step)) for step in steps]).T
            off = numeric - analytic
            off = (100 * off[:-1] - off[1:]) / 99
            apart = abs(np.diff(off))
            # The shorter step is rounded by ten times as much, the longer bends by far more. Inside forward numbers may
            # be larger than what is left of them: shorter steps show how far they are rounded.
            rounding = np.fmax.accumulate(apart * steps[:-2])
            jumps = abs(numeric * steps)
            jump, first = jumps[jumps > 0].min(initial=np.inf), int((jumps > 0).argmax())
            fine = jump <= MARGIN * EPS * max(1.0, rms(self.x))
            goes_on = first + 2 < len(steps) and 0.8 < numeric[first + 2] / numeric[first + 1] < 1.25
            if (jumps == 0).any() and (fine or goes_on):  # too short to move anything: out goes on by such jumps
                rounding = np.fmax(rounding, jump)
            errors = np.maximum(apart[:-1], apart[1:]) / 10
            errors += (4 * EPS * pair.magnitude + rounding[:-1]) / steps[1:-2]
        errors = np.where(np.isfinite(errors), errors, np.inf)
        best = int(errors.argmin())
        here = float(analytic[best + 1])
        return here, here + float(off[best + 1]), float(4 * errors[best]), float(steps[best + 1])


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
        ``out`` is a float64 array, or a number. It is called twice per entry, and 26 times more for an entry that this
        does not settle, never with the caller's own arrays.
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
        An entry may be off by ``atol + rtol * max(|analytic|, |numeric|)``. Unless given, ``atol`` is what the rounding
        of ``out`` can do to (1), see "What can be told". If it is given, it is taken as it is.

    Returns
    -------
    Report

    Raises
    ------
    TypeError
        An input with a gradient, the output or a gradient is a float array, but not float64; an input with a gradient
        has integers, or is a list of numbers.
    ValueError
        A gradient is missing, is one too many, or has not the shape of its input; no input is a float array. Or the
        passes are no functions: two calls of ``forward`` differ, or one alters its inputs or ``d_out``. Or a step or a
        tolerance makes no sense.
    """
    check_numbers(step, rtol, atol)
    pair = Pair.run(forward, backward, inputs, rng)
    lines = (
        Line(name, index, x, gradient, index, 1.0, step * max(1.0, abs(float(x[index]))))
        for name, x, gradient in pair.matched
        for index in np.ndindex(x.shape)
    )
    return _compared("central differences, element by element", pair, lines, rtol, atol)


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
    Returns, errors and the other parameters are those of :func:`check_elementwise`; ``index`` is the number of the
    direction.

    Parameters
    ----------
    directions : int
        How many for each input. The entries of ``w`` are standard normal, and ``h`` is ``step * max(1, rms(x))``.
    """
    if isinstance(directions, bool) or not isinstance(directions, (int, np.integer)) or directions < 1:
        raise ValueError(f"directions: expected a whole number of at least 1, got {directions!r}")
    check_numbers(step, rtol, atol)
    rng = generator(rng)
    pair = Pair.run(forward, backward, inputs, rng)
    lines = (
        Line(name, (number,), x, gradient, (...,), rng.standard_normal(x.shape), step * max(1.0, rms(x)))
        for name, x, gradient in pair.matched
        if x.size
        for number in range(directions)
    )
    return _compared("random directions", pair, lines, rtol, atol)


def _compared(method: str, pair: Pair, lines: Iterable[Line], rtol: float, atol: float | None) -> Report:
    """Every line with its first step; with many where that does not settle it."""

    def compare(line: Line, analytic: float, numeric: float, noise: float, step: float) -> Entry:
        return Entry.compare(line.name, line.index, analytic, numeric, step, rtol, noise)

    lines = [*lines]
    found = [line.slopes(pair, line.step) for line in lines]
    # How large the noise may be is known when all has been moved.
    noises = [MARGIN * EPS * pair.magnitude / line.step if atol is None else atol for line in lines]
    entries = [compare(line, *both, noise, line.step) for line, both, noise in zip(lines, found, noises, strict=True)]
    if atol is not None:
        return Report.of(method, entries, pair.constants)
    floor = negligible(pair, entries)
    for i, done in enumerate(settled(entries)):
        if not done:
            analytic, numeric, noise, step = lines[i].by_many_steps(pair)
            again = compare(lines[i], analytic, numeric, max(noise, floor[lines[i].name]), step)
            # What both find is told with the plain step.
            if math.isnan(entries[i].numeric) or not (entries[i].excess > 1 and again.excess > 1):
                entries[i] = again
    return Report.of(method, judge(pair, entries), pair.constants)
