"""A step of softmax attention that is bound to its arrays, for a loop that decodes: see `linear_recurrent`.

The cache is bound too. The step appends to it in place and knows how many of its rows are its own, so that other states
of the same cache stay what they are, and go on from copies. Where one of them was there first and took the row that the
step would write next, the step says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, resolve_scale
from linattn_ref.attention.fields import documented
from linattn_ref.attention.ownership import Count, new_count
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import SoftmaxRoom
from linattn_ref.attention.softmax_cache import State, check_step, step_of, to_append
from linattn_ref.kernels import reference

__all__ = ["BoundStep", "bind_step"]


@documented
class BoundStep(NamedTuple):
    """`softmax.step` on arrays that were given once."""

    run: Callable[[], None]  # one token: reads q_t, k_t and v_t, appends to the cache, writes out_t
    out_t: Array  # (..., M)
    k: Array  # (..., capacity, D), the cache
    v: Array  # (..., capacity, M)
    length: Count  # tokens so far
    rows: Count  # how many rows of the cache are written

    @property
    def state(self) -> State:
        """The state as it is now. What goes on from it takes the next row: then bind a step to *its* state."""
        return State(self.k, self.v, int(self.length[0]), self.rows)


@plain_numbers
def bind_step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    *,
    scale: float | None = None,
    kernels: SoftmaxRoom = reference,
) -> BoundStep:
    """`softmax.step` for a loop that decodes into the same arrays again and again: everything is checked once, here.

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
        C-contiguous, not on a GPU. What stands in them when ``run`` is called is the next token.
    state : State
        Its arrays, C-contiguous too, are the cache throughout; a copy of them, if another went on from this state.
    scale, kernels
        As in `softmax.step`.

    Returns
    -------
    BoundStep
    """
    check_step(q_t, k_t, v_t, state, scale=scale, kernels=kernels)
    for name, x in (("q_t", q_t), ("k_t", k_t), ("v_t", v_t), ("state.k", state.k), ("state.v", state.v)):
        if not x.flags.c_contiguous:
            raise ValueError(f"{name}: expected a C-contiguous array, got strides {x.strides} of shape {x.shape}")
    kernel = kernels.softmax
    bind = getattr(kernel, "bind_step", None) or partial(reference.softmax.bind_step, step=step_of(kernel))
    k, v, own, rows = to_append(state)
    length, out_t = new_count(own), np.zeros_like(v_t)
    run = bind(q_t, k_t, v_t, k, v, length, rows, resolve_scale(scale, q_t.shape[-1]), out_t)
    return BoundStep(run, out_t, k, v, length, rows)
