"""The feature maps of the Performer, with directions ``omega (m, D)``.

    favor_trig        exp(|x|^2/2) / sqrt(m) [sin(omega x), cos(omega x)]                    (1)
    favor_positive    exp(omega x - |x|^2/2) / sqrt(m)                                       (2)
    favor_hyperbolic  exp(-|x|^2/2) / sqrt(2m) [exp(omega x), exp(-omega x)]                 (3)
    favor_relu        (max(omega x, 0) + 1e-3) / sqrt(m)                                     (4)

With rows of ``omega`` from N(0, I), ``phi(x) . phi(y)`` is on average ``exp(x.y)`` for (1)-(3), because
``E exp(omega . s) = exp(|s|^2/2)`` and ``E cos(omega . s) = exp(-|s|^2/2)``.

Range of ``favor_trig``
-----------------------
Its exponent is ``+|x|^2/2``: as it stands, ``forward`` overflows float32 beyond ``|x| = 13``, float64 beyond 37. In
linear attention the exponents only compare keys, and nothing overflows; but its similarities are sums of either sign
whose noise grows as ``exp((|x|^2+|y|^2)/2)``, while their mean is ``exp(x.y)``. Where that is small, the denominator
may come out near 0 or negative, and the output is worthless: the reason for the positive features.

The gradients, by hand
----------------------
Let ``p = omega x``, and ``dphi`` the gradient of ``phi``. Sine and cosine are each other's derivatives up to sign,
and an exponential is its own:

    trig        dp = dsin * cos - dcos * sin,           dx = omega^T dp + x sum(dphi * phi)  (5)
    positive    dp = dphi * phi,                        dx = omega^T dp - x sum(dphi * phi)  (6)
    hyperbolic  dp = dphi_+ * phi_+ - dphi_- * phi_-,   dx as in (6)                         (7)
    relu        dp = dphi * [p > 0] / sqrt(m),          dx = omega^T dp                      (8)

where ``sin`` and ``cos`` are the halves of (1), ``+`` and ``-`` those of (3). A map may be given a ``scale``, by which
``x`` is multiplied first, and its gradient once more.

References
----------
Choromanski et al. (2021), "Rethinking attention with Performers", section 2.3 and Lemma 1; section 4.4
(relu).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from linattn_ref.attention.features.feature_maps_exact import RELU_EPS, check_number, exponential
from linattn_ref.attention.features.feature_maps_random import (
    check_omega,
    half_square,
    like,
    project,
    rows_for,
    sine_cosine_backward,
)
from linattn_ref.op import Array, plain_numbers

__all__ = ["favor_hyperbolic", "favor_positive", "favor_relu", "favor_trig"]


@plain_numbers
def favor_trig(omega: Array, scale: float = 1.0) -> FavorTrig:
    """``exp(|x|^2/2) / sqrt(m) [sin(omega x), cos(omega x)]``, ``C = 2m``; see "Range" above.

    Parameters
    ----------
    omega : ndarray ``(m, D)``
        From :func:`gaussian` or :func:`orthogonal_gaussian`; taken in the dtype of ``x``.
    scale : float
        ``x`` is multiplied by it first.
    """
    check_omega(omega)
    return FavorTrig(omega, check_number("scale", scale))


class FavorTrig(NamedTuple):
    """What :func:`favor_trig` makes."""

    omega: Array  # (m, D)
    scale: float = 1.0
    name: str = "favor_trig"
    positive: bool = False

    def width(self, d: int) -> int:
        return 2 * rows_for(self.omega, d)

    def split(self, x: Array) -> tuple[Array, Array]:
        x = self.scale * x
        p = project(x, self.omega)  # (..., m)
        factor = np.concatenate([np.sin(p), np.cos(p)], axis=-1) / math.sqrt(len(self.omega))  # (..., 2m)
        return half_square(x), factor  # (1)

    def forward(self, x: Array) -> tuple[Array, tuple[Array, Array]]:
        return exponential(self, x)

    def backward(self, d_phi: Array, saved: tuple[Array, Array]) -> Array:
        x, phi = saved
        d_exponent = (d_phi * phi).sum(axis=-1, keepdims=True)  # (..., 1)
        d_p = sine_cosine_backward(d_phi, phi)  # (5)  (..., m)
        return self.scale * (d_p @ like(x, self.omega) + self.scale * x * d_exponent)  # (5)


@plain_numbers
def favor_positive(omega: Array, scale: float = 1.0) -> FavorPositive:
    """``exp(omega x - |x|^2/2) / sqrt(m)``, ``C = m``; ``omega`` and ``scale`` as in :func:`favor_trig`."""
    check_omega(omega)
    return FavorPositive(omega, check_number("scale", scale))


class FavorPositive(NamedTuple):
    """What :func:`favor_positive` makes."""

    omega: Array  # (m, D)
    scale: float = 1.0
    name: str = "favor_positive"
    kernel: str = "favor_positive"  # the backend's module for this map
    positive: bool = True

    def width(self, d: int) -> int:
        return rows_for(self.omega, d)

    def product(self, x: Array) -> tuple[Array, Array]:
        """The exponents (2) as one product: of ``[x, -|x|^2/2 - log(m)/2]`` and ``[omega, 1]``, ``(..., D + 1)``."""
        rows_for(self.omega, x.shape[-1])
        x = self.scale * x
        rest = -half_square(x) - 0.5 * math.log(len(self.omega))  # (..., 1)
        return np.concatenate([x, rest], axis=-1), _beside_ones(like(x, self.omega))

    def split(self, x: Array) -> tuple[Array, None]:
        rows, directions = self.product(x)
        return rows @ directions.T, None  # (2)  (..., m)

    def forward(self, x: Array) -> tuple[Array, tuple[Array, Array]]:
        return exponential(self, x)

    def backward(self, d_phi: Array, saved: tuple[Array, Array]) -> Array:
        x, phi = saved
        d_p = d_phi * phi  # (6)  (..., m)
        both = d_p @ _beside_ones(like(x, self.omega))  # (..., D + 1)
        return self.scale * (both[..., :-1] - self.scale * x * both[..., -1:])  # (6)


@plain_numbers
def favor_hyperbolic(omega: Array, scale: float = 1.0) -> FavorHyperbolic:
    """``exp(-|x|^2/2) / sqrt(2m) [exp(omega x), exp(-omega x)]``, ``C = 2m``; see :func:`favor_trig`."""
    check_omega(omega)
    return FavorHyperbolic(omega, check_number("scale", scale))


class FavorHyperbolic(NamedTuple):
    """What :func:`favor_hyperbolic` makes: :func:`favor_positive` of ``omega`` and of ``-omega``."""

    omega: Array  # (m, D)
    scale: float = 1.0
    name: str = "favor_hyperbolic"
    positive: bool = True

    def width(self, d: int) -> int:
        return 2 * rows_for(self.omega, d)

    def split(self, x: Array) -> tuple[Array, None]:
        x = self.scale * x
        p = project(x, self.omega)  # (..., m)
        shift = half_square(x) + 0.5 * math.log(2 * len(self.omega))
        return np.concatenate([p, -p], axis=-1) - shift, None  # (3)  (..., 2m)

    def forward(self, x: Array) -> tuple[Array, tuple[Array, Array]]:
        return exponential(self, x)

    def backward(self, d_phi: Array, saved: tuple[Array, Array]) -> Array:
        x, phi = saved
        m = len(self.omega)
        d_exponent = d_phi * phi  # (..., 2m)
        d_p = d_exponent[..., :m] - d_exponent[..., m:]  # (7)  (..., m)
        return self.scale * (d_p @ like(x, self.omega) - self.scale * x * d_exponent.sum(axis=-1, keepdims=True))  # (6)


@plain_numbers
def favor_relu(omega: Array, scale: float = 1.0) -> FavorRelu:
    """``(max(omega x, 0) + 1e-3) / sqrt(m)``, ``C = m``; ``omega`` and ``scale`` as in :func:`favor_trig`."""
    check_omega(omega)
    return FavorRelu(omega, check_number("scale", scale))


class FavorRelu(NamedTuple):
    """What :func:`favor_relu` makes."""

    omega: Array  # (m, D)
    scale: float = 1.0
    name: str = "favor_relu"
    positive: bool = True

    def width(self, d: int) -> int:
        return rows_for(self.omega, d)

    def forward(self, x: Array) -> tuple[Array, Array]:
        p = project(self.scale * x, self.omega)  # (..., m)
        return (np.maximum(p, 0) + RELU_EPS) / math.sqrt(len(self.omega)), p  # (4)

    def backward(self, d_phi: Array, p: Array) -> Array:
        d_p = d_phi * (p > 0) / math.sqrt(len(self.omega))  # (8)  (..., m)
        return self.scale * (d_p @ like(p, self.omega))  # (8)


Kind = Literal["trig", "positive", "hyperbolic", "relu"]
KINDS: dict[str, Callable[..., FavorTrig | FavorPositive | FavorHyperbolic | FavorRelu]] = {
    "trig": FavorTrig,
    "positive": FavorPositive,
    "hyperbolic": FavorHyperbolic,
    "relu": FavorRelu,
}


def _beside_ones(omega: Array) -> Array:
    """``[omega, 1]``, ``(m, D + 1)``: a sum of features is one more product."""
    return np.concatenate([omega, np.ones_like(omega[:, :1])], axis=-1)
