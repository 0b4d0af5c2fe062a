"""What Nyström attention checks at its door."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from linattn_ref.attention.arguments import Array, Mask, check_qk, check_qkv, check_sizes, resolve_scale
from linattn_ref.attention.depthwise import check_conv
from linattn_ref.attention.rooms import check_kernels
from linattn_ref.kernels import reference

__all__ = ["PSEUDO_INVERSES", "PseudoInverse", "check_forward", "check_matrix"]

PseudoInverse = Literal["iterative", "exact"]
PSEUDO_INVERSES: tuple[PseudoInverse, ...] = get_args(PseudoInverse)


def check_forward(
    q: Array, k: Array, v: Array, conv: Array | None = None, *, kernels: Any = reference, **options: Any
) -> None:
    check_qkv(q, k, v, key_mask=options.get("key_mask"), out=options.get("out"))
    check_matrix(q, k, **options)
    check_kernels(kernels, "softmax")
    if conv is not None:
        check_conv(conv, v)
        if q.shape[-2] != k.shape[-2]:
            raise ValueError(f"conv: needs N = L, a value for each query, got N = {q.shape[-2]} and L = {k.shape[-2]}")


def check_matrix(
    q: Array,
    k: Array,
    *,
    landmarks: int | None = None,
    pinv: PseudoInverse = "iterative",
    iterations: int = 6,
    key_mask: Mask | None = None,
    scale: float | None = None,
    **_: Any,
) -> None:
    check_qk(q, k, key_mask=key_mask)
    shorter = min(q.shape[-2], k.shape[-2])
    whole = isinstance(landmarks, (int, np.integer)) and not isinstance(landmarks, bool)
    if landmarks is not None and not (whole and 1 <= landmarks <= shorter):
        raise ValueError(f"landmarks: expected an integer with 1 <= R <= min(N, L) = {shorter}, got {landmarks!r}")
    if pinv not in PSEUDO_INVERSES:
        raise ValueError(f"pinv: expected one of {', '.join(PSEUDO_INVERSES)}, got {pinv!r}")
    check_sizes(iterations=iterations)
    resolve_scale(scale, q.shape[-1])
