"""The state of linear attention: all that any later query needs of the keys so far, and how states combine.

States are sums, and sums associate: the state after two pieces of a sequence is the sum of the pieces' states, in any
grouping (:func:`combine`). Position by position that is the recurrence, chunk by chunk the parallel form, machine by
machine a sequence shared among them.

With an exponential feature map a state has a scale ``r_c`` a feature, ``S_c = exp(r_c) s_c`` (see ``exponents.py``),
and two states are brought to the larger one before they are added:

    s <- exp(r_old - r_new) s,   z <- exp(r_old - r_new) z   (1)

Who owns a state, ``ownership.py`` says.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.4, equations 16-20.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention.arguments import (
    Array,
    check_array,
    check_dtype,
    check_leading,
    check_shape,
    check_sizes,
    name_of,
)
from linattn_ref.attention.door import door
from linattn_ref.attention.exponents import decay_between, decayed
from linattn_ref.attention.feature_maps import FeatureMap, check_feature_map, elu_plus_one, is_exponential
from linattn_ref.attention.fields import documented
from linattn_ref.attention.ownership import Count, check_unspent, new_count

__all__ = ["State", "combine", "combine_gradients", "init_state"]


@documented
class State(NamedTuple):
    """Two sums a head, whatever the number of keys. One put together by hand needs the first two alone."""

    s: Array  # (..., C, M), S = exp(log_scale) s
    z: Array  # (..., C),    Z = exp(log_scale) z
    log_scale: Array | None = None  # (..., 1 or C), -inf before the first key; None if phi is not an exponential
    steps: Count | None = None  # taken in these arrays by whoever; None: they are copied before they are written to
    taken: int = 0  # what ``steps`` was when this state was made


# --- Checks ---------------------------------------------------------------------------------------------------------


def check_state(name: str, state: Any, feature_map: FeatureMap, k: Array, v: Array) -> None:
    """``state`` is one of ``feature_map``, for keys ``k (..., L, D)`` and values ``v (..., L, M)``, and not spent."""
    _check_is_state(name, state)
    leading, width = k.shape[:-2], feature_map.width(k.shape[-1])
    check_array(f"{name}.s", state.s, dtype=k.dtype)
    check_shape(f"{name}.s", state.s, (*leading, width, v.shape[-1]), "(..., C, M)")
    check_array(f"{name}.z", state.z, ndim=1, dtype=k.dtype)
    check_shape(f"{name}.z", state.z, (*leading, width), "(..., C)")
    if (state.log_scale is None) == is_exponential(feature_map):
        got = "without" if state.log_scale is None else "with"
        raise ValueError(f"{name}: expected a state made for {feature_map.name}, got one {got} a log_scale")
    if state.log_scale is not None:
        check_array(f"{name}.log_scale", state.log_scale, ndim=1, dtype=k.dtype)
        last = 1 if state.log_scale.shape[-1] == 1 else width
        check_shape(f"{name}.log_scale", state.log_scale, (*leading, last), "(..., 1 or C)")
    check_unspent(name, state)


def check_d_state(d_state: Any, state: State) -> None:
    """``d_state`` is shaped like ``state``, with a scale or without."""
    if isinstance(d_state, State) and d_state.log_scale is None:
        state = state._replace(log_scale=None)
    _check_like("d_state", d_state, "saved.state", state)


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


def _check_init_state(
    leading: Any,
    key_width: Any,
    value_width: Any,
    *,
    feature_map: Any = elu_plus_one,
    **options: Any,
) -> None:
    check_sizes_of_state(leading, key_width, value_width, **options)
    check_feature_map(feature_map)


def check_sizes_of_state(
    leading: Any, key_width: Any, value_width: Any, *, dtype: Any = np.float64, like: Any = None
) -> None:
    """What a state is made for."""
    check_leading(leading)
    check_sizes(key_width=key_width, value_width=value_width)
    check_dtype(dtype)


def _check_combine(state_a: Any, state_b: Any) -> None:
    _check_is_state("state_a", state_a)
    _check_like("state_b", state_b, "state_a", state_a)
    check_unspent("state_a", state_a)
    check_unspent("state_b", state_b)


def _check_combine_gradients(d_state_a: Any, d_state_b: Any) -> None:
    _check_is_state("d_state_a", d_state_a)
    _check_like("d_state_b", d_state_b, "d_state_a", d_state_a)


# --- Made, spent, combined ------------------------------------------------------------------------------------------


@door(_check_init_state)
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
    width = feature_map.width(int(key_width))
    s, z = np.zeros((*leading, width, value_width), dtype, like=like), np.zeros((*leading, width), dtype, like=like)
    log_scale = np.zeros((*leading, 1), dtype, like=like) - np.inf if is_exponential(feature_map) else None
    return State(s, z, log_scale, new_count())


def spend(state: State) -> State:
    """The state whose arrays a step may write to, and from here on the only one that they belong to."""
    s, z, log_scale, steps, taken = state
    if steps is None:  # put together by hand: nobody has said that they may be written to
        return State(s.copy(), z.copy(), None if log_scale is None else log_scale.copy(), new_count(1), 1)
    if steps.item() != taken:
        check_unspent("state", state)
    steps[0] = taken = taken + 1
    return State(s, z, log_scale, steps, taken)


@door(_check_combine)
def combine(state_a: State, state_b: State) -> State:
    """The state after two pieces of a sequence: ``combine(a, combine(b, c)) == combine(combine(a, b), c)``.

    Parameters
    ----------
    state_a, state_b : State
        Of the same feature map and shape. Neither is written to.
    """
    if state_a.log_scale is None or state_b.log_scale is None:
        return State(state_a.s + state_b.s, state_a.z + state_b.z, None, new_count())
    log_scale = np.maximum(state_a.log_scale, state_b.log_scale)  # (..., 1 or C)
    s_a, z_a = decayed(state_a.s, state_a.z, decay_between(state_a.log_scale, log_scale))  # (1)
    s_b, z_b = decayed(state_b.s, state_b.z, decay_between(state_b.log_scale, log_scale))  # (1)
    return State(s_a + s_b, z_a + z_b, log_scale, new_count())


@door(_check_combine_gradients)
def combine_gradients(d_state_a: State, d_state_b: State) -> State:
    """The gradient of a state that was read twice, by later pieces of the sequence say: the sum of what each asks.

    The gradient of ``s``, where ``S = exp(r) s``, is ``exp(r)`` times that of ``S``; it comes with its ``r``. Two are
    brought to the smaller one, so that no factor is above 1.
    """
    if d_state_a.log_scale is None or d_state_b.log_scale is None:
        return State(d_state_a.s + d_state_b.s, d_state_a.z + d_state_b.z)
    log_scale = np.minimum(d_state_a.log_scale, d_state_b.log_scale)  # (..., 1 or C)
    (s_a, z_a), (s_b, z_b) = gradient_on_scale(d_state_a, log_scale), gradient_on_scale(d_state_b, log_scale)
    return State(s_a + s_b, z_a + z_b, log_scale)


def gradient_on_scale(d_state: State, log_scale: Array | None) -> tuple[Array, Array]:
    """The gradients of ``s`` and ``z`` as kept on the scale ``log_scale``."""
    if d_state.log_scale is None:
        return d_state.s, d_state.z
    return decayed(d_state.s, d_state.z, decay_between(log_scale, d_state.log_scale))
