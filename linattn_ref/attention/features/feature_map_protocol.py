"""What a feature map is: ``phi``, applied to the last axis, ``(..., D) -> (..., C)``, with its gradient.

A map is data. Those of ``feature_maps`` are NamedTuples of their parameters; any object with these members will do, and
if it can be pickled, so can all that is saved with it.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from linattn_ref.op import Array

__all__ = ["ExponentialMap", "FeatureMap", "check_feature_map", "check_linear", "is_exponential"]

MEMBERS = ("name", "positive", "width", "forward", "backward")


class FeatureMap(Protocol):
    """The members of a map. One that a backend may compute faster also has ``kernel``, the name of its module there."""

    @property
    def name(self) -> str:
        """What to call it in messages and tables."""

    @property
    def positive(self) -> bool:
        """Whether ``phi(x) . phi(y) >= 0`` for all ``x`` and ``y``."""

    def width(self, d: int) -> int:
        """``C``, given ``D``."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """``phi(x)``, and what the gradient needs."""

    def backward(self, d_phi: Array, saved: Any) -> Array:
        """The gradient of ``x``, given that of ``phi(x)``."""


class ExponentialMap(FeatureMap, Protocol):
    """A map ``phi = exp(exponent) * factor``, which float32 cannot hold for large ``x``.

    Linear attention subtracts from the exponent what cancels in its ratio (see ``exponential.py``). What the backward
    function of such a map needs is ``(x, phi)``, and ``phi`` may be the scaled one: the scale is a constant, so the
    gradient is the same expression in it. The module that its ``kernel`` names has a ``step``.
    """

    def split(self, x: Array) -> tuple[Array, Array | None]:
        """The exponent ``(..., 1 or C)``, and the factor ``(..., C)`` or None for 1."""


def is_exponential(feature_map: FeatureMap) -> TypeGuard[ExponentialMap]:
    """Whether the map is an exponential, to be kept in the range of float32."""
    return hasattr(feature_map, "split")


def check_feature_map(feature_map: Any) -> None:
    """``feature_map`` is a :class:`FeatureMap`, not the function or the class that makes one."""
    if isinstance(feature_map, type) or not all(hasattr(feature_map, member) for member in MEMBERS):
        raise TypeError(
            f"feature_map: expected a FeatureMap such as feature_maps.elu_plus_one or feature_maps.quadratic(1.0),"
            f" with {', '.join(MEMBERS)}, got {feature_map!r}"
        )


def check_linear(
    feature_map: Any, k: Any = None, k_t: Any = None, eps: float = 0.0, state: Any = None, **_: Any
) -> None:
    """The checks of linear attention: ``eps`` is 0 with an exponential map, and ``state`` is one of this map."""
    check_feature_map(feature_map)
    exponential = is_exponential(feature_map)
    if eps != 0 and exponential:
        raise ValueError(
            f"eps: must be 0 with the exponential map {feature_map.name}, whose scale would not cancel, got {eps!r}"
        )
    if state is None:
        return
    if (state.log_scale is None) == exponential:
        got = "without" if state.log_scale is None else "with"
        raise ValueError(f"state: expected a state made for {feature_map.name}, got one {got} a log_scale")
    wanted = feature_map.width((k_t if k is None else k).shape[-1])
    if state.s.shape[-2] != wanted:
        raise ValueError(f"state.s: expected C = {wanted} for {feature_map.name}, got shape {state.s.shape}")
