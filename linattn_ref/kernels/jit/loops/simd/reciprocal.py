"""``1 / denominator`` to multiply rows by, and what to do where that is too large for the dtype.

It is so where the denominator has lost digits itself: up to 2^-128 in float32. The numbers over it are as small, and
the quotient is an ordinary one. Such a row is multiplied by the largest power of 2, and divided by what is left of the
denominator, which has come into range:

    x / d = (x 2^126) / (d 2^126)                            (1)
"""

import numpy as np

from linattn_ref.kernels.jit.loops.inner import inner

POWER_32, POWER_64 = 2.0**126, 2.0**1022
POWER = {np.dtype(np.float32): np.float32(POWER_32), np.dtype(np.float64): np.float64(POWER_64)}
OUT_OF_RANGE = 0.25  # what (1) leaves of a denominator whose reciprocal is infinite, at most


@inner
def reciprocal(d, like):
    """``1 / d``, 0 for 0, and the power of 2 where it would be infinite; in the dtype of the array ``like``."""
    power = like.dtype.type(POWER_32 if like.itemsize == 4 else POWER_64)
    if d == 0:
        return like.dtype.type(0)
    return power if abs(d * power) <= OUT_OF_RANGE else like.dtype.type(1) / d


@inner
def rest(d, like):
    """What a row that was multiplied by :func:`reciprocal` is to be multiplied by still: 1, or that of (1)."""
    left = d * like.dtype.type(POWER_32 if like.itemsize == 4 else POWER_64)
    return like.dtype.type(1) / left if 0 < abs(left) <= OUT_OF_RANGE else like.dtype.type(1)
