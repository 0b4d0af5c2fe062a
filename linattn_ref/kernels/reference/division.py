"""Division by a sum of weights, where a query that has seen nothing has a sum of 0."""

import numpy as np

__all__ = ["divide"]


def divide(x, denominator):
    """``x (..., M)`` over ``denominator (...)``, and 0 where that is 0: a query that has seen nothing."""
    nothing = (denominator == 0)[..., None]
    quotient = x / np.where(nothing, denominator.dtype.type(1), denominator[..., None])
    np.copyto(quotient, 0, where=nothing)  # whatever is in x, NaN too
    return quotient
