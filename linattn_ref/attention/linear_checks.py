"""What linear attention looks at before it computes: the checks at its doors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from linattn_ref.attention.arguments import (
    FLOATS,
    check_array,
    check_d_out,
    check_qk,
    check_qkv,
    check_saved,
    is_number,
)
from linattn_ref.attention.feature_maps import check_feature_map, elu_plus_one, is_exponential
from linattn_ref.attention.feature_maps_exact import EluPlusOne
from linattn_ref.attention.linear_state import State, check_d_state, check_state
from linattn_ref.attention.rooms import check_kernels
from linattn_ref.kernels import reference

__all__ = ["check_bind_step", "check_eps", "check_forward", "check_matrix", "check_step", "check_summarise"]


def check_forward(
    q: Any,
    k: Any,
    v: Any,
    *,
    feature_map: Any = elu_plus_one,
    causal: Any = False,
    key_mask: Any = None,
    eps: Any = 1e-6,
    state: Any = None,
    out: Any = None,
    spend: Any = False,
    kernels: Any = reference,
) -> None:
    """Of `linear.forward`."""
    check_qkv(q, k, v, causal=causal, key_mask=key_mask, out=out)
    check_kernels(kernels, "causal_product")
    check_eps(eps, feature_map)
    if state is not None:
        check_given(state, feature_map, k, v, causal)


def check_given(state: Any, feature_map: Any, k: Any, v: Any, causal: bool) -> None:
    """A state that a pass continues from."""
    if not causal:
        raise ValueError("state: continuing from a state needs causal=True")
    check_state("state", state, feature_map, k, v)


def check_backward_of(d_out: Any, saved: Any, kind: Any, d_state: Any) -> None:
    """Of a ``backward``, given what ``forward`` of this ``kind`` of ``Saved`` returned second."""
    check_saved(saved, kind)
    check_d_out(d_out, saved.out.shape, saved.out.dtype)
    if d_state is not None:
        check_d_state(d_state, saved.state)


def check_summarise(k: Any, v: Any, *, feature_map: Any = elu_plus_one, key_mask: Any = None) -> None:
    """Of `linear.summarise`."""
    check_qkv(k, k, v, key_mask=key_mask)
    check_feature_map(feature_map)


def check_matrix(
    q: Any,
    k: Any,
    *,
    feature_map: Any = elu_plus_one,
    causal: Any = False,
    key_mask: Any = None,
    eps: Any = 1e-6,
) -> None:
    """Of `linear.matrix`."""
    check_qk(q, k, causal=causal, key_mask=key_mask)
    check_eps(eps, feature_map)


def check_eps(eps: Any, feature_map: Any) -> None:
    """``eps`` is a finite number of at least 0, and 0 if ``feature_map`` is an exponential."""
    check_feature_map(feature_map)
    if not is_number(eps):
        raise TypeError(f"eps: expected a number, got {eps!r}")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps: expected a finite number of at least 0, got {eps!r}")
    if eps != 0 and is_exponential(feature_map):
        raise ValueError(
            f"eps: must be 0 with the exponential map {feature_map.name}, whose scale would not cancel, got {eps!r}"
        )


# --- A step ---------------------------------------------------------------------------------------------------------


def check_step(
    q_t: Any,
    k_t: Any,
    v_t: Any,
    state: Any,
    *,
    feature_map: Any = elu_plus_one,
    eps: Any = 1e-6,
    kernels: Any = reference,
) -> None:
    """Of `linear.step`."""
    check_kernels(kernels, "causal_product")
    if type(feature_map) is not EluPlusOne or type(eps) is not float or not 0 <= eps < math.inf:  # else all is well
        check_eps(eps, feature_map)
    check_token(q_t, k_t, v_t, state, feature_map)


def check_bind_step(q_t: Any, k_t: Any, v_t: Any, state: Any, *more: Any, **options: Any) -> None:
    """Of `linear.bind_step`: the arrays are used as they are."""
    check_step(q_t, k_t, v_t, state, *more, **options)
    check_contiguous(q_t=q_t, k_t=k_t, v_t=v_t, **{"state.s": state.s, "state.z": state.z})


def check_contiguous(**arrays: Any) -> None:
    """They are NumPy's, without gaps."""
    for name, x in arrays.items():
        if not x.flags.c_contiguous:
            raise ValueError(f"{name}: expected a C-contiguous array, got strides {x.strides} of shape {x.shape}")


def check_token(q_t: Any, k_t: Any, v_t: Any, state: Any, feature_map: Any) -> None:
    """``q_t, k_t (..., D)``, ``v_t (..., M)``, and a state for them that nobody has gone on from."""
    if _fits(q_t, k_t, v_t, state, feature_map):
        return
    for name, x in (("q_t", q_t), ("k_t", k_t), ("v_t", v_t)):
        check_array(name, x, ndim=1)
    q, k, v = q_t[..., None, :], k_t[..., None, :], v_t[..., None, :]  # (..., 1, D), (..., 1, D), (..., 1, M)
    check_qkv(q, k, v)
    check_state("state", state, feature_map, k, v)
    for name, x in (("s", state.s), ("z", state.z)):
        if isinstance(x, np.ndarray) and not x.flags.writeable:
            raise ValueError(f"state.{name}: expected an array that can be written to, for a step spends its state")


def _fits(q: Any, k: Any, v: Any, state: Any, feature_map: Any) -> bool:
    """Whether :func:`check_token` would find nothing, as it mostly does: told in a fraction of its time.

    But for one thing: whether the state is spent, the step itself will see.
    """
    if type(state) is not State:
        return False
    s, z, scale, _, _ = state
    if not type(q) is type(k) is type(v) is type(s) is type(z) is np.ndarray:
        return False
    shape, dtype = q.shape, q.dtype
    leading, state_shape = shape[:-1], s.shape
    if scale is not None:
        if type(scale) is not np.ndarray or scale.dtype is not dtype or scale.shape[:-1] != leading:
            return False
        if scale.shape[-1] not in (1, state_shape[-2]):
            return False
    return (
        dtype is k.dtype is v.dtype is s.dtype is z.dtype
        and dtype in FLOATS
        and (scale is not None) == is_exponential(feature_map)
        and k.shape == shape != ()
        and z.shape == state_shape[:-1] == (*leading, feature_map.width(shape[-1]))
        and v.shape == (*leading, state_shape[-1])
        and s.size > 0
        and s.flags.writeable
        and z.flags.writeable
    )
