"""What optimisers are given, checked: an error names the argument."""

import math

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_shape, is_number

__all__ = ["check_betas", "check_pair", "check_peak", "check_rate"]


def check_pair(params: Array, grads: Array, buffer: Array) -> None:
    """``params`` can be written to, ``grads`` and the state's buffer are like it."""
    check_array("params", params, ndim=1)
    check_array("grads", grads, ndim=1, dtype=params.dtype)
    check_shape("grads", grads, params.shape, "of params")
    check_array("state", buffer, ndim=1, dtype=params.dtype)
    check_shape("state", buffer, params.shape, "of params")
    if not params.flags.writeable:
        raise ValueError("params: expected an array that can be written to, for a step moves it in place")


def check_rate(**rates: float) -> None:
    """Each is a finite number of at least 0."""
    for name, rate in rates.items():
        if not (is_number(rate) and math.isfinite(rate) and rate >= 0):
            raise ValueError(f"{name}: expected a finite number of at least 0, got {rate!r}")


def check_peak(peak: float) -> None:
    """A rate that something is learned with."""
    check_rate(peak=peak)
    if peak == 0:
        raise ValueError("peak: expected a rate above 0, with which something is learned; got 0")


def check_betas(betas: tuple[float, float]) -> None:
    """Two numbers of at least 0 and below 1."""
    if np.shape(betas) != (2,) or not all(is_number(beta) and 0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas: expected two numbers of at least 0 and below 1, got {betas!r}")
