"""Softmax attention token by token: the state is a key/value cache, which grows by a row a token.

    K_t = [K_{t-1}; k_t],   V_t = [V_{t-1}; v_t]             (1)  (t, D), (t, M)
    p_t = softmax(scale K_t q_t)                             (2)  (t,)
    out_t = V_t^T p_t                                        (3)  (M,)

``O(t max(D, M))`` time a token. Nothing is computed twice, and nothing is forgotten. What share of a step it is to read
the cache, `linattn_ref.kernels.jit.softmax_step` says.

The rows of a cache never change once they are written, so that any number of states can share them, each with a
``length`` of its own; what becomes of two that go on from the same row, `ownership` says.

Three tokens; the last query is twice as similar to the first key as to the others, ``exp(scores) = (2, 1, 1)``:

>>> import numpy as np
>>> from linattn_ref.attention import softmax
>>> q, k, v = np.ones((3, 1)), np.log([[2.0], [1.0], [1.0]]), np.array([[3.0], [6.0], [10.0]])
>>> state = softmax.init_state((), 1, 1, capacity=3)
>>> for t in range(3):
...     out_t, state = softmax.step(q[t], k[t], v[t], state)
...     print(state.length, out_t.round(3))
1 [3.]
2 [4.]
3 [5.5]

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", supplementary C.1 (stateful softmax).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention.arguments import (
    FLOATS,
    Array,
    check_array,
    check_dtype,
    check_leading,
    check_shape,
    check_sizes,
    name_of,
    resolve_scale,
)
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.ownership import Count, new_count
from linattn_ref.attention.rooms import SoftmaxRoom, check_kernels
from linattn_ref.kernels import reference

__all__ = ["State", "append", "init_state", "step"]


@documented
class State(NamedTuple):
    """The key/value cache: its first ``length`` rows are the tokens so far, those after them another's, or room."""

    k: Array  # (..., capacity, D)
    v: Array  # (..., capacity, M)
    length: int  # tokens so far
    rows: Count | None = None  # how many rows are written, shared by all states in these arrays


def check_init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    *,
    capacity: int,
    dtype: DTypeLike = np.float64,
    **_: Any,
) -> None:
    check_leading(leading)
    check_sizes(key_width=key_width, value_width=value_width, capacity=capacity)
    check_dtype(dtype)


@door(check_init_state)
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    *,
    capacity: int,
    dtype: DTypeLike = np.float64,
    like: Array | None = None,
) -> State:
    """An empty cache with room for ``capacity`` tokens, for arrays with the ``leading`` axes; on a GPU ``like`` one."""
    k, v = (np.zeros((*leading, capacity, width), dtype, like=like) for width in (key_width, value_width))
    return State(k, v, 0, new_count())


# --- More rows ------------------------------------------------------------------------------------------------------


def check_room_for(k: Array, v: Array, state: State) -> None:
    """``state`` is a cache with room for the rows ``k (..., L, D)``, ``v (..., L, M)``."""
    if not isinstance(state, State):
        raise TypeError(f"state: expected a softmax.State, got a {name_of(type(state))}")
    check_array("state.k", state.k, dtype=k.dtype)
    check_array("state.v", state.v, dtype=k.dtype)
    capacity = state.k.shape[-2]
    check_shape("state.k", state.k, (*k.shape[:-2], capacity, k.shape[-1]), "(..., capacity, D)")
    check_shape("state.v", state.v, (*v.shape[:-2], capacity, v.shape[-1]), "(..., capacity, M)")
    for name, x in (("k", state.k), ("v", state.v)):
        if isinstance(x, np.ndarray) and not x.flags.writeable:
            raise ValueError(f"state.{name}: expected an array that can be written to")
    written = capacity if state.rows is None else int(state.rows[0])
    if not isinstance(state.length, (int, np.integer)) or not 0 <= state.length <= written:
        raise ValueError(
            f"state.length: expected an integer from 0 to {written}, the rows there are, got {state.length!r}"
        )
    end = state.length + k.shape[-2]
    if end > capacity:
        raise ValueError(
            f"state: no room, {k.shape[-2]} more tokens after {state.length} need a capacity of {end}, got {capacity}"
        )


def check_append(k: Array, v: Array, state: State) -> None:
    check_array("k", k)
    check_array("v", v, dtype=k.dtype)
    check_shape("v", v, (*k.shape[:-1], v.shape[-1]), "(..., L, M)")
    check_room_for(k, v, state)


