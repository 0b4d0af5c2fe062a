"""Feature maps without random numbers: elementwise ones, the quadratic kernel, the exponential's Taylor series.

    elu_plus_one     phi(x) = x + 1 if x > 0 else exp(x)                                     (1)
    relu             phi(x) = max(x, 0) + 1e-3                                               (2)
    quadratic        phi(x) = (c, sqrt(2c) x_i, x_i^2, sqrt(2) x_i x_j for i < j)            (3)
    taylor_exp       phi(x) = (t_0, ..., t_order),  t_0 = 1,  t_p = t_{p-1} ⊗ x / sqrt(p)    (4)
    taylor_gaussian  phi(x) = exp(-|x|^2 / (2 sigma^2)) taylor_exp(x / sigma)                (5)

In (3), ``phi(x) . phi(y) = c^2 + 2c x.y + (x.y)^2 = (x.y + c)^2``. In (4), ``t_p(x) . t_p(y) = (x.y)^p / p!``, so that
the similarity is the exponential series cut off after ``order``, off by at most
``|x.y|^(order+1) / (order+1)! * max(1, exp(x.y))``; and in (5) it is the Gaussian kernel
``exp(-|x|^2/2s^2) exp(-|y|^2/2s^2) exp(x.y/s^2) = exp(-|x-y|^2 / 2s^2)``, cut off likewise. The whole series would need
infinitely many features: softmax attention is linear attention with a state that never stops growing.

The gradients, by hand
----------------------
Of (1): ``phi' = 1`` for ``x > 0`` and ``exp(x) = phi`` otherwise, that is ``min(phi, 1)``. Of (2): ``phi' = [x > 0]``.
Of (3), with ``G_ij`` the gradient of ``x_i x_j`` (``i <= j``): ``dx = sqrt(2c) d_linear + (G + G^T) x``.
Of (4), from the highest order down: ``t_{p-1}`` receives ``d_t_p x / sqrt(p)``, and ``x`` receives
``t_{p-1}^T d_t_p / sqrt(p)``, with ``d_t_p`` read as a matrix ``(D^(p-1), D)``.
Of (5), with ``y = x / sigma`` and ``e = exp(-|y|^2 / 2)``: ``dx = (d_y - y (phi . d_phi)) / sigma``, where ``d_y`` is
that of (4) at ``y``, from ``e d_phi``.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.2.1 (elu + 1, polynomial kernels).
Choromanski et al. (2021), "Rethinking attention with Performers", section 4.4 (relu).
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.features.feature_map_protocol import ExponentialMap
from linattn_ref.attention.features.feature_maps_random import half_square
from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_sizes, is_number

__all__ = ["elu_plus_one", "quadratic", "relu", "taylor_exp", "taylor_gaussian"]

RELU_EPS = 1e-3  # added by relu and favor_relu, so that a similarity is never 0


# --- Elementwise ----------------------------------------------------------------------------------------------------


class EluPlusOne(NamedTuple):
    """``x + 1`` if ``x > 0`` else ``exp(x)``; ``C = D``."""

    name: str = "elu_plus_one"
    positive: bool = True
    kernel: str = "elu_plus_one"  # the backend's module for this map

    def width(self, d: int) -> int:
        return d

    def forward(self, x: Array) -> tuple[Array, Array]:
        phi = np.exp(np.minimum(x, 0))
        phi += np.maximum(x, 0)  # (1)
        return phi, phi

    def backward(self, d_phi: Array, phi: Array) -> Array:
        return d_phi * np.minimum(phi, 1)


class Relu(NamedTuple):
    """``max(x, 0) + 1e-3``; ``C = D``."""

    name: str = "relu"
    positive: bool = True

    def width(self, d: int) -> int:
        return d

    def forward(self, x: Array) -> tuple[Array, Array]:
        return np.maximum(x, 0) + RELU_EPS, x  # (2)

    def backward(self, d_phi: Array, x: Array) -> Array:
        return d_phi * (x > 0)


elu_plus_one = EluPlusOne()
relu = Relu()


# --- The quadratic kernel -------------------------------------------------------------------------------------------


@plain_numbers
def quadratic(c: float = 1.0) -> Quadratic:
    """All monomials of ``(x.y + c)^2``, so that ``phi(x) . phi(y)`` is exactly that; ``C = 1 + D + D(D+1)/2``.

    Parameters
    ----------
    c : float
        At least 0.
    """
    c = check_number("c", c)
    if c < 0:
        raise ValueError(f"c: expected a number of at least 0, got {c!r}")
    return Quadratic(c)


class Quadratic(NamedTuple):
    """What :func:`quadratic` makes."""

    c: float
    positive: bool = True

    @property
    def name(self) -> str:
        return f"quadratic({self.c:g})"

    def width(self, d: int) -> int:
        return 1 + d + d * (d + 1) // 2

    def forward(self, x: Array) -> tuple[Array, Array]:
        i, j, coefficient = _pairs(x)
        constant = np.full_like(x, self.c, shape=(*x.shape[:-1], 1))  # (..., 1)
        products = coefficient * x[..., i] * x[..., j]  # (..., D(D+1)/2)
        return np.concatenate([constant, math.sqrt(2 * self.c) * x, products], axis=-1), x  # (3)

    def backward(self, d_phi: Array, x: Array) -> Array:
        i, j, coefficient = _pairs(x)
        d = x.shape[-1]
        g = np.zeros_like(x, shape=(*x.shape, d))  # (..., D, D)
        g[..., i, j] = coefficient * d_phi[..., 1 + d :]
        return math.sqrt(2 * self.c) * d_phi[..., 1 : 1 + d] + ((g + g.swapaxes(-1, -2)) @ x[..., None])[..., 0]


def _pairs(x: Array) -> tuple[Any, Any, Array]:
    """Every ``i <= j``, and the coefficient of ``x_i x_j``: 1 on the diagonal, ``sqrt(2)`` off it."""
    i, j = np.triu_indices(x.shape[-1])
    return i, j, np.asarray(np.where(i == j, 1, math.sqrt(2)), x.dtype, like=x)


# --- The exponential's Taylor series --------------------------------------------------------------------------------


@plain_numbers
def taylor_exp(order: int) -> TaylorExp:
    """Tensor powers up to ``order``: ``phi(x) . phi(y) = sum_{p <= order} (x.y)^p / p!``.

    ``C = 1 + D + ... + D^order``. Of even order the cut-off series is positive everywhere, of odd order it is not.

    Parameters
    ----------
    order : int
        At least 0.
    """
    check_sizes(0, order=order)
    return TaylorExp(order)


class TaylorExp(NamedTuple):
    """What :func:`taylor_exp` makes."""

    order: int

    @property
    def name(self) -> str:
        return f"taylor_exp({self.order})"

    @property
    def positive(self) -> bool:
        return self.order % 2 == 0

    def width(self, d: int) -> int:
        return sum(d**p for p in range(self.order + 1))

    def forward(self, x: Array) -> tuple[Array, Array]:
        phi = _empty(x, self.width(x.shape[-1]), self.order)
        return np.concatenate(_tensor_powers(x, self.order), axis=-1, out=phi), x  # (4)

    def backward(self, d_phi: Array, x: Array) -> Array:
        return _tensor_powers_backward(d_phi, x, self.order)


@plain_numbers
def taylor_gaussian(order: int, sigma: float = 1.0) -> TaylorGaussian:
    """The Gaussian kernel by Taylor features: ``phi(x) . phi(y)`` is ``exp(-|x-y|^2 / 2 sigma^2)``, cut off.

    Parameters
    ----------
    order : int
        At least 0.
    sigma : float
        Above 0.
    """
    sigma = check_number("sigma", sigma)
    if sigma <= 0:
        raise ValueError(f"sigma: expected a number above 0, got {sigma!r}")
    check_sizes(0, order=order)
    return TaylorGaussian(order, sigma)


class TaylorGaussian(NamedTuple):
    """What :func:`taylor_gaussian` makes."""

    order: int
    sigma: float

    @property
    def name(self) -> str:
        return f"taylor_gaussian({self.order}, {self.sigma:g})"

    @property
    def positive(self) -> bool:
        return self.order % 2 == 0

    def width(self, d: int) -> int:
        return TaylorExp(self.order).width(d)

    def split(self, x: Array) -> tuple[Array, Array]:
        x = x / self.sigma
        return -half_square(x), TaylorExp(self.order).forward(x)[0]

    def forward(self, x: Array) -> tuple[Array, tuple[Array, Array]]:
        return exponential(self, x)  # (5)

    def backward(self, d_phi: Array, saved: tuple[Array, Array]) -> Array:
        x, phi = saved
        x = x / self.sigma
        exp = phi[..., :1]  # times t_0 = 1
        d_exponent = (d_phi * phi).sum(axis=-1, keepdims=True)  # (..., 1)
        return (_tensor_powers_backward(d_phi * exp, x, self.order) - x * d_exponent) / self.sigma


def exponential(feature_map: ExponentialMap, x: Array) -> tuple[Array, tuple[Array, Array]]:
    """The forward pass of a map given by its exponent and factor, as it stands: nothing is subtracted."""
    exponent, factor = feature_map.split(x)
    phi = np.exp(exponent) if factor is None else np.exp(exponent) * factor
    return phi, (x, phi)


def _tensor_powers(x: Array, order: int) -> list[Array]:
    """``t_0 ... t_order`` of equation (4), ``t_p (..., D^p)``."""
    powers = [np.ones_like(x, shape=(*x.shape[:-1], 1))]
    for p in range(1, order + 1):
        power = powers[-1][..., :, None] * x[..., None, :] / math.sqrt(p)  # (..., D^(p-1), D)
        powers.append(power.reshape(*x.shape[:-1], -1))  # (..., D^p)
    return powers


def _empty(x: Array, width: int, order: int) -> Array:
    """Room for the features, before the powers are made: a lack of memory shows at once."""
    if width * x[..., :1].nbytes > sys.maxsize:
        raise ValueError(f"order: too many features for any memory, with order {order} and D = {x.shape[-1]}")
    return np.empty_like(x, shape=(*x.shape[:-1], width))


def _tensor_powers_backward(d_phi: Array, x: Array, order: int) -> Array:
    powers = _tensor_powers(x, order - 1)
    starts = np.cumsum([0] + [x.shape[-1] ** p for p in range(order + 1)])
    d_x = np.zeros_like(x)
    d_power = d_phi[..., starts[order] :]  # (..., D^order)
    for p in range(order, 0, -1):
        d_product = d_power.reshape(*x.shape[:-1], -1, x.shape[-1]) / math.sqrt(p)  # (..., D^(p-1), D)
        d_x += (powers[p - 1][..., None, :] @ d_product)[..., 0, :]
        d_power = d_phi[..., starts[p - 1] : starts[p]] + (d_product @ x[..., None])[..., 0]  # (..., D^(p-1))
    return d_x


def check_number(name: str, x: float) -> float:
    if not is_number(x):
        raise TypeError(f"{name}: expected a number, got {x!r}")
    if not abs(x) <= sys.float_info.max:
        raise ValueError(f"{name}: expected a finite number, got {x!r}")
    return float(x)
