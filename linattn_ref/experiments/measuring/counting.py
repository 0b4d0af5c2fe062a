"""What a computation costs, counted while the package's own code runs: operations, bytes kept, bytes at the peak.

No clock is read: operations and bytes kept are the same on every machine and can be asserted, and bytes at the peak
nearly. NumPy's own arrays do the work; a thin subclass keeps the count::

    count(softmax.forward, q, k, v).multiply_adds == N * L * (D + M)

What compiled kernels do is invisible here: use ``kernels=reference``. By hand, since profilers see calls and seconds,
and the counters of other packages are for their own arrays.
"""

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.experiments.measuring.scaling import growth_exponent
from linattn_ref.experiments.publishing.restore import Results
from linattn_ref.nested import leaves
from linattn_ref.op import Array

__all__ = ["by_formula", "costs", "count", "kept_bytes", "peak_bytes"]

# Products that do not go through ``@``: refused, so that nothing is left out of the count in silence. So are the other
# ufuncs that multiply matrices or vectors, and all of numpy.linalg and numpy.fft; but not a product and a sum entry by
# entry.
UNCOUNTED = {np.dot, np.vdot, np.inner, np.outer, np.kron, np.tensordot, np.einsum}
UNCOUNTED |= {np.convolve, np.correlate, np.cross}
ROW_BY_ROW = "...d,...d->..."  # the einsum that is such a one, as is vecdot
REFUSED = "count: the products of numpy's {} cannot be counted, use @"


@dataclass
class Counts:
    """Operations done so far."""

    multiply_adds: int = 0  # of matrix products: N * K * M for (N, K) @ (K, M)
    exponentials: int = 0
    elementwise: int = 0  # entries that every other arithmetic operation went over


def count(function: Callable[..., Any], *arrays: Array) -> Counts:
    """The operations that ``function(*arrays)`` does.

    Parameters
    ----------
    function : callable
        Called once. Only operations that have one of ``arrays``, or an array computed from it, as an operand are
        seen: not those of single numbers. An ``out=`` array that the function makes itself is filled but does not
        carry the count on.
    *arrays : ndarray

    Returns
    -------
    Counts

    Raises
    ------
    TypeError
        ``function`` multiplies by ``einsum``, ``dot`` or the like, does linear algebra, or takes a Fourier transform:
        only ``@`` is counted.
    """
    counts = Counts()
    function(*(CountedArray.wrap(x, counts) for x in arrays))
    return counts


class CountedArray(np.ndarray):
    """An array that enters every operation it takes part in into ``counts``; so do the results."""

    counts: Counts

    @classmethod
    def wrap(cls, x: Any, counts: Counts) -> Any:
        """``x`` as a counted array; anything but an array stays what it is."""
        if not isinstance(x, np.ndarray):
            return x
        counted = x.view(cls)
        counted.counts = counts
        return counted

    def __array_finalize__(self, parent: Any) -> None:
        self.counts = getattr(parent, "counts", Counts())

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if ufunc.signature is not None and ufunc not in (np.matmul, np.vecdot):
            raise TypeError(REFUSED.format(ufunc.__name__))
        inputs = tuple(map(_plain, inputs))
        options = {name: _plain(x) for name, x in options.items()}
        if out is not None:
            options["out"] = tuple(map(_plain, out))
        result = getattr(ufunc, method)(*inputs, **options)
        done = np.size(inputs[0] if method == "reduce" else result)  # a sum over an axis goes over its input
        if ufunc.signature is not None:  # as does each entry of a product
            done *= inputs[0].shape[-1]
        if ufunc is np.matmul:
            self.counts.multiply_adds += done
        elif ufunc is np.exp:
            self.counts.exponentials += done
        else:
            self.counts.elementwise += done
        return out[0] if out is not None else self.wrap(result, self.counts)

    def dot(self, *_: Any) -> Any:
        raise TypeError(REFUSED.format("dot"))

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function is np.einsum and arguments[0] == ROW_BY_ROW:
            return np.vecdot(*arguments[1:], **options)
        if function in UNCOUNTED or function.__module__ in ("numpy.linalg", "numpy.fft"):
            raise TypeError(REFUSED.format(function.__name__))
        # What takes ``like``: NumPy 2.0 can do no more than call it.
        if isinstance(function, BuiltinFunctionType) or not hasattr(function, "_implementation"):
            return self.wrap(function(*arguments, **options), self.counts)
        return self.wrap(super().__array_function__(function, types, arguments, options), self.counts)


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, CountedArray) else x


