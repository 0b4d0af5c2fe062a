"""The delta rule as a recurrent network: one token's step, and what some tokens do to any state.

The formulas and their numbers are those of ``delta.py``; the state is that of ``fading_state.py``.

>>> import numpy as np
>>> from linattn_ref.attention.fading_state import init_state
>>> key, state = np.array([1e3]), init_state((), 1, 1)
>>> for value in (1.0, 5.0, 3.0):  # the last value counts
...     out, state = step(key, key, np.array([value]), state, np.array(1.0))
>>> out.round(6)
array([3.])
"""

from __future__ import annotations

from typing import Any

from linattn_ref.attention.arguments import Array, Mask, check_qkv, resolve_scale
from linattn_ref.attention.delta_checks import check_beta, check_flag, check_log_gate, check_step
from linattn_ref.attention.door import door
from linattn_ref.attention.fading_state import Piece, State, piece_of, spend, unfaded
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.rooms import DeltaProductRoom, check_kernels
from linattn_ref.attention.unit_rows import unit
from linattn_ref.kernels import reference

__all__ = ["step", "summarise"]


def _check_step(
    q_t: Any,
    k_t: Any,
    v_t: Any,
    state: Any,
    beta_t: Any,
    log_gate_t: Any = None,
    *,
    normalise: Any = True,
    **options: Any,
) -> None:
    check_step(q_t, k_t, v_t, state, log_gate_t, **options)
    check_beta("beta_t", beta_t, q_t)
    check_flag("normalise", normalise)


@door(_check_step)
def step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    beta_t: Array,
    log_gate_t: Array | None = None,
    *,
    normalise: bool = True,
    scale: float | None = None,
    kernels: DeltaProductRoom = reference,
) -> tuple[Array, State]:
    """One token, equations (1)-(4).

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., C)``, ``(..., C)``, ``(..., M)``
    state : State
        From ``init_state``, ``step`` or ``forward``. It is spent, see ``ownership.py``.
    beta_t : ndarray ``(...)``
    log_gate_t : ndarray ``(...)`` or ``(..., C)``, optional
    normalise, scale, kernels
        As in `delta.forward`.

    Returns
    -------
    out_t : ndarray ``(..., M)``
    state : State
    """
    state, scale, beta = spend(state), resolve_scale(scale, q_t.shape[-1]), beta_t[..., None]
    unit_q, unit_k = (unit(x) if normalise else x for x in (q_t, k_t))  # (4)  (..., C)
    rows = scale * unit_q, unit_k, beta * v_t, beta * unit_k, log_gate_t
    return kernels.delta_product.step(*rows, state.s), state  # (1)-(3)


def _check_summarise(
    k: Any,
    v: Any,
    beta: Any,
    log_gate: Any = None,
    *,
    normalise: Any = True,
    key_mask: Any = None,
    kernels: Any = reference,
) -> None:
    check_qkv(k, k, v, key_mask=key_mask)
    check_beta("beta", beta, k)
    check_log_gate("log_gate", log_gate, k)
    check_flag("normalise", normalise)
    check_kernels(kernels, "delta_product")


@door(_check_summarise)
def summarise(
    k: Array,
    v: Array,
    beta: Array,
    log_gate: Array | None = None,
    *,
    normalise: bool = True,
    key_mask: Mask | None = None,
    kernels: DeltaProductRoom = reference,
) -> Piece:
    """What some tokens do to a state: what a machine has to say about its piece of a sequence, ``fading_state.py``.

    Parameters
    ----------
    k, v, beta, log_gate, normalise, key_mask, kernels
        As in `delta.forward`.
    """
    k, v, beta = zero_masked(k, key_mask), zero_masked(v, key_mask), beta[..., None]
    k = unit(k) if normalise else k  # (4)
    return piece_of(k, beta * v, beta * k, unfaded(log_gate, key_mask), kernels)
