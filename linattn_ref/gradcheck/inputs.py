"""Which gradient belongs to which input of a ``forward``/``backward`` pair: names, shapes, tuples of arrays."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "argument_names", "check_float64", "check_float64_array", "check_numbers", "check_output"]
__all__ += ["check_some_floats", "float_arrays", "generator", "match", "rms"]

Array = NDArray[np.float64]
NONE = "expected at least one float64 array with a gradient, got none"


def match(
    names: list[str], inputs: tuple[Any, ...], gradients: Any
) -> tuple[list[tuple[str, Array, Array]], tuple[str, ...]]:
    """Each float array among ``inputs`` as ``(name, array, gradient)``, and the names of those without a gradient.

    Raises
    ------
    TypeError
        An input or a gradient is a float array, but not float64; an input with a gradient is an array of integers.
    ValueError
        A gradient is missing, is one too many, or has not the shape of its input.
    """
    matched, constants = [], []
    for name, x, gradient, has_field in _named(names, inputs, gradients):
        arrays, theirs = dict(float_arrays(name, x)), dict(float_arrays(name, _with_axes(gradient)))
        if not has_field:
            constants += list(arrays)
            continue
        if not arrays and (theirs or gradient is not None):
            check_float64_array(name, x)
        if arrays.keys() != theirs.keys():
            raise ValueError(
                f"gradient of {name}: expected one for each float array in it, {sorted(arrays)}, got {sorted(theirs)}"
            )
        for leaf, array in arrays.items():
            check_float64(leaf, array)
            check_float64(f"gradient of {leaf}", theirs[leaf])
            if theirs[leaf].shape != array.shape:
                raise ValueError(
                    f"gradient of {leaf}: expected shape {array.shape} like {leaf}, got {theirs[leaf].shape}"
                )
            matched.append((leaf, array, theirs[leaf].copy()))
    if not any(array.size for _, array, _ in matched):
        raise ValueError(f"inputs: {NONE}")
    return matched, tuple(constants)


def _named(arguments: list[str], inputs: tuple[Any, ...], gradients: Any) -> list[tuple[str, Any, Any, bool]]:
    """Every input with its name, its gradient, and whether ``backward`` has a field for it."""
    if isinstance(gradients, (np.ndarray, np.generic)):  # of the only input
        gradients = (gradients,)
    if not isinstance(gradients, (tuple, list)):
        raise TypeError(f"backward: expected a NamedTuple of gradients or one array, got {type(gradients).__name__}")
    fields = getattr(gradients, "_fields", None)
    if fields is not None:  # None stands for what forward was not given
        pairs = zip(fields, gradients, strict=True)
        known = {field: x for field, x in pairs if x is not None or field in arguments}
        if known.keys() <= {*arguments}:
            return [(a, x, known.get(a), a in known) for a, x in zip(arguments, inputs, strict=True)]
        fields, gradients = [*known], [*known.values()]
    floats = [i for i, x in enumerate(inputs) if any(True for _ in float_arrays("", x))]
    if len(gradients) != len(floats):
        raise ValueError(
            f"backward: expected a gradient for each of the {len(floats)} float inputs, or fields called like the "
            f"arguments of forward, {arguments}; got {list(fields) if fields else len(gradients)}"
        )
    names = fields or [arguments[i] for i in floats]
    return [(name, inputs[i], gradient, True) for name, i, gradient in zip(names, floats, gradients, strict=True)]


def argument_names(forward: Callable[..., Any], count: int) -> list[str]:
    """The names of the first ``count`` arguments; ``input 3`` for one that ``*inputs`` collects."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, p in inspect.signature(forward).parameters.items() if p.kind in positional]
    return [*names, *(f"input {i}" for i in range(len(names), count))][:count]


def float_arrays(name: str, x: Any) -> Iterator[tuple[str, Array]]:
    """The float arrays in ``x``, an array or a tuple of such, each with its name: ``norm[0][1]``."""
    if isinstance(x, (tuple, list)):
        for i, part in enumerate(x):
            yield from float_arrays(f"{name}[{i}]", part)
    elif isinstance(x, np.ndarray) and x.dtype.kind in "fc":
        yield name, x


def _with_axes(x: Any) -> Any:
    """The gradients ``x`` with NumPy's numbers as arrays: the gradient of an array without axes may be such a sum."""
    if isinstance(x, (tuple, list)):
        return [_with_axes(part) for part in x]
    return np.asarray(x) if isinstance(x, np.generic) else x


def rms(x: Array) -> float:
    """The root of the mean square."""
    largest = float(abs(x).max())
    return largest * float(np.sqrt(np.mean(np.square(x / largest)))) if 0 < largest < np.inf else largest


def check_float64(name: str, x: Any) -> None:
    """``x`` is a float64 array or number."""
    dtype = np.asarray(x).dtype
    if dtype != np.float64:
        raise TypeError(f"{name}: expected float64 (anything less is too coarse), got {dtype}")


def check_float64_array(name: str, x: Any) -> None:
    """``x`` is a float64 array; not a number, nor a list of numbers."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name}: expected a float64 array, or a tuple of them, got {type(x).__name__}")
    check_float64(name, x)


# --- What the checks are called with ----------------------------------------------------------------------------------


def check_some_floats(names: list[str], inputs: tuple[Any, ...]) -> None:
    """There is a float array among ``inputs``: integers cannot be moved by a small step.

    A list of numbers is refused, because it would silently be held fixed.
    """
    for name, x in zip(names, inputs, strict=True):
        if isinstance(x, list) and x and np.asarray(x[0]).dtype.kind == "f" and not [*float_arrays(name, x)]:
            check_float64_array(name, x)
    if not any(True for _ in float_arrays("inputs", inputs)):
        others = [f"; {name} is {x.dtype}" for name, x in zip(names, inputs, strict=True) if isinstance(x, np.ndarray)]
        raise ValueError(f"inputs: {NONE}{''.join(others)}")


def check_output(result: Any) -> tuple[Any, Any]:
    """``result`` is ``(out, saved)``, its ``out`` float64."""
    if not isinstance(result, tuple) or len(result) != 2:
        got = f"{len(result)} of them" if isinstance(result, tuple) else type(result).__name__
        raise TypeError(f"forward: expected two results, (out, saved), got {got}")
    check_float64("out", result[0])
    return result


def check_numbers(step: float, rtol: float, atol: float | None) -> None:
    """``step`` is a finite number above 0; ``rtol`` and ``atol`` are finite and not negative, or ``atol`` is None."""
    if not (step > 0 and math.isfinite(step)):
        raise ValueError(f"step: expected a finite number above 0, got {step}")
    for name, x in (("rtol", rtol), ("atol", 0.0 if atol is None else atol)):
        if not (x >= 0 and math.isfinite(x)):
            raise ValueError(f"{name}: expected a finite number, at least 0, got {x}")


def generator(rng: Any) -> np.random.Generator:
    """``rng`` itself, or a new generator if it is a seed."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, bool) or not isinstance(rng, (int, np.integer)) or rng < 0:
        raise TypeError(f"rng: expected a numpy.random.Generator or a seed, a whole number, got {rng!r}")
    return np.random.default_rng(rng)
