"""What the Long-Short Transformer checks at its door."""

from __future__ import annotations

from typing import Any

from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_array,
    check_qk,
    check_qkv,
    check_shape,
    check_sizes,
    resolve_scale,
)
from linattn_ref.attention.shapes import check_broadcasts

__all__ = ["Norm", "Pair", "check_forward", "check_matrix"]

Pair = tuple[Array, Array]  # gain and bias, (W,) each
Norm = tuple[Pair, Pair]  # for keys (D,) and for values (M,)


def check_matrix(
    q: Array,
    k: Array,
    w_p: Array,
    norm_local: Norm | None,
    norm_global: Norm | None,
    *,
    window: Any = None,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    v: Array | None = None,
    **_: Any,
) -> None:
    check_qk(q, k, causal=causal, key_mask=key_mask)
    check_sizes(window=window)
    if not causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"q: the keys near a query need N = L (or causal=True), got N = {q.shape[-2]} and L = {k.shape[-2]}"
        )
    check_w_p(w_p, k)
    _check_norm("norm_local", norm_local, k, v)
    _check_norm("norm_global", norm_global, k, v)
    resolve_scale(scale, q.shape[-1])


def check_w_p(w_p: Array, k: Array) -> None:
    """``w_p`` is ``(D, R)`` or ``(..., D, R)`` with leading axes that broadcast to those of ``k (..., L, D)``."""
    check_array("w_p", w_p, dtype=k.dtype)
    if w_p.shape[-2] != k.shape[-1]:
        raise ValueError(f"w_p: expected one row per entry of a key, (D, R) with D = {k.shape[-1]}, got {w_p.shape}")
    check_broadcasts("w_p", w_p.shape[:-2], k.shape[:-2])


def _check_norm(name: str, norm: Norm | None, k: Array, v: Array | None) -> None:
    """None or ``((gain, bias), (gain, bias))``, ``(D,)`` for keys, ``(M,)`` for values if there are any."""
    if norm is None:
        return
    if not (_is_pair(norm) and all(_is_pair(x) for x in norm)):
        raise TypeError(f"{name}: expected None or ((gain, bias) of keys, (gain, bias) of values), got {norm!r}")
    for pair, x, letter in ((norm[0], k, "D"), (norm[1], v, "M")):
        for array in () if x is None else pair:
            check_array(name, array, ndim=1, dtype=k.dtype)
            check_shape(name, array, x.shape[-1:], f"({letter},)")  # type: ignore[union-attr]


def _is_pair(x: object) -> bool:
    return isinstance(x, (tuple, list)) and len(x) == 2


def check_forward(q: Array, k: Array, v: Array, *rest: Any, **options: Any) -> None:
    shared = {name: options[name] for name in ("causal", "key_mask", "out") if name in options}
    check_qkv(q, k, v, **shared)
    check_matrix(q, k, *rest, **options, v=v)