@door(check_append)
def append(k: Array, v: Array, state: State) -> State:
    """(1): the cache with the rows ``k (..., L, D)``, ``v (..., L, M)`` added; in place, where the next one is free."""
    k_cache, v_cache, length, rows = to_append(state)
    end = length + k.shape[-2]
    k_cache[..., length:end, :] = k
    v_cache[..., length:end, :] = v
    rows[0] = end
    return State(k_cache, v_cache, end, rows)


def to_append(state: State) -> tuple[Array, Array, int, Count]:
    """The state itself where its next row is free; where another went on from it, or nobody counts, a copy."""
    k, v, length, rows = state
    if rows is not None and rows[0] == length:
        return k, v, length, rows
    return _copy_of_rows(k, length), _copy_of_rows(v, length), length, new_count(length)


def _copy_of_rows(x: Array, length: int) -> Array:
    copy = np.zeros_like(x)
    copy[..., :length, :] = x[..., :length, :]
    return copy


# --- One token ------------------------------------------------------------------------------------------------------


def check_step(
    q_t: Array, k_t: Array, v_t: Array, state: State, *, scale: float | None = None, kernels: SoftmaxRoom = reference
) -> None:
    check_kernels(kernels, "softmax")
    if not _fits(q_t, k_t, v_t, state):
        check_array("q_t", q_t, ndim=1)
        check_array("k_t", k_t, ndim=1, dtype=q_t.dtype)
        check_array("v_t", v_t, ndim=1, dtype=q_t.dtype)
        check_shape("k_t", k_t, q_t.shape, "of q_t")
        check_shape("v_t", v_t, (*q_t.shape[:-1], v_t.shape[-1]), "(..., M)")
        check_room_for(k_t[..., None, :], v_t[..., None, :], state)
    resolve_scale(scale, q_t.shape[-1])


def _fits(q_t: Any, k_t: Any, v_t: Any, state: Any) -> bool:
    """Whether :func:`check_step` would find nothing in these, as it mostly does: told in a fraction of its time."""
    if type(state) is not State:
        return False
    k, v, length, rows = state
    if not type(q_t) is type(k_t) is type(v_t) is type(k) is type(v) is np.ndarray:
        return False
    shape, k_shape, v_shape = q_t.shape, k.shape, v.shape  # (..., D), (..., capacity, D), (..., capacity, M)
    return (
        len(shape) > 0
        and k_t.shape == shape
        and k_shape[-1:] == shape[-1:]
        and k_shape[:-2] == shape[:-1]
        and v_shape[:-1] == k_shape[:-1]
        and v_t.shape == shape[:-1] + v_shape[-1:]
        and q_t.dtype is k_t.dtype is v_t.dtype is k.dtype is v.dtype
        and q_t.dtype in FLOATS
        and 0 not in v_t.shape
        and 0 not in shape
        and type(length) is int
        and 0 <= length < k_shape[-2]
        and (rows is None or length <= rows[0])
        and k.flags.writeable
        and v.flags.writeable
    )


@door(check_step)
def step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    *,
    scale: float | None = None,
    kernels: SoftmaxRoom = reference,
) -> tuple[Array, State]:
    """One token: add its key and value to the cache and attend to all of it.

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
    state : State
        From :func:`init_state`, ``step`` or ``forward``.
    scale, kernels
        As in ``forward``.

    Returns
    -------
    out_t : ndarray ``(..., M)``
    state : State
    """
    k, v, length, rows = to_append(state)
    k[..., length, :], v[..., length, :] = k_t, v_t  # (1)
    rows[0] = length = length + 1
    attend = step_of(kernels.softmax)
    out_t = attend(q_t, k, v, length, resolve_scale(scale, q_t.shape[-1]))  # (2), (3)  (..., M)
    return out_t, State(k, v, length, rows)


def step_of(kernel: Any) -> Callable[..., Array]:
    """What a kernel computes (2) and (3) by: its ``step``, or, if it has none, its ``forward`` for one query."""
    return getattr(kernel, "step", None) or partial(_one_query, kernel.forward)


def _one_query(forward: Callable[..., Any], q_t: Array, k: Array, v: Array, length: int, scale: float) -> Array:
    out, _ = forward(q_t[..., None, :], k[..., :length, :], v[..., :length, :], None, True, scale)  # (..., 1, M)
    return out[..., 0, :]
