"""Random feature attention as a recurrent network: one step of its two hidden states, which fade, a token at a time.

    S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T             (1)  (C, M)
    z_t = g_t z_{t-1} + (1 - g_t) phi(k_t)                   (2)  (C,)
    out_t = phi(q_t)^T S_t / (phi(q_t)^T z_t + eps)          (3)

Without a gate ``g_t`` and ``1 - g_t`` are both 1: linear attention. The room ``jit`` does all of a step in one kernel.
With as many directions as a key is wide, ``m = D = M``, a head of it has three times linear attention's multiply-adds,
``2 C M + 2 m D`` with ``C = 2m`` for ``2 D M``. A step takes 2.6 and 2.7 times as long at widths 32 and 64, and 3.1 and
2.8 times where both are bound to their arrays (`linattn-ref bench steps`).

>>> omega = np.eye(2)
>>> state = init_state((), 2, 1, omega)
>>> for v in (0.0, 1.0, 2.0):  # equal keys; a gate of 1/2 halves the past each time
...     out, state = step(np.zeros(2), np.zeros(2), np.array([v]), state, omega, np.array(0.5), eps=0.0)
>>> out.round(3)
array([1.429])

References
----------
Peng et al. (2021), "Random feature attention", section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention import linear
from linattn_ref.attention.arguments import Array
from linattn_ref.attention.door import door
from linattn_ref.attention.feature_maps import FeatureMap, in_room
from linattn_ref.attention.feature_maps_random import KINDS, Kind
from linattn_ref.attention.linear_recurrent import BoundStep
from linattn_ref.attention.linear_state import State, spend
from linattn_ref.attention.ownership import Count
from linattn_ref.attention.rfa_checks import check_bind_step, check_init_state, check_step
from linattn_ref.attention.rooms import CausalProductRoom
from linattn_ref.kernels import reference
from linattn_ref.kernels.turns import take_turn

__all__ = ["BoundStep", "bind_step", "init_state", "step"]


@door(check_init_state)
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    omega: Array,
    *,
    kind: Kind = "gaussian",
    dtype: DTypeLike = np.float64,
    like: Array | None = None,
) -> State:
    """The state before the first token, for arrays with the ``leading`` axes; see `linear.init_state`."""
    phi = KINDS[kind](omega)
    return linear.init_state.unchecked(leading, key_width, value_width, feature_map=phi, dtype=dtype, like=like)


@door(check_step)
def step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    omega: Array,
    gate_t: Array | None = None,
    *,
    kind: Kind = "gaussian",
    eps: float = 1e-6,
    kernels: CausalProductRoom = reference,
) -> tuple[Array, State]:
    """One token, equations (1)-(3).

    Parameters
    ----------
    q_t, k_t, v_t, state
        As in `linear.step`; so are the results.
    omega, kind, eps, kernels
        As in ``forward``.
    gate_t : ndarray ``(...)``, optional
    """
    state, phi = spend(state), KINDS[kind](omega)
    arrays, kernel = (q_t, k_t, v_t, state.s, state.z, gate_t), in_room(phi, kernels, "step")
    if kernel is not phi:  # a kernel for all at once
        return kernel.step(*arrays, eps, phi), state
    return step_in_place(*arrays, eps, phi, kernels.causal_product.step), state


def step_in_place(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    s: Array,
    z: Array,
    gate_t: Array | None,
    eps: float,
    phi: FeatureMap,
    kernel_step: Callable[..., Array],
) -> Array:
    """``out_t``; ``s`` and ``z`` are brought up to date. Queries and keys are mapped at once."""
    phi_q, phi_k = phi.forward(np.stack([q_t, k_t]))[0]  # (..., C)
    if gate_t is not None:
        gate = gate_t[..., None]  # (..., 1)
        s *= gate[..., None]  # (1)
        z *= gate  # (2)
        phi_k = (1 - gate) * phi_k
    return kernel_step(phi_q, phi_k, v_t, s, z, eps)  # (1)-(3)  (..., M)


# --- Bound to its arrays --------------------------------------------------------------------------------------------


@door(check_bind_step)
def bind_step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    omega: Array,
    gate_t: Array | None = None,
    *,
    kind: Kind = "gaussian",
    eps: float = 1e-6,
    kernels: CausalProductRoom = reference,
) -> BoundStep:
    """:func:`step` for a loop that decodes into the same arrays again and again, as `linear.bind_step`.

    Parameters
    ----------
    q_t, k_t, v_t, state
        As in `linear.bind_step`; so is the result.
    omega, kind, eps, kernels
        As in ``forward``.
    gate_t : ndarray ``(...)``, optional
        C-contiguous. What stands in it when ``run`` is called is the next token's gate, and is not looked at.
    """
    state, out_t, phi = spend(state), np.zeros_like(v_t), KINDS[kind](omega)
    own = state.steps.copy()  # type: ignore[union-attr]
    arrays, kernel = (q_t, k_t, v_t, state.s, state.z, gate_t), in_room(phi, kernels, "step")
    if kernel is not phi:
        return BoundStep(kernel.bind_step(*arrays, eps, phi, out_t, turns=(state.steps, own)), out_t, state, own)
    return BoundStep(
        partial(_run, state.steps, own, out_t, *arrays, eps, phi, kernels.causal_product.step), out_t, state, own
    )


def _run(steps: Count | None, own: Count, out_t: Array, *arrays_and_options: Any) -> None:
    take_turn(steps, own)
    out_t[...] = step_in_place(*arrays_and_options)
