"""The same numbers as arrays come: transposed, cut out of larger ones, backwards, read-only, with steps of 0 bytes."""

import numpy as np


def cut_out(x):
    """From the middle of an array of NaN, so that what lies beside it cannot be used unseen."""
    around = np.full([n + 2 for n in x.shape], np.nan if x.dtype.kind == "f" else x.dtype.type(1), x.dtype)
    middle = around[(..., *(slice(1, -1) for _ in x.shape))]
    middle[...] = x
    return middle


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "as it is": lambda x: x,
    "Fortran": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(0, -1)).swapaxes(0, -1) if x.ndim > 1 else x,
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every third column": lambda x: np.repeat(x, 3, axis=-1)[..., ::3],
    "backwards": lambda x: np.flip(np.flip(x).copy()),
    "cut out": cut_out,
    "read-only": read_only,
    "one for all": lambda x: np.broadcast_to(x[:1], x.shape) if x.ndim > 2 else x,  # steps of 0 bytes; other numbers
}


def laid_out(x, rng):
    """``x`` in one of these layouts; an array without axes has one."""
    return LAYOUTS[rng.choice([*LAYOUTS])](x) if x.ndim else x
