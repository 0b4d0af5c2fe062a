"""The Moore-Penrose pseudo-inverse ``A^+`` of small matrices, exactly.

By the singular value decomposition ``A = U diag(sigma) W^T``:

    A^+ = W diag(1/sigma) U^T                                (1)  over sigma > rcond sigma_max

Unless given, ``rcond`` is ``eps max(R, W)``, with the ``eps`` of the matrix's dtype: the decomposition's own rounding
is of this size, so that a smaller singular value cannot be distinguished from 0.

The gradient, by hand
---------------------
Golub and Pereyra (1973), equation 4.12: where the rank does not change,

    dX = -X dA X + X X^T dA^T (I - A X) + (I - X A) dA^T X^T X,    X = A^+,

here ``dA`` and ``dX`` are small changes. ``<G, dX>`` for a gradient ``G`` of ``X``, solved for what multiplies ``dA``:

    -X^T G X^T + (I - A X) G^T X X^T + X^T X G^T (I - X A)   (2)

Where the rank changes, the pseudo-inverse jumps, and there is no gradient. Near such a place the gradient is of the
size of ``|X|^2``, and as many digits are lost. (2) takes what does not count to be 0, up to rounding: of larger values
that ``rcond`` leaves out, the directions turn with ``A`` too, so a backward pass refuses them.

Example
-------
>>> import numpy as np
>>> x, saved = forward(np.diag([2.0, 0.0]))
>>> print(x)
[[0.5 0. ]
 [0.  0. ]]
>>> print(backward(np.eye(2), saved).a)  # of 1/x it is -1/x^2; the rank stays 1
[[-0.25  0.  ]
 [ 0.    0.  ]]

References
----------
Golub and Pereyra (1973), "The differentiation of pseudo-inverses and nonlinear least squares problems whose
variables separate".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, op
from linattn_ref.op.options import is_number

__all__ = ["Gradients", "Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs: the matrix and its pseudo-inverse."""

    a: Float[Array, "... R W"]
    x: Float[Array, "... W R"]
    whole: bool  # only what is 0, up to rounding, was left out


class Gradients(NamedTuple):
    a: Float[Array, "... R W"]


def look(rcond: Any = None, **_: Any) -> None:
    if rcond is not None and not (is_number(rcond) and 0 <= rcond < 1):
        raise ValueError(f"rcond: expected a number with 0 <= rcond < 1, got {rcond!r}")


@op(look=look)
def forward(a: Float[Array, "... R W"], *, rcond: float | None = None) -> tuple[Array, Saved]:
    """Equation (1), decomposed in the dtype of ``a``; singular values up to ``rcond`` times the largest count as 0.

    Where a number of a matrix is not finite, its pseudo-inverse is NaN; the others are as without it.
    """
    rounding = max(a.shape[-2:]) * float(np.finfo(a.dtype).eps)
    rcond = rounding if rcond is None else rcond
    broken = (~np.isfinite(a)).any(axis=(-2, -1), keepdims=True)  # (..., 1, 1)
    finite = np.where(broken, a.dtype.type(0), a)  # a NaN in one matrix would be an error for all
    u, sigma, w_t = np.linalg.svd(finite, full_matrices=False)  # (..., R, K), (..., K), (..., K, W), K = min(R, W)
    counts = sigma > rcond * sigma[..., :1]
    inverse = 1 / np.where(counts, sigma, sigma.dtype.type(np.inf))  # (..., K)
    x = np.where(broken, a.dtype.type(np.nan), (w_t.mT * inverse[..., None, :]) @ u.mT)  # (1)
    lost = ~counts & (sigma > rounding * sigma[..., :1])
    return x, Saved(a, x, rcond <= rounding or not lost.any())


def look_back(saved: Any, **_: Any) -> None:
    if not saved.whole:
        raise ValueError("saved: expected a pseudo-inverse that leaves out rounding alone, got a larger rcond")


@op(look=look_back)
def backward(d_x: Float[Array, "... W R"], saved: Saved) -> Gradients:
    """Equation (2)."""
    a, x, _ = saved
    outside_columns = np.identity(a.shape[-2], a.dtype, like=a) - a @ x  # (..., R, R), I - A X
    outside_rows = np.identity(a.shape[-1], a.dtype, like=a) - x @ a  # (..., W, W), I - X A
    return Gradients(
        -x.mT @ d_x @ x.mT + outside_columns @ d_x.mT @ (x @ x.mT) + (x.mT @ x) @ d_x.mT @ outside_rows  # (2)
    )
