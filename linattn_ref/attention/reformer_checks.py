"""What LSH attention checks at its door."""

from __future__ import annotations

from typing import Any

import numpy as np

from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_array,
    check_key_mask,
    check_shape,
    check_sizes,
    is_array,
    resolve_scale,
)
from linattn_ref.attention.lsh_hashing import Integers
from linattn_ref.attention.rooms import check_kernels
from linattn_ref.kernels import reference
from linattn_ref.kernels.reference.buffers import check_out

__all__ = ["check_forward", "check_pattern"]


def check_forward(qk: Array, v: Array, *, out: Array | None = None, kernels: Any = reference, **options: Any) -> None:
    check_array("qk", qk)
    check_array("v", v, dtype=qk.dtype)
    check_shape("v", v, (*qk.shape[:-1], v.shape[-1]), "(..., N, M)")
    check_kernels(kernels, "lsh")
    check_pattern(qk, **options)
    if out is not None:
        check_out(out, v.shape, v.dtype)


def check_pattern(
    qk: Array,
    *,
    rotations: Array | None = None,
    chunk: Any = None,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    buckets: Integers | None = None,
    **_: Any,
) -> None:
    check_array("qk", qk)
    resolve_scale(scale, qk.shape[-1])
    check_sizes(chunk=chunk)
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(f"causal: expected True or False, got {causal!r}")
    check_key_mask(key_mask, qk)
    if buckets is not None:
        _check_buckets(buckets, qk)
    elif rotations is None:
        raise TypeError("rotations: expected an array (rounds, D, buckets/2), got None and no buckets")
    else:
        _check_rotations(rotations, qk)


def _check_rotations(rotations: Array, qk: Array) -> None:
    """``rotations`` is ``(rounds, D, buckets/2)``, and finite: an argmax would hide what is not."""
    check_array("rotations", rotations, ndim=3)
    check_shape("rotations", rotations, (len(rotations), qk.shape[-1], rotations.shape[-1]), "(rounds, D, buckets/2)")
    if isinstance(rotations, np.ndarray) and not np.isfinite(rotations).all():  # a GPU is not asked
        raise ValueError("rotations: expected finite numbers, got NaN or infinity, which would hash all tokens alike")


def _check_buckets(buckets: Integers, qk: Array) -> None:
    """``buckets`` are integers ``(..., rounds, N)``."""
    known = is_array(buckets)
    if not known or buckets.dtype.kind not in "iu":
        got = buckets.dtype if known else type(buckets).__name__
        raise TypeError(f"buckets: expected an array of integers, got {got}")
    rounds = buckets.shape[-2] if buckets.ndim >= 2 else 1
    check_shape("buckets", buckets, (*qk.shape[:-2], max(rounds, 1), qk.shape[-2]), "(..., rounds, N)")  # type: ignore[arg-type]
