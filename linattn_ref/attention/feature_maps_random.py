"""Random feature maps (Performer and random feature attention), and the draws of their directions ``omega (m, D)``.

    favor_trig        exp(|x|^2/2) / sqrt(m) [sin(omega x), cos(omega x)]                    (1)
    favor_positive    exp(omega x - |x|^2/2) / sqrt(m)                                       (2)
    favor_hyperbolic  exp(-|x|^2/2) / sqrt(2m) [exp(omega x), exp(-omega x)]                 (3)
    favor_relu        (max(omega x, 0) + 1e-3) / sqrt(m)                                     (4)
    rfa_gaussian      [sin(omega y), cos(omega y)] / sqrt(m),  y = x / |x|                   (5)
    rfa_arccos        max(omega y, 0) / sqrt(m),  y = x / |x|                                (6)

With rows of ``omega`` from N(0, I), ``phi(x) . phi(y)`` is on average ``exp(x.y)`` for (1)-(3), because
``E exp(omega . s) = exp(|s|^2/2)`` and ``E cos(omega . s) = exp(-|s|^2/2)``; for (5) the Gaussian kernel
``exp(-|x-y|^2/2)`` and for (6) the arc-cosine kernel ``(sin t + (pi - t) cos t) / 2 pi``, ``t`` the angle, of the unit
vectors.

Range of ``favor_trig``
-----------------------
Its exponent is ``+|x|^2/2``: as it stands, ``forward`` overflows float32 beyond ``|x| = 13``, float64 beyond 37. In
linear attention the exponents only compare keys, and nothing overflows; but its similarities are sums of either sign
whose noise grows as ``exp((|x|^2+|y|^2)/2)``, while their mean is ``exp(x.y)``. Where that is small, the denominator
may come out near 0 or negative, and the output is worthless: the reason for the positive features.

The gradients, by hand
----------------------
Let ``p = omega x``, and ``dphi`` the gradient of ``phi``. An exponential gives back itself, so ``dp = dphi * phi`` in
(2) and the difference of its halves in (3); sine and cosine give each other, ``dp = dsin * cos - dcos * sin`` in (1)
and (5). Then ``dx = omega^T dp``, to which ``exp(c |x|^2/2)`` adds ``c x sum(dphi * phi)``. Of ``y = x / |x|`` it is
``dx = (dy - y (y . dy)) / |x|``, and 0 for ``x = 0``.

References
----------
Choromanski et al. (2021), "Rethinking attention with Performers", section 2 and appendix B.
Peng et al. (2021), "Random feature attention", section 3.1 and appendix A.
Mezzadri (2007), "How to generate random matrices from the classical compact groups" (the signs of R).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention.arguments import Array, check_array
from linattn_ref.attention.feature_maps_exact import RELU_EPS, FeatureMap, forward_of

# --- Directions -----------------------------------------------------------------------------------------------------


def gaussian(m: int, D: int, rng: np.random.Generator, *, dtype: DTypeLike = np.float64) -> Array:
    """``omega (m, D)`` with independent rows from N(0, I)."""
    _check_draw(m, D, rng)
    return rng.standard_normal((m, D)).astype(dtype)


def orthogonal_gaussian(
    m: int, D: int, rng: np.random.Generator, regular: bool = False, *, dtype: DTypeLike = np.float64
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
    _check_draw(m, D, rng)
    blocks = []
    for start in range(0, m, D):
        q, r = np.linalg.qr(rng.standard_normal((D, D)))
        blocks.append((q * np.sign(np.diag(r)))[: m - start])
    lengths = np.sqrt(D) if regular else np.linalg.norm(rng.standard_normal((m, D)), axis=-1, keepdims=True)
    return (lengths * np.concatenate(blocks)).astype(dtype)


def _check_draw(m: int, D: int, rng: np.random.Generator) -> None:
    for name, size in (("m", m), ("D", D)):
        if not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"{name}: expected an integer of at least 1, got {size!r}")
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng: expected a numpy.random.Generator, got {type(rng).__name__}")


# --- Performer ------------------------------------------------------------------------------------------------------


def favor_trig(omega: Array) -> FeatureMap:
    """``exp(|x|^2/2) / sqrt(m) [sin(omega x), cos(omega x)]``, ``C = 2m``; see "Range" above.

    Parameters
    ----------
    omega : ndarray ``(m, D)``
        From :func:`gaussian` or :func:`orthogonal_gaussian`; taken in the dtype of ``x``.
    """
    _check_omega(omega)

    def split(x: Array) -> tuple[Array, Array]:
        p = project(x, omega)  # (..., m)
        factor = np.concatenate([np.sin(p), np.cos(p)], axis=-1) / math.sqrt(len(omega))  # (..., 2m)
        return half_square(x), factor  # (1)

    def backward(d_phi: Array, saved: tuple[Array, Array]) -> Array:
        x, phi = saved
        d_exponent = (d_phi * phi).sum(axis=-1, keepdims=True)  # (..., 1)
        return _sine_cosine_backward(d_phi, phi) @ like(x, omega) + x * d_exponent

    return FeatureMap("favor_trig", forward_of(split), backward, _width(omega, 2), False, split)


def favor_positive(omega: Array) -> FeatureMap:
    """``exp(omega x - |x|^2/2) / sqrt(m)``, ``C = m``; ``omega`` as in :func:`favor_trig`."""
    _check_omega(omega)

    def split(x: Array) -> tuple[Array, None]:
        exponent = project(x, omega)  # (..., m)
        exponent -= half_square(x) + 0.5 * math.log(len(omega))  # (2)
        return exponent, None

    def backward(d_phi: Array, saved: tuple[Array, Array]) -> Array:
        x, phi = saved
        d_p = d_phi * phi  # (..., m)
        return d_p @ like(x, omega) - x * d_p.sum(axis=-1, keepdims=True)

    return FeatureMap("favor_positive", forward_of(split), backward, _width(omega, 1), True, split)


def favor_hyperbolic(omega: Array) -> FeatureMap:
    """``exp(-|x|^2/2) / sqrt(2m) [exp(omega x), exp(-omega x)]``, ``C = 2m``; ``omega`` as in :func:`favor_trig`."""
    _check_omega(omega)
    m = len(omega)

    def split(x: Array) -> tuple[Array, None]:
        p = project(x, omega)  # (..., m)
        return np.concatenate([p, -p], axis=-1) - half_square(x) - 0.5 * math.log(2 * m), None  # (3)  (..., 2m)

    def backward(d_phi: Array, saved: tuple[Array, Array]) -> Array:
        x, phi = saved
        d_exponent = d_phi * phi  # (..., 2m)
        d_p = d_exponent[..., :m] - d_exponent[..., m:]  # (..., m)
        return d_p @ like(x, omega) - x * d_exponent.sum(axis=-1, keepdims=True)

    return FeatureMap("favor_hyperbolic", forward_of(split), backward, _width(omega, 2), True, split)


def favor_relu(omega: Array) -> FeatureMap:
    """``(max(omega x, 0) + 1e-3) / sqrt(m)``, ``C = m``; ``omega`` as in :func:`favor_trig`."""
    _check_omega(omega)

    def forward(x: Array) -> tuple[Array, Array]:
        p = project(x, omega)  # (..., m)
        return (np.maximum(p, 0) + RELU_EPS) / math.sqrt(len(omega)), p  # (4)

    def backward(d_phi: Array, p: Array) -> Array:
        return (d_phi * (p > 0)) @ like(p, omega) / math.sqrt(len(omega))

    return FeatureMap("favor_relu", forward, backward, _width(omega, 1), True)


# --- Random feature attention ---------------------------------------------------------------------------------------


def rfa_gaussian(omega: Array) -> FeatureMap:
    """``[sin(omega y), cos(omega y)] / sqrt(m)`` of ``y = x / |x|``, ``C = 2m``; ``omega`` as in :func:`favor_trig`."""
    _check_omega(omega)

    def forward(x: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        y, length = unit(x)
        p = project(y, omega)  # (..., m)
        phi = np.concatenate([np.sin(p), np.cos(p)], axis=-1) / math.sqrt(len(omega))  # (5)  (..., 2m)
        return phi, (y, length, phi)

    def backward(d_phi: Array, saved: tuple[Array, Array, Array]) -> Array:
        y, length, phi = saved
        return unit_backward(_sine_cosine_backward(d_phi, phi) @ like(y, omega), y, length)

    return FeatureMap("rfa_gaussian", forward, backward, _width(omega, 2), False)


def rfa_arccos(omega: Array) -> FeatureMap:
    """``max(omega y, 0) / sqrt(m)`` of ``y = x / |x|``, ``C = m``; ``omega`` as in :func:`favor_trig`."""
    _check_omega(omega)

    def forward(x: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        y, length = unit(x)
        phi = np.maximum(project(y, omega), 0) / math.sqrt(len(omega))  # (6)  (..., m)
        return phi, (y, length, phi)

    def backward(d_phi: Array, saved: tuple[Array, Array, Array]) -> Array:
        y, length, phi = saved
        d_p = d_phi * (phi > 0) / math.sqrt(len(omega))  # (..., m)
        return unit_backward(d_p @ like(y, omega), y, length)

    return FeatureMap("rfa_arccos", forward, backward, _width(omega, 1), True)


# --- Their parts ----------------------------------------------------------------------------------------------------


def unit(x: Array) -> tuple[Array, Array]:
    """``x / |x|`` and ``|x| (..., 1)``; the zero vector stays zero. Safe for any length that a float can hold."""
    largest = np.abs(x).max(axis=-1, keepdims=True)  # (..., 1)
    scaled = x / or_infinity(largest)
    length = np.sqrt((scaled * scaled).sum(axis=-1, keepdims=True))  # (..., 1), between 1 and sqrt(D)
    scaled /= or_infinity(length)
    return scaled, largest * length


def unit_backward(d_y: Array, y: Array, length: Array) -> Array:
    """Gradient of :func:`unit`: the part of ``d_y`` across ``y``, over ``|x|``; 0 for the zero vector."""
    across = d_y - y * (y * d_y).sum(axis=-1, keepdims=True)
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
    _width(omega, 1)(x.shape[-1])
    return x @ like(x, omega).T


def half_square(x: Array) -> Array:
    """``|x|^2 / 2``, ``(..., 1)``."""
    return (x * x).sum(axis=-1, keepdims=True) / 2


def _sine_cosine_backward(d_phi: Array, phi: Array) -> Array:
    """``d_p`` of ``phi = scale [sin p, cos p]``, whatever the scale: ``d_sin * cos - d_cos * sin``."""
    m = phi.shape[-1] // 2
    return d_phi[..., :m] * phi[..., m:] - d_phi[..., m:] * phi[..., :m]  # (..., m)


def _check_omega(omega: Array) -> None:
    check_array("omega", omega)
    if omega.ndim != 2:
        raise ValueError(f"omega: expected shape (m, D), got {omega.shape}")


def _width(omega: Array, per_row: int) -> Callable[[int], int]:
    """``D -> C``: ``per_row`` features a row of ``omega``, which fixes ``D``."""

    def width(d: int) -> int:
        if d != omega.shape[-1]:
            raise ValueError(f"omega: expected one column an entry of x, D = {d}, got shape {omega.shape}")
        return per_row * len(omega)

    return width
