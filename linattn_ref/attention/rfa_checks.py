"""What random feature attention checks at its doors."""

from __future__ import annotations

from typing import Any

import numpy as np

from linattn_ref.attention import linear_checks
from linattn_ref.attention.arguments import Array, check_array, check_qk, check_qkv, check_shape
from linattn_ref.attention.feature_maps_random import KINDS, check_omega
from linattn_ref.attention.linear_state import check_sizes_of_state

__all__ = ["check_bind_step", "check_forward", "check_init_state", "check_matrix", "check_step"]


def check_forward(
    q: Any, k: Any, v: Any, omega: Any, gate: Any = None, *, kind: Any = "gaussian", state: Any = None, **options: Any
) -> None:
    check_kind(omega, kind)
    phi, causal = KINDS[kind](omega), options.get("causal", False)
    if gate is not None:
        check_qkv(q, k, v)
        if state is not None:
            linear_checks.check_given(state, phi, k, v, causal)
        check_gate(gate, q, k, causal)
    linear_checks.check_forward(q, k, v, feature_map=phi, state=state, **options)


def check_matrix(
    q: Any, k: Any, omega: Any, gate: Any = None, *, kind: Any = "gaussian", causal: Any = False, **options: Any
) -> None:
    check_kind(omega, kind)
    linear_checks.check_matrix(q, k, feature_map=KINDS[kind](omega), causal=causal, **options)
    if gate is not None:
        check_gate(gate, q, k, causal)


def check_init_state(
    leading: Any, key_width: Any, value_width: Any, omega: Any, *, kind: Any = "gaussian", **options: Any
) -> None:
    check_kind(omega, kind)
    check_sizes_of_state(leading, key_width, value_width, **options)


def check_step(
    q_t: Any, k_t: Any, v_t: Any, state: Any, omega: Any, gate_t: Any = None, *, kind: Any = "gaussian", **options: Any
) -> None:
    check_kind(omega, kind)
    linear_checks.check_step(q_t, k_t, v_t, state, feature_map=KINDS[kind](omega), **options)
    if gate_t is not None:
        gate_t = np.asarray(gate_t) if isinstance(gate_t, np.generic) else gate_t  # what indexing leaves of a row
        _check_between("gate_t", gate_t, q_t.shape[:-1], q_t.dtype)


def check_bind_step(q_t: Any, k_t: Any, v_t: Any, state: Any, omega: Any, gate_t: Any = None, **options: Any) -> None:
    check_step(q_t, k_t, v_t, state, omega, gate_t, **options)
    gates = {} if gate_t is None else {"gate_t": gate_t}
    linear_checks.check_contiguous(q_t=q_t, k_t=k_t, v_t=v_t, **{"state.s": state.s, "state.z": state.z}, **gates)


def check_kind(omega: Any, kind: Any) -> None:
    """``kind`` is one, and ``omega`` is ``(m, D)``."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    check_omega(omega)


def check_gate(gate: Any, q: Array, k: Array, causal: bool) -> None:
    """``gate (..., N)`` lies strictly between 0 and 1, the pass is causal and ``N = L``."""
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(f"gate: needs N = L, a gate a token, got N = {q.shape[-2]} and L = {k.shape[-2]}")
    check_qk(q, k, causal=causal)
    if not causal:
        raise ValueError("gate: needs causal=True, since it lets the past fade")
    _check_between("gate", gate, q.shape[:-1], q.dtype)


def _check_between(name: str, gate: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if type(gate) is not np.ndarray or gate.shape != shape or gate.dtype is not dtype:  # else all is well
        check_array(name, gate, ndim=0, dtype=dtype)
        check_shape(name, gate, shape, "(..., N)" if name == "gate" else "(...)")
    if isinstance(gate, np.ndarray):  # a GPU is not asked
        lowest, highest = np.minimum.reduce(gate, axis=None), np.maximum.reduce(gate, axis=None)  # min and max, sooner
        if not (lowest > 0 and highest < 1):
            raise ValueError(f"{name}: expected numbers strictly between 0 and 1, got {lowest} to {highest}")
