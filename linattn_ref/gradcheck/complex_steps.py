"""A gradient against the complex step, which is exact to rounding where the function takes complex numbers."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from linattn_ref.gradcheck.inputs import Array, check_float64_array, check_numbers
from linattn_ref.gradcheck.pair import EPS, MARGIN, Backward, Forward, Pair
from linattn_ref.gradcheck.report import Entry, Report
from linattn_ref.gradcheck.verdict import judge
from linattn_ref.nested import map_arrays

__all__ = ["check_complex_step", "complex_step"]

COMPLEX_STEP = 1e-30  # its square is far below eps, and it is far above the smallest float


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
        As in :func:`check_elementwise`. Both sides are exact to rounding: unless given, ``atol`` is 64 roundings of
        ``<|u|, |out|>``, of what moves, over ``max(1, |x_j|)``, and of ``<|u|, |J_j|>``.

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
    check_numbers(COMPLEX_STEP, rtol, atol)
    pair = Pair.run(forward, backward, inputs, rng)
    here, there = np.asarray(function(*pair.inputs)), pair.out()
    typical = np.median(abs(there))  # a mask's -1e9 is not
    if here.shape != there.shape or not np.allclose(here, there, rtol=1e-10, atol=1e-10 * typical):
        raise ValueError("function: expected the output that forward gives for these inputs, got another")
    found = []
    for name, x, gradient in pair.matched:

        def of_x(z: Any, x: Array = x) -> Any:
            return function(*map_arrays(lambda array: z if array is x else array, pair.inputs))

        for index, slope in _slopes(of_x, x):
            pair.moving[...] |= slope != 0
            size = float((abs(pair.u) * abs(slope)).sum())
            found.append((name, index, gradient[index], (pair.u * slope).sum(), max(1.0, abs(x[index])), size))
    entries = []
    for name, index, analytic, numeric, length, size in found:
        noise = MARGIN * EPS * (pair.magnitude / length + size) if atol is None else atol
        entries.append(Entry.compare(name, index, analytic, numeric, COMPLEX_STEP, rtol, noise))
    entries = entries if atol is not None else judge(pair, entries, exact=True)
    return Report.of("complex step, element by element", entries, pair.constants)


def complex_step(function: Callable[[Any], Any], x: Array, u: Any) -> Array:
    """The gradient of ``<u, function(x)>`` by the complex step (3), exact to rounding.

    Parameters
    ----------
    function : callable, ``function(x) -> out``
        Analytic, see :func:`check_complex_step`.
    x : ndarray, float64, any shape
    u : ndarray or float
        The shape of ``out``, or one number for all of it.

    Raises
    ------
    TypeError
        ``x`` is not a float64 array, ``u`` is complex, or ``function`` loses the imaginary part.
    ValueError
        ``u`` has another shape than ``out``.

    Examples
    --------
    The derivative of the logarithm at 4, to the last digit:

    >>> import numpy as np
    >>> from linattn_ref.gradcheck import complex_step
    >>> complex_step(np.log, np.array([4.0]), np.array([1.0]))
    array([0.25])
    """
    check_float64_array("x", x)
    if np.iscomplexobj(u):
        raise TypeError(f"u: expected real numbers, got {np.asarray(u).dtype}")
    gradient = np.empty_like(x)
    for index, slope in _slopes(function, x):
        if np.ndim(u) and np.shape(u) != slope.shape:
            raise ValueError(f"u: expected shape {slope.shape} like out, got {np.shape(u)}")
        gradient[index] = (u * slope).sum()
    return gradient


def _slopes(function: Callable[[Any], Any], x: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each entry of ``x`` its index, and the derivatives of all outputs."""
    z = x.astype(np.complex128)
    for index in np.ndindex(x.shape):
        z[index] = complex(x[index], COMPLEX_STEP)
        out = np.asarray(function(z))
        if not np.iscomplexobj(out):
            raise TypeError(f"function: expected a complex output for a complex input, got {out.dtype}")
        yield index, out.imag / COMPLEX_STEP  # (3)
        z[index] = x[index]
