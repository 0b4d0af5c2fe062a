"""Is a hand-derived gradient right? Three checks for any ``forward``/``backward`` pair, needing NumPy alone.

A pair follows the convention of this package: ``forward(*inputs) -> (out, saved)`` and ``backward(d_out, saved) ->``
gradients, a NamedTuple whose fields are called like the inputs. With a random ``u`` in place of ``d_out``, ``backward``
gives the gradient ``J^T u`` of the number ``<u, out>``. The checks get the same from ``forward`` alone:

:func:`check_elementwise`
    Every entry ``x_j`` of every input, by central differences ``(<u, out(x_j + h)> - <u, out(x_j - h)>) / 2h`` (1).
    Two forward passes per entry: for small arrays. It names the entry that is wrong.
:func:`check_directions`
    ``<u, J w>`` read both ways for random directions ``w``: ``J w`` by central differences along ``w``, against
    ``<J^T u, w>`` from ``backward`` (2). Two forward passes per direction whatever the size: for large arrays.
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

What can be told
----------------
Outputs that no step moves, such as a mask's -1e9, have no part in ``|f|``: no difference sees their rounding. What is
left of ``eps |f| / h`` must be small compared with the largest gradient of the same input, or a wrong one would pass.
Where it is not, and wherever the two sides differ, thirteen steps, from ``1e-7 h`` to ``1e5 h``, are tried for that
entry, two at a time, so that ``h^2`` cancels. Those that agree best are taken. So functions of numbers of any size can
be checked, even ``f + 1e9``, where differences keep few digits. Where ``forward`` subtracts large numbers, shorter
steps show how many digits are left.

An entry is *right* where both sides agree and an error of one percent in the largest gradient of its input would have
been found, *wrong* where they differ by more than rounding can, and *inconclusive* where neither can be said, as for
``f + 1e18``, or at the border of what ``forward`` takes. Only if all are right is the report ``ok``; ``report.reason``
says what could not be told. A gradient counts times the size of its input (its root mean square, at least 1). An input
that counts for less than 1e-8 of another (queries of a saturated softmax, compared with its values) may pass with
zeros, and below 1e-6 with an error of one percent: scale inputs to about 1. Where ``forward`` subtracts numbers more
than 1e6 times as large as what is left of them, a right gradient may be called wrong, since their rounding shows in too
few steps.

Both passes have to be functions: that they leave ``d_out`` and their inputs alone, and that ``forward`` gives the same
output again, is checked first.

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

from linattn_ref.gradcheck.complex_steps import check_complex_step, complex_step
from linattn_ref.gradcheck.differences import check_directions, check_elementwise
from linattn_ref.gradcheck.report import Entry, GradientError, Report

__all__ = ["Entry", "GradientError", "Report", "check_complex_step", "check_directions", "check_elementwise"]
__all__ += ["complex_step"]
