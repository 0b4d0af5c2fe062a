"""What Linformer checks at its door."""

from __future__ import annotations

from typing import Any

from linattn_ref.attention.arguments import Array, Mask, check_array, check_bool, check_qk, check_qkv, resolve_scale
from linattn_ref.attention.rooms import check_kernels
from linattn_ref.attention.shapes import check_broadcasts
from linattn_ref.kernels import reference

__all__ = ["check_forward", "check_matrix", "check_projection", "check_projections"]


def check_forward(
    q: Array, k: Array, v: Array, e: Array, f: Array, *, causal: bool = False, kernels: Any = reference, **options: Any
) -> None:
    check_qkv(q, k, v, key_mask=options.get("key_mask"), out=options.get("out"))
    check_kernels(kernels, "softmax")
    if causal:
        raise ValueError(
            "causal: not defined for Linformer; every row of E K mixes all positions, so a query would see the future"
        )
    check_projections(e, f, k)
    check_matrix(q, k, e, **options)


def check_matrix(
    q: Array,
    k: Array,
    e: Array,
    *,
    key_mask: Mask | None = None,
    row_mask: Mask | None = None,
    scale: float | None = None,
    **_: Any,
) -> None:
    check_qk(q, k, key_mask=key_mask)
    check_projection("e", e, k)
    resolve_scale(scale, q.shape[-1])
    if row_mask is not None:
        check_bool("row_mask", row_mask)
        if row_mask.ndim < 1 or row_mask.shape[-1] != e.shape[-2]:
            raise ValueError(f"row_mask: expected one entry a row of e, R = {e.shape[-2]}, got shape {row_mask.shape}")
        check_broadcasts("row_mask", row_mask.shape[:-1], k.shape[:-2])


def check_projections(e: Array, f: Array, k: Array) -> None:
    """Both as :func:`check_projection` says, of as many rows."""
    check_projection("e", e, k)
    check_projection("f", f, k)
    if e.shape[-2] != f.shape[-2]:
        raise ValueError(f"f: expected R = {e.shape[-2]} rows like e, got shape {f.shape}")


def check_projection(name: str, e: Array, k: Array) -> None:
    """``e`` is ``(R, L)`` or ``(..., R, L)`` with ``R <= L`` and leading axes that broadcast to those of ``k``."""
    check_array(name, e, dtype=k.dtype)
    length = k.shape[-2]
    if e.shape[-1] != length:
        raise ValueError(f"{name}: expected one column a key, (..., R, L) with L = {length}, got shape {e.shape}")
    if e.shape[-2] > length:
        raise ValueError(f"{name}: expected R <= L = {length}, got R = {e.shape[-2]}")
    check_broadcasts(name, e.shape[:-2], k.shape[:-2])
