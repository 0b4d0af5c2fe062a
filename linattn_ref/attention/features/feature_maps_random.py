"""Random feature maps: the draws of their directions ``omega (m, D)``, and the maps of random feature attention.

    rfa_gaussian      [sin(omega y), cos(omega y)] / sqrt(m),  y = x / |x|                   (1)
    rfa_arccos        max(omega y, 0) / sqrt(m),  y = x / |x|                                (2)

With rows of ``omega`` from N(0, I), ``phi(x) . phi(y)`` is on average, for (1), the Gaussian kernel ``exp(-|x-y|^2/2)``
and, for (2), the arc-cosine kernel ``(sin t + (pi - t) cos t) / 2 pi``, ``t`` the angle, of the unit vectors. The
Performer's maps are in ``feature_maps_favor.py``.

The gradients, by hand
----------------------
Let ``p = omega y``, and ``dphi`` the gradient of ``phi``. In (1) sine and cosine are each other's
derivatives up to sign, ``dp = dsin * cos - dcos * sin``; in (2) ``dp = dphi * [p > 0] / sqrt(m)``. Then
``dy = omega^T dp``, and from ``y = x / |x|``

    dx = (dy - y (y . dy)) / |x|                             (3)  0 for x = 0

References
----------
Peng et al. (2021), "Random feature attention", section 3.1 and appendix A.
Mezzadri (2007), "How to generate random matrices from the classical compact groups" (the signs of R).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from linattn_ref.op import Array, op
from linattn_ref.op.options import sized
from linattn_ref.op.shapes import check_array

__all__ = ["gaussian", "orthogonal_gaussian", "rfa_arccos", "rfa_gaussian"]

# --- Directions -----------------------------------------------------------------------------------------------------


@op(look=sized("m", "D"))
def gaussian(m: int, D: int, rng: np.random.Generator, *, dtype: Any = np.float64) -> Array:
    """``omega (m, D)`` with independent rows from N(0, I)."""
    return rng.standard_normal((m, D)).astype(dtype)


@op(look=sized("m", "D"))
def orthogonal_gaussian(
    m: int, D: int, rng: np.random.Generator, regular: bool = False, *, dtype: Any = np.float64
) -> Array:
    """``omega (m, D)`` whose rows are orthogonal in blocks of ``D``, each row alone still from N(0, I).

    Every block is the Q of the QR decomposition of a Gaussian matrix, its columns multiplied by the signs of R's
    diagonal: a decomposition with positive diagonal is unique, and only then is Q uniformly distributed. Its rows get
    the lengths of independent Gaussian rows.

    Parameters
    ----------
    m, D : int
        Features and key width.
    rng : numpy.random.Generator
    regular : bool
        All rows of length ``sqrt(D)`` instead.
    dtype
        Of the result.

    Returns
    -------
    ndarray ``(m, D)``
    """
    blocks = []
    for start in range(0, m, D):
        q, r = np.linalg.qr(rng.standard_normal((D, D)))
        blocks.append((q * np.sign(np.diag(r)))[: m - start])
    lengths = np.sqrt(D) if regular else np.linalg.norm(rng.standard_normal((m, D)), axis=-1, keepdims=True)
    return (lengths * np.concatenate(blocks)).astype(dtype)


# --- Random feature attention ---------------------------------------------------------------------------------------


def rfa_gaussian(omega: Array) -> RfaGaussian:
    """``[sin(omega y), cos(omega y)] / sqrt(m)`` of ``y = x / |x|``, ``C = 2m``.

    Parameters
    ----------
    omega : ndarray ``(m, D)``
        From :func:`gaussian` or :func:`orthogonal_gaussian`; taken in the dtype of ``x``.
    """
    check_omega(omega)
    return RfaGaussian(omega)


class RfaGaussian(NamedTuple):
    """What :func:`rfa_gaussian` makes."""

    omega: Array  # (m, D)
    name: str = "rfa_gaussian"
    kernel: str = "rfa"  # the backend's module for this map
    positive: bool = False

    def width(self, d: int) -> int:
        return 2 * rows_for(self.omega, d)

    def forward(self, x: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        y, length = unit(x)
        p = project(y, self.omega)  # (..., m)
        phi = np.concatenate([np.sin(p), np.cos(p)], axis=-1) / math.sqrt(len(self.omega))  # (1)  (..., 2m)
        return phi, (y, length, phi)

    def backward(self, d_phi: Array, saved: tuple[Array, Array, Array]) -> Array:
        y, length, phi = saved
        return unit_backward(sine_cosine_backward(d_phi, phi) @ like(y, self.omega), y, length)


def rfa_arccos(omega: Array) -> RfaArccos:
    """``max(omega y, 0) / sqrt(m)`` of ``y = x / |x|``, ``C = m``; ``omega`` as in :func:`rfa_gaussian`."""
    check_omega(omega)
    return RfaArccos(omega)


class RfaArccos(NamedTuple):
    """What :func:`rfa_arccos` makes."""

    omega: Array  # (m, D)
    name: str = "rfa_arccos"
    kernel: str = "rfa"
    positive: bool = True

    def width(self, d: int) -> int:
        return rows_for(self.omega, d)

    def forward(self, x: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        y, length = unit(x)
        phi = np.maximum(project(y, self.omega), 0) / math.sqrt(len(self.omega))  # (2)  (..., m)
        return phi, (y, length, phi)

    def backward(self, d_phi: Array, saved: tuple[Array, Array, Array]) -> Array:
        y, length, phi = saved
        d_p = d_phi * (phi > 0) / math.sqrt(len(self.omega))  # (..., m)
        return unit_backward(d_p @ like(y, self.omega), y, length)


Kind = Literal["gaussian", "arccos"]
KINDS: dict[str, Callable[[Array], RfaGaussian | RfaArccos]] = {"gaussian": RfaGaussian, "arccos": RfaArccos}

# --- Their parts ----------------------------------------------------------------------------------------------------


def unit(x: Array) -> tuple[Array, Array]:
    """``x / |x|`` and ``|x| (..., 1)``; the zero vector stays zero. Safe for any length that a float can hold."""
    largest = np.abs(x).max(axis=-1, keepdims=True)  # (..., 1)
    scaled = x / or_infinity(largest)
    length = np.sqrt((scaled * scaled).sum(axis=-1, keepdims=True))  # (..., 1), between 1 and sqrt(D); 0 for x = 0
    scaled /= or_infinity(length)
    return scaled, largest * length


def unit_backward(d_y: Array, y: Array, length: Array) -> Array:
    """Gradient of :func:`unit`: the part of ``d_y`` across ``y``, over ``|x|``; 0 for the zero vector."""
    across = d_y - y * (y * d_y).sum(axis=-1, keepdims=True)  # (3)
    across /= or_infinity(length)
    return across


def or_infinity(length: Array) -> Array:
    """``length``, and infinity in place of 0: what is divided by that becomes 0."""
    return np.where(length == 0, length.dtype.type(np.inf), length)


def like(x: Array, omega: Array) -> Array:
    """``omega`` in the dtype of ``x``, and where that is: on its GPU, if on one."""
    return np.asarray(omega, x.dtype, like=x)


def project(x: Array, omega: Array) -> Array:
    """``omega x``, ``(..., D) -> (..., m)``."""
    rows_for(omega, x.shape[-1])
    return x @ like(x, omega).T


def half_square(x: Array) -> Array:
    """``|x|^2 / 2``, ``(..., 1)``."""
    return (x * x).sum(axis=-1, keepdims=True) / 2


def sine_cosine_backward(d_phi: Array, phi: Array) -> Array:
    """``d_p`` of ``phi = scale [sin p, cos p]``, whatever the scale: ``d_sin * cos - d_cos * sin``."""
    m = phi.shape[-1] // 2
    return d_phi[..., :m] * phi[..., m:] - d_phi[..., m:] * phi[..., :m]  # (..., m)


def check_omega(omega: Any, **_: Any) -> None:
    """``omega`` is ``(m, D)``, of finite numbers; on a GPU this is not checked."""
    check_array("omega", omega)
    if omega.ndim != 2:
        raise ValueError(f"omega: expected shape (m, D), got {omega.shape}")
    if not isinstance(omega, np.ndarray):
        return
    numbers = omega.view(np.ndarray)  # subclasses, such as those that count products, have no vdot
    if math.isfinite(np.vdot(numbers, numbers)):  # cheaper than a look at every number
        return
    if not np.isfinite(omega).all():
        raise ValueError(f"omega: expected finite numbers, got {omega[~np.isfinite(omega)][0]} among them")


def rows_for(omega: Array, d: int) -> int:
    """``m``, if ``omega (m, D)`` is for vectors of width ``d``."""
    if d != omega.shape[-1]:
        raise ValueError(f"omega: expected one column per entry of x, D = {d}, got shape {omega.shape}")
    return len(omega)
