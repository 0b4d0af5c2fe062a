"""Linear attention as a recurrent network: its two hidden states, one step, and how the states of pieces combine.

    S_i = S_{i-1} + phi(k_i) v_i^T                           (1)  (C, M)
    Z_i = Z_{i-1} + phi(k_i)                                 (2)  (C,)
    out_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps)          (3)

Constant time and memory a token, where softmax attention reads a cache that grows. With ``H`` heads it is a network of
``2H`` hidden states.

The states are sums, and sums associate: the state after two pieces of a sequence is the sum of the pieces' states, in
any grouping (:func:`combine`). Position by position that is the recurrence, chunk by chunk the parallel form, machine
by machine a sequence shared among them.

With an exponential feature map a state has a scale ``r_c`` a feature, ``S_c = exp(r_c) s_c`` (see ``exponents.py``),
and two states are brought to the larger one before they are added (4).

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.4, equations 16-20.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention.arguments import (
    FLOATS,
    Array,
    check_array,
    check_dtype,
    check_kernels,
    check_leading,
    check_qkv,
    check_shape,
    check_sizes,
    is_number,
    name_of,
)
from linattn_ref.attention.exponents import decay_between, decayed, features, kernel_of
from linattn_ref.attention.feature_maps import FeatureMap, check_feature_map, elu_plus_one
from linattn_ref.attention.gpu_arrays import is_inside, takes_gpu_arrays, through_the_door
from linattn_ref.kernels import reference
from linattn_ref.kernels.libraries import is_on_gpu


class State(NamedTuple):
    """All that any later query needs of the keys so far: two sums a head, whatever their number."""

    s: Array  # (..., C, M), S = exp(log_scale) s
    z: Array  # (..., C),    Z = exp(log_scale) z
    log_scale: Array | None  # (..., 1 or C), -inf before the first key; None if phi is not an exponential


@takes_gpu_arrays
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    *,
    feature_map: FeatureMap = elu_plus_one,
    dtype: DTypeLike = np.float64,
    like: Array | None = None,
) -> State:
    """The state before the first key, for arrays with the ``leading`` axes.

    Parameters
    ----------
    leading : tuple of int
    key_width, value_width : int
        ``D`` and ``M``.
    feature_map : FeatureMap
    dtype
        float32 or float64.
    like : array, optional
        One on a GPU, for a state that is there too.
    """
    check_leading(leading)
    check_sizes(key_width=key_width, value_width=value_width)
    check_dtype(dtype)
    check_feature_map(feature_map)
    width = feature_map.width(int(key_width))
    s, z = np.zeros((*leading, width, value_width), dtype, like=like), np.zeros((*leading, width), dtype, like=like)
    return State(s, z, None if feature_map.split is None else np.zeros((*leading, 1), dtype, like=like) - np.inf)


def step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    *,
    feature_map: FeatureMap = elu_plus_one,
    eps: float = 1e-6,
    kernels: Any = reference,
) -> tuple[Array, State]:
    """One token of the recurrent network, equations (1)-(3).

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
    state : State
        From :func:`init_state`, ``step`` or ``forward``. It is spent: its buffers are reused.
    feature_map, eps, kernels
        As in ``forward``. A state on a GPU comes from ``forward`` there, or from ``init_state(..., like=q_t)``.

    Returns
    -------
    out_t : ndarray ``(..., M)``
    state : State
    """
    kernel, eps = check_kernels(kernels, "causal_product"), check_eps(eps, feature_map)
    if not _fits(q_t, k_t, v_t, state, feature_map):
        if is_on_gpu(q_t) and not is_inside(q_t):  # not takes_gpu_arrays, which takes a tenth of the time of a step
            return through_the_door(step, q_t, k_t, v_t, state, feature_map=feature_map, eps=eps, kernels=kernels)
        check_step(q_t, k_t, v_t, state, feature_map)
    with_features = kernel_of(feature_map, kernels)
    if with_features is not None:
        return with_features.step(q_t, k_t, v_t, state.s, state.z, eps), state  # (1)-(3)
    q, k = q_t[..., None, :], k_t[..., None, :]  # (..., 1, D)
    phi = features(q, k, feature_map, causal=True, log_scale=state.log_scale)
    s, z = decayed(state.s, state.z, phi.pieces[0].decay)
    out_t = kernel.step(phi.q[..., 0, :], phi.k[..., 0, :], v_t, s, z, eps)  # (1)-(3)  (..., M)
    return out_t, State(s, z, phi.log_scale)


@takes_gpu_arrays
def combine(state_a: State, state_b: State) -> State:
    """The state after two pieces of a sequence: ``combine(a, combine(b, c)) == combine(combine(a, b), c)``.

    Parameters
    ----------
    state_a, state_b : State
        Of the same feature map and shape. Neither is written to.
    """
    _check_is_state("state_a", state_a)
    _check_like("state_b", state_b, "state_a", state_a)
    if state_a.log_scale is None or state_b.log_scale is None:
        return State(state_a.s + state_b.s, state_a.z + state_b.z, None)
    log_scale = np.maximum(state_a.log_scale, state_b.log_scale)  # (..., 1 or C)
    s_a, z_a = decayed(state_a.s, state_a.z, decay_between(state_a.log_scale, log_scale))  # (4)
    s_b, z_b = decayed(state_b.s, state_b.z, decay_between(state_b.log_scale, log_scale))  # (4)
    return State(s_a + s_b, z_a + z_b, log_scale)


@takes_gpu_arrays
def combine_gradients(d_state_a: State, d_state_b: State) -> State:
    """The gradient of a state that was read twice, by later pieces of the sequence say: the sum of what each asks.

    The gradient of ``s``, where ``S = exp(r) s``, is ``exp(r)`` times that of ``S``; it comes with its ``r``. Two are
    brought to the smaller one, so that no factor is above 1.
    """
    _check_is_state("d_state_a", d_state_a)
    _check_like("d_state_b", d_state_b, "d_state_a", d_state_a)
    if d_state_a.log_scale is None or d_state_b.log_scale is None:
        return State(d_state_a.s + d_state_b.s, d_state_a.z + d_state_b.z, None)
    log_scale = np.minimum(d_state_a.log_scale, d_state_b.log_scale)  # (..., 1 or C)
    (s_a, z_a), (s_b, z_b) = gradient_on_scale(d_state_a, log_scale), gradient_on_scale(d_state_b, log_scale)
    return State(s_a + s_b, z_a + z_b, log_scale)


def gradient_on_scale(d_state: State, log_scale: Array | None) -> tuple[Array, Array]:
    """The gradients of ``s`` and ``z`` as kept on the scale ``log_scale``."""
    if d_state.log_scale is None:
        return d_state.s, d_state.z
    return decayed(d_state.s, d_state.z, decay_between(log_scale, d_state.log_scale))


# --- Checks ---------------------------------------------------------------------------------------------------------


def check_eps(eps: float, feature_map: FeatureMap) -> float:
    """``eps`` is a finite number of at least 0, and 0 if ``feature_map`` is an exponential."""
    check_feature_map(feature_map)
    if not is_number(eps):
        raise TypeError(f"eps: expected a number, got {eps!r}")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps: expected a finite number of at least 0, got {eps!r}")
    if eps != 0 and feature_map.split is not None:
        raise ValueError(
            f"eps: must be 0 with the exponential map {feature_map.name}, whose scale would not cancel, got {eps!r}"
        )
    return float(eps)


def check_step(q_t: Array, k_t: Array, v_t: Array, state: Any, feature_map: FeatureMap) -> None:
    """``q_t, k_t (..., D)``, ``v_t (..., M)``, and a state for them."""
    for name, x in (("q_t", q_t), ("k_t", k_t), ("v_t", v_t)):
        check_array(name, x, ndim=1)
    q, k, v = q_t[..., None, :], k_t[..., None, :], v_t[..., None, :]  # (..., 1, D), (..., 1, D), (..., 1, M)
    check_qkv(q, k, v)
    check_state("state", state, feature_map, k, v)
    for name, x in (("s", state.s), ("z", state.z)):
        if isinstance(x, np.ndarray) and not x.flags.writeable:
            raise ValueError(f"state.{name}: expected an array that can be written to, for a step spends its state")


def _fits(q: Any, k: Any, v: Any, state: Any, feature_map: FeatureMap) -> bool:
    """Whether :func:`check_step` would find nothing, as it mostly does: told in a fraction of its time."""
    if type(state) is not State or state.log_scale is not None or feature_map.split is not None:
        return False
    s, z, _ = state
    if not type(q) is type(k) is type(v) is type(s) is type(z) is np.ndarray:
        return False
    shape, dtype = q.shape, q.dtype
    leading, state_shape = shape[:-1], s.shape
    return (
        dtype is k.dtype is v.dtype is s.dtype is z.dtype
        and dtype in FLOATS
        and k.shape == shape != ()
        and z.shape == state_shape[:-1] == (*leading, feature_map.width(shape[-1]))
        and v.shape == (*leading, state_shape[-1])
        and s.size > 0
        and s.flags.writeable
        and z.flags.writeable
    )


def check_state(name: str, state: Any, feature_map: FeatureMap, k: Array, v: Array) -> None:
    """``state`` is a :class:`State` of ``feature_map`` for keys ``k (..., L, D)`` and values ``v (..., L, M)``."""
    _check_is_state(name, state)
    leading, width = k.shape[:-2], feature_map.width(k.shape[-1])
    check_array(f"{name}.s", state.s, dtype=k.dtype)
    check_shape(f"{name}.s", state.s, (*leading, width, v.shape[-1]), "(..., C, M)")
    check_array(f"{name}.z", state.z, ndim=1, dtype=k.dtype)
    check_shape(f"{name}.z", state.z, (*leading, width), "(..., C)")
    if (state.log_scale is None) != (feature_map.split is None):
        got = "without" if state.log_scale is None else "with"
        raise ValueError(f"{name}: expected a state made for {feature_map.name}, got one {got} a log_scale")
    if state.log_scale is not None:
        check_array(f"{name}.log_scale", state.log_scale, ndim=1, dtype=k.dtype)
        last = 1 if state.log_scale.shape[-1] == 1 else width
        check_shape(f"{name}.log_scale", state.log_scale, (*leading, last), "(..., 1 or C)")


def state_or_empty(state: State | None, feature_map: FeatureMap, k: Array, v: Array, causal: bool) -> State:
    """The state to continue from, checked, or one without keys."""
    if state is None:
        return init_state(k.shape[:-2], k.shape[-1], v.shape[-1], feature_map=feature_map, dtype=k.dtype, like=k)
    if not causal:
        raise ValueError("state: continuing from a state needs causal=True")
    check_state("state", state, feature_map, k, v)
    return state


def check_d_state(d_state: State, state: State) -> tuple[Array, Array]:
    """``d_state`` is shaped like ``state``. Its ``s`` and ``z`` on the scale of that, where one without a scale is."""
    if isinstance(d_state, State) and d_state.log_scale is None:
        state = state._replace(log_scale=None)
    _check_like("d_state", d_state, "saved.state", state)
    return gradient_on_scale(d_state, state.log_scale)


def _check_is_state(name: str, state: Any) -> None:
    if not isinstance(state, State):
        raise TypeError(f"{name}: expected a linear.State, got a {name_of(type(state))}")


def _check_like(name: str, state: Any, other_name: str, other: State) -> None:
    """``state`` is a :class:`State` of the dtype, shapes and kind of feature map of the other."""
    _check_is_state(name, state)
    check_array(f"{name}.s", state.s, dtype=other.s.dtype)
    check_shape(f"{name}.s", state.s, other.s.shape, f"of {other_name}.s")
    check_array(f"{name}.z", state.z, ndim=1, dtype=other.z.dtype)
    check_shape(f"{name}.z", state.z, other.z.shape, f"of {other_name}.z")
    if (state.log_scale is None) != (other.log_scale is None):
        raise ValueError(
            f"{name}: expected a state of the same feature map as {other_name}, but only one of the two has a log_scale"
        )
