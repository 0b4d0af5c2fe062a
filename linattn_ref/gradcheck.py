"""Is a hand-derived gradient right? Three checks for any ``forward``/``backward`` pair, needing NumPy alone.

A pair follows the convention of this package: ``forward(*inputs) -> (out, saved)`` and ``backward(d_out, saved) ->``
gradients, a NamedTuple whose fields are called like the inputs. With a random ``u`` in place of ``d_out``, ``backward``
gives the gradient ``J^T u`` of the number ``<u, out>``. The checks get the same from ``forward`` alone:

:func:`check_elementwise`
    Every entry ``x_j`` of every input, by central differences ``(<u, out(x_j + h)> - <u, out(x_j - h)>) / 2h`` (1).
    Two forward passes an entry: for small arrays. It names the entry that is wrong.
:func:`check_directions`
    ``<u, J w>`` read both ways for random directions ``w``: ``J w`` by central differences along ``w``, against
    ``<J^T u, w>`` from ``backward`` (2). Two forward passes a direction whatever the size: for large arrays.
:func:`check_complex_step`
    ``Im <u, f(x_j + ih)> / h`` (3). Nothing is subtracted, so ``h`` may be tiny and the derivative is exact to
    rounding; but ``f`` has to be analytic, and take complex arrays.

Each returns a :class:`Report` that says which entry is worst and what both sides say about it.

The step of (1) and (2)
-----------------------
With ``f`` the number differentiated, a central difference is off by its truncation, ``h^2 |f'''| / 6``, and by the
rounding of its two values, ``eps |f| / h``. Where ``f`` and its derivatives are of one size the sum is smallest near
``h = eps^(1/3) = 6.1e-6``, and is then about ``eps^(2/3) |f| = 3.7e-11 |f|``: the unit of the tolerance. That needs
float64. In float32 the same unit is 2.4e-5, too coarse to tell a wrong gradient from a rounded one.

Where ``f`` has a kink (relu, a maximum) within ``h`` of the point, (1) averages its two slopes: draw another point.

Example
-------
Softmax of each row, its gradient with a mistake in it, and what the check says:

>>> from typing import NamedTuple
>>> import numpy as np
>>> from linattn_ref.gradcheck import check_elementwise
>>> class Gradients(NamedTuple):
...     x: np.ndarray
>>> def forward(x):
...     e = np.exp(x - x.max(axis=-1, keepdims=True))
...     p = e / e.sum(axis=-1, keepdims=True)
...     return p, p
>>> def backward(d_out, p):
...     return Gradients(p * (d_out - (d_out * p).sum(axis=-1, keepdims=True)))
>>> def forgetful_backward(d_out, p):
...     return Gradients(p * d_out)
>>> x = np.array([[0.0, 1.0, 2.0]])
>>> check_elementwise(forward, backward, x, rng=np.random.default_rng(0)).ok
True
>>> print(check_elementwise(forward, forgetful_backward, x, rng=np.random.default_rng(0)))
central differences, element by element: WRONG in 3 of 3
  x[0, 0]: backward 0.0113196, numeric -0.0251451, off by 0.036 (relative 1.5), allowed 3.6e-09, step 6.1e-06

Options of ``forward`` are bound first, as in ``functools.partial(softmax.forward, causal=True)``. A report is true
where all is well, so ``assert check_elementwise(...)`` does; ``check_elementwise(...).assert_ok()`` also says what is
wrong.

References
----------
Nocedal and Wright (2006), "Numerical optimization", section 8.1 (the step).
Squire and Trapp (1998), "Using complex variables to estimate derivatives of real functions" (3).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from linattn_ref.gradcheck_inputs import (
    Array,
    check_float64,
    check_step,
    generator,
)
from linattn_ref.gradcheck_pair import Backward, Forward, Pair
from linattn_ref.gradcheck_report import Entry, GradientError, Report
from linattn_ref.nested import map_arrays

__all__ = [
    "Entry",
    "GradientError",
    "Report",
    "check_complex_step",
    "check_directions",
    "check_elementwise",
    "complex_step",
]

EPS = float(np.finfo(np.float64).eps)
DIFFERENCE_STEP = EPS ** (1 / 3)  # 6.1e-6, see "The step"
DIFFERENCE_ERROR = EPS ** (2 / 3)  # 3.7e-11, the error it leaves
COMPLEX_STEP = 1e-30  # its square is far below eps, and it is far above the smallest float
MARGIN = 64  # units of error allowed: the constants of order one left out above, and the rounding inside a forward pass


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


def check_complex_step(
    function: Callable[..., Any],
    forward: Forward,
    backward: Backward,
    *inputs: Any,
    rng: np.random.Generator | int,
    rtol: float = 1e-11,
    atol: float | None = None,
) -> Report:
    """Compare every entry of every gradient with the complex step (3) through a plain formula of the same function.

    Parameters
    ----------
    function : callable, ``function(*inputs) -> out``
        The formula, for complex arrays, and analytic: ``exp``, ``@`` and division are; ``abs``, ``max`` and ``.conj()``
        are not (subtract the maximum of the *real* part: a constant that cancels). It must agree with ``forward``.
    forward, backward, *inputs, rng
        As in :func:`check_elementwise`. ``forward`` only ever gets real arrays.
    rtol, atol : float
        As in :func:`check_elementwise`. Both sides are exact to rounding: unless given, ``atol`` is
        ``64 eps <|u|, |out|>``.

    Examples
    --------
    The package's attention refuses complex arrays, so the formula stands in for it:

    >>> import numpy as np
    >>> from linattn_ref.attention import softmax
    >>> from linattn_ref.gradcheck import check_complex_step
    >>> def formula(q, k, v):
    ...     scores = q @ k.T / np.sqrt(q.shape[-1])
    ...     weights = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    ...     return weights / weights.sum(axis=-1, keepdims=True) @ v
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((5, 4)) for _ in range(3))
    >>> report = check_complex_step(formula, softmax.forward, softmax.backward, q, k, v, rng=rng)
    >>> report.ok, report.worst.absolute < 1e-14
    (True, True)
    """
    pair = Pair.run(forward, backward, inputs, rng)
    here, there = np.asarray(function(*pair.inputs)), pair.out()
    if here.shape != there.shape or not np.allclose(here, there, rtol=1e-10, atol=1e-10 * pair.magnitude):
        raise ValueError("function: expected the output that forward gives for these inputs, got another")
    atol = MARGIN * EPS * pair.magnitude if atol is None else atol
    entries = []
    for name, x, gradient in pair.matched:

        def of_x(z: Any, x: Array = x) -> Any:
            return function(*map_arrays(lambda array: z if array is x else array, pair.inputs))

        numeric = complex_step(of_x, x, pair.u)
        for index in np.ndindex(x.shape):
            entries.append(Entry.compare(name, index, gradient[index], numeric[index], COMPLEX_STEP, rtol, atol))
    return Report.of("complex step, element by element", entries, pair.constants)


def complex_step(function: Callable[[Any], Any], x: Array, u: Any) -> Array:
    """The gradient of ``<u, function(x)>`` by the complex step (3), exact to rounding.

    Parameters
    ----------
    function : callable, ``function(x) -> out``
        Analytic, see :func:`check_complex_step`.
    x : ndarray, float64, any shape
    u : ndarray or float, the shape of ``out``

    Raises
    ------
    TypeError
        ``x`` is not float64, or ``function`` loses the imaginary part.

    Examples
    --------
    The derivative of the logarithm at 4, to the last digit:

    >>> import numpy as np
    >>> from linattn_ref.gradcheck import complex_step
    >>> complex_step(np.log, np.array([4.0]), np.array([1.0]))
    array([0.25])
    """
    check_float64("x", x)
    z, gradient = x.astype(np.complex128), np.empty_like(x)
    for index in np.ndindex(x.shape):
        z[index] = complex(x[index], COMPLEX_STEP)
        out = np.asarray(function(z))
        if not np.iscomplexobj(out):
            raise TypeError(f"function: expected a complex output for a complex input, got {out.dtype}")
        gradient[index] = (u * out.imag).sum() / COMPLEX_STEP  # (3)
        z[index] = x[index]
    return gradient
