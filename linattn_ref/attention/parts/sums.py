"""The state of linear attention: all that later queries need of the keys so far, and how states of pieces combine.

    S = sum_j phi(k_j) v_j^T,   Z = sum_j phi(k_j)           (1)  (C, M), (C,)

A state is a sum, and sums associate: the state after two pieces of a sequence is the sum of the pieces' states, in any
grouping. Adding token by token is a recurrent network; adding machine by machine shares one sequence among machines.

With an exponential feature map a state has a scale ``r_c`` per feature, ``S_c = exp(r_c) s_c`` (``exponential.py``),
and two states are brought to the larger ``r_c`` before they are added:

    s <- exp(r_old - r_new) s,   z <- exp(r_old - r_new) z   (2)

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.4, equations 16-20.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, op

__all__ = ["State", "check_d_state", "combine", "combine_gradients", "no_keys", "on_scale"]


class State(NamedTuple):
    """Two sums per head, whatever the number of keys."""

    s: Float[Array, "... C M"]  # S = exp(log_scale) s
    z: Float[Array, "... C"]  # Z = exp(log_scale) z
    log_scale: Float[Any, "... 1|C"] = None  # r; None if phi is not an exponential


def no_keys(s: Array, scales: int | None = None) -> State:
    """The state before any key, for sums like ``s (..., C, M)``.

    ``scales`` is the length of ``r``, 1 or ``C``, or None without one. Its entries are the lowest number, which every
    key raises.
    """
    z = np.zeros_like(s[..., 0])
    r = None if scales is None else np.full_like(z, np.finfo(z.dtype).min, shape=(*z.shape[:-1], scales))
    return State(np.zeros_like(s), z, r)


def _look(state_a: Any = None, state_b: Any = None, d_state_a: Any = None, d_state_b: Any = None) -> None:
    """Both states, or both gradients, have a scale, or neither has."""
    a, b, name = (state_a, state_b, "state") if d_state_a is None else (d_state_a, d_state_b, "d_state")
    if (a.log_scale is None) != (b.log_scale is None):
        raise ValueError(
            f"{name}_b: expected a state of the same feature map as {name}_a, but only one of the two has a log_scale"
        )


def check_d_state(saved: Any, d_state: State | None = None, **_: Any) -> None:
    """The gradient of a state has a scale only where the state has one."""
    if d_state is not None and d_state.log_scale is not None and saved.state.log_scale is None:
        raise ValueError("d_state: expected a state of the same feature map as saved.state, got one with a log_scale")


@op(look=_look)
def combine(state_a: State, state_b: State) -> State:
    """The state after two pieces of a sequence: ``combine(a, combine(b, c)) == combine(combine(a, b), c)``."""
    if state_a.log_scale is None or state_b.log_scale is None:
        return State(state_a.s + state_b.s, state_a.z + state_b.z)  # (1), over both
    r = np.maximum(state_a.log_scale, state_b.log_scale)
    (s_a, z_a), (s_b, z_b) = (_times(x, np.exp(x.log_scale - r)) for x in (state_a, state_b))  # (2)
    return State(s_a + s_b, z_a + z_b, r)


@op(look=_look)
def combine_gradients(d_state_a: State, d_state_b: State) -> State:
    """The gradient of a state that two later pieces read: the sum of theirs.

    The gradient of ``s``, where ``S = exp(r) s``, is ``exp(r)`` times that of ``S``, and comes with its ``r``. Two are
    brought to the smaller one, so that no factor is above 1.
    """
    if d_state_a.log_scale is None or d_state_b.log_scale is None:
        return State(d_state_a.s + d_state_b.s, d_state_a.z + d_state_b.z)
    r = np.minimum(d_state_a.log_scale, d_state_b.log_scale)
    (s_a, z_a), (s_b, z_b) = on_scale(d_state_a, r), on_scale(d_state_b, r)
    return State(s_a + s_b, z_a + z_b, r)


def on_scale(d_state: State, r: Array | None) -> tuple[Array, Array]:
    """The gradients of ``s`` and ``z`` as kept on the scale ``r``."""
    if d_state.log_scale is None or r is None:
        return d_state.s, d_state.z
    return _times(d_state, np.exp(r - d_state.log_scale))


def _times(state: State, factor: Array) -> tuple[Array, Array]:
    return factor[..., None] * state.s, factor * state.z