def kept_bytes(saved: Any) -> int:
    """Bytes of all arrays in ``saved``, an array or nested tuples of anything; an array met twice counts once.

    So does a view of all of it, such as its transpose. A view of a part counts on top.
    """
    found = {(x.__array_interface__["data"][0], x.nbytes) for _, x in leaves(saved, strict=False)}
    return sum(size for _, size in found)


def peak_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """The most bytes that ``function(*arguments)`` has in use at any time, beyond what was there before the call.

    Python's ``tracemalloc`` sees every NumPy array, and Python's own small objects (some kilobytes); it sees nothing
    that compiled kernels or BLAS allocate for themselves.
    """
    gc.collect()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        function(*arguments)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


def costs(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: Sequence[Sequence[Array]],
    formulas: Sequence[NDArray[Any]],
    *,
    multiply_adds: Callable[..., float] = lambda *call: count(*call).multiply_adds,
) -> Results:
    """Count and measure both passes at every length, next to what a reader of the code computes.

    Parameters
    ----------
    forward, backward : callable
    inputs : sequence of sequence of ndarray
        Of each length those of ``forward``, and then ``d_out``.
    formulas : sequence of ndarray
        Multiply-adds, numbers kept, numbers in use at once.
    multiply_adds : callable
        Of a function and its arrays.

    Returns
    -------
    Results
        Arrays ``(T,)``, an entry per length: ``multiply_adds``, counted; ``kept``, the bytes that forward keeps for
        backward beyond the inputs; ``peak``, the bytes in use at once. Each is followed by its ``_formula``.
    """

    def both(*arrays: Array) -> None:
        _, saved = forward(*arrays[:-1])
        backward(arrays[-1], saved)

    size, (adds, kept, peak) = inputs[0][0].itemsize, formulas
    kept_of = [kept_bytes(forward(*arrays[:-1])[1]) - kept_bytes(tuple(arrays[:-1])) for arrays in inputs]
    return Results(
        multiply_adds=np.array([multiply_adds(both, *arrays) for arrays in inputs], np.int64),
        multiply_adds_formula=adds,
        kept=np.array(kept_of, np.int64),
        kept_formula=kept * size,
        peak=np.array([peak_bytes(both, *arrays) for arrays in inputs], np.int64),
        peak_formula=peak * size,
    )


def by_formula(axes: Any, lengths: Any, costs: dict[str, tuple[Results, str, str]], units: dict[str, float]) -> None:
    """Costs over the length, both logarithmic: points that were counted or measured, and the formula as a line.

    Parameters
    ----------
    axes : sequence of Axes
        One for each of ``units``.
    lengths : array
    costs : mapping
        By the name that stands at the line's end, before the slope between the two greatest lengths: what `costs`
        returned, a colour and a marker.
    units : mapping
        By which field of the costs is drawn, in what it is counted.
    """
    for name, (found, colour, marker) in costs.items():
        for axis, (field, unit) in zip(axes, units.items(), strict=True):
            axis.plot(lengths, found[field] / unit, marker, color=colour, zorder=3)
            told = f"{name}slope {growth_exponent(lengths, found[field]):.2f}"
            axis.plot(lengths, found[f"{field}_formula"] / unit, "-", color=colour, label=told)
    for axis in axes:
        axis.set(xscale="log", yscale="log")
