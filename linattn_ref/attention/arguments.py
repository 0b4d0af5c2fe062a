"""The conventions every mechanism shares, checked at its door: shapes, dtypes, masks, the scale and the kernels.

Each check raises a ``TypeError`` (wrong kind of thing) or ``ValueError`` (wrong shape or value) that names the
argument, says what it got and what it needs.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.kernels.reference.buffers import check_out
from linattn_ref.op.gpu_arrays import is_inside

__all__ = [
    "FLOATS",
    "Array",
    "Mask",
    "check_array",
    "check_bool",
    "check_key_mask",
    "check_qk",
    "check_qkv",
    "check_shape",
    "check_sizes",
    "is_array",
    "is_number",
    "resolve_scale",
]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

Array = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]


def check_array(name: str, x: Array, ndim: int = 2, dtype: np.dtype[Any] | None = None) -> None:
    """``x`` is float32 or float64 (``dtype``, if given) with at least ``ndim`` axes, none of them empty."""
    if not is_array(x):
        raise TypeError(f"{name}: expected a numpy.ndarray, got {type(x).__name__}")
    if x.dtype not in FLOATS:
        raise TypeError(f"{name}: expected float32 or float64, got {x.dtype}")
    if dtype is not None and x.dtype != dtype:
        raise TypeError(f"{name}: expected {dtype} like the other arrays, got {x.dtype}")
    if x.ndim < ndim:
        raise ValueError(f"{name}: expected at least {ndim} axes, got shape {x.shape}")
    if 0 in x.shape:
        raise ValueError(f"{name}: every axis needs at least one entry, got shape {x.shape}")


def is_array(x: Any) -> bool:
    """Whether ``x`` is an array of NumPy's, or one on a GPU; to a masked array or a matrix ``*`` is something else."""
    if type(x) is np.ndarray:
        return True
    if isinstance(x, np.ndarray):  # only now, since np.ma is imported when it is first named
        return not isinstance(x, (np.ma.MaskedArray, np.matrix))
    return is_inside(x)


def check_shape(name: str, x: Array, shape: Sequence[int], letters: str) -> None:
    """``x`` has exactly ``shape``; ``letters`` names its axes in the message, as in ``"(..., L, M)"``."""
    if x.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape {letters} = {tuple(shape)}, got {x.shape}")


def check_qkv(
    q: Array, k: Array, v: Array, *, causal: bool = False, key_mask: Mask | None = None, out: Array | None = None
) -> None:
    """``q (..., N, D)``, ``k (..., L, D)``, ``v (..., L, M)``: equal leading axes, one dtype; ``N <= L`` if causal.

    And, if there is one, ``out (..., N, M)`` to be written to.
    """
    check_qk(q, k, causal=causal, key_mask=key_mask)
    check_array("v", v, dtype=q.dtype)
    check_shape("v", v, (*k.shape[:-1], v.shape[-1]), "(..., L, M)")
    if out is not None:
        check_out(out, (*q.shape[:-1], v.shape[-1]), q.dtype)


def check_qk(q: Array, k: Array, *, causal: bool = False, key_mask: Mask | None = None) -> None:
    """The part of :func:`check_qkv` that a dense matrix needs."""
    check_array("q", q)
    check_array("k", k, dtype=q.dtype)
    if k.ndim != q.ndim:
        raise ValueError(f"k: expected {q.ndim} axes like q, got shape {k.shape} beside q {q.shape}")
    check_shape("k", k, (*q.shape[:-2], k.shape[-2], q.shape[-1]), "(..., L, D)")
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(f"causal: expected True or False, got {causal!r}")
    if causal and q.shape[-2] > k.shape[-2]:
        raise ValueError(
            f"q: causal attention is aligned at the end and needs N <= L, got N = {q.shape[-2]} and L = {k.shape[-2]}"
        )
    check_key_mask(key_mask, k)


def check_sizes(**sizes: int) -> None:
    """Each is an integer of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"{name}: expected an integer of at least 1, got {size!r}")


def check_key_mask(key_mask: Mask | None, k: Array) -> None:
    """``key_mask (..., L)`` is bool with all of ``k``'s leading axes."""
    if key_mask is None:
        return
    check_bool("key_mask", key_mask)
    check_shape("key_mask", key_mask, k.shape[:-1], "(..., L)")  # type: ignore[arg-type]


def check_bool(name: str, mask: Mask) -> None:
    """``mask`` is an array of bool."""
    known = is_array(mask)
    if not known or mask.dtype != np.bool_:
        got = mask.dtype if known else type(mask).__name__
        raise TypeError(f"{name}: expected an array of bool, got {got}")


def is_number(x: Any) -> bool:
    """Whether ``x`` is a real number: Python's, NumPy's, or an array of no axes; True and False are none."""
    if isinstance(x, np.ndarray):
        return x.ndim == 0 and x.dtype.kind in "iuf"
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def resolve_scale(scale: float | None, key_width: int) -> float:
    """``1/sqrt(D)`` for None, else the finite number given."""
    if scale is None:
        return 1.0 / math.sqrt(key_width)
    if not is_number(scale):
        raise TypeError(f"scale: expected a number or None, got {scale!r}")
    if not math.isfinite(scale):
        raise ValueError(f"scale: expected a finite number, got {scale!r}")
    return float(scale)
