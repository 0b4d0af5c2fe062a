"""What gated linear attention and the delta rule look at before they compute: the checks at their doors."""

from __future__ import annotations

from typing import Any

import numpy as np

from linattn_ref.attention.arguments import (
    Array,
    check_array,
    check_d_out,
    check_qk,
    check_qkv,
    check_saved,
    check_shape,
    resolve_scale,
)
from linattn_ref.attention.fading_state import check_d_state, check_state
from linattn_ref.attention.rooms import check_kernels
from linattn_ref.kernels import reference

__all__ = ["check_backward", "check_beta", "check_flag", "check_forward", "check_matrix", "check_step"]


def check_forward(
    q: Any,
    k: Any,
    v: Any,
    log_gate: Any,
    *,
    scale: Any = None,
    key_mask: Any = None,
    state: Any = None,
    out: Any = None,
    kernels: Any = reference,
) -> None:
    """Of `gated_linear.forward`, and of `delta.forward` but for ``beta``."""
    check_qkv(q, k, v, key_mask=key_mask, out=out)
    _check_square(q, k)
    check_log_gate("log_gate", log_gate, q)
    resolve_scale(scale, q.shape[-1])
    check_kernels(kernels, "delta_product")
    if state is not None:
        check_state("state", state, k, v)


def check_matrix(q: Any, k: Any, log_gate: Any, *, scale: Any = None, key_mask: Any = None) -> None:
    """Of ``matrix``."""
    check_qk(q, k, key_mask=key_mask)
    _check_square(q, k)
    check_log_gate("log_gate", log_gate, q)
    resolve_scale(scale, q.shape[-1])


def check_step(
    q_t: Any,
    k_t: Any,
    v_t: Any,
    state: Any,
    log_gate_t: Any,
    *,
    scale: Any = None,
    kernels: Any = reference,
) -> None:
    """Of a token: ``q_t, k_t (..., C)``, ``v_t (..., M)``, and a state that nobody has gone on from."""
    check_kernels(kernels, "delta_product")
    for name, x in (("q_t", q_t), ("k_t", k_t), ("v_t", v_t)):
        check_array(name, x, ndim=1)
    q, k, v = q_t[..., None, :], k_t[..., None, :], v_t[..., None, :]  # (..., 1, C), (..., 1, C), (..., 1, M)
    check_qkv(q, k, v)
    check_state("state", state, k, v)
    if isinstance(state.s, np.ndarray) and not state.s.flags.writeable:
        raise ValueError("state.s: expected an array that can be written to, for a step spends its state")
    check_log_gate("log_gate_t", _array(log_gate_t), q_t)
    resolve_scale(scale, q_t.shape[-1])


def check_backward(d_out: Any, saved: Any, kind: type, d_state: Any) -> None:
    """Of a ``backward``, given what ``forward`` of this ``kind`` of ``Saved`` returned second."""
    check_saved(saved, kind)
    check_d_out(d_out, saved.v.shape, saved.v.dtype)
    if d_state is not None:
        check_d_state(d_state, saved.state)


def check_log_gate(name: str, log_gate: Any, q: Array) -> None:
    """A number a token, of ``q``'s shape without its last axis, or one a channel, of ``q``'s shape; none above 0."""
    if log_gate is None:
        return
    check_array(name, log_gate, ndim=0, dtype=q.dtype)
    if log_gate.ndim == q.ndim:
        check_shape(name, log_gate, q.shape, "of q, a gate a channel,")
    else:
        check_shape(name, log_gate, q.shape[:-1], "of q without its last axis")
    if isinstance(log_gate, np.ndarray) and not (log_gate <= 0).all():  # a GPU is not asked
        raise ValueError(f"{name}: expected logarithms of gates up to 1, numbers up to 0, got up to {log_gate.max()}")


def check_beta(name: str, beta: Any, q: Array) -> None:
    """A number a token, from 0 to 2."""
    beta = _array(beta)
    check_array(name, beta, ndim=0, dtype=q.dtype)
    check_shape(name, beta, q.shape[:-1], "of q without its last axis")
    if isinstance(beta, np.ndarray) and not ((beta >= 0) & (beta <= 2)).all():  # a GPU is not asked
        raise ValueError(f"{name}: expected numbers from 0 to 2, got {beta.min()} to {beta.max()}")


def check_flag(name: str, flag: Any) -> None:
    """True or False."""
    if not isinstance(flag, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {flag!r}")


def _check_square(q: Array, k: Array) -> None:
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(f"q: a query a key is needed, got N = {q.shape[-2]} and L = {k.shape[-2]}")


def _array(x: Any) -> Any:
    """What indexing leaves of a row is a number of NumPy's, an array of no axes."""
    return np.asarray(x) if isinstance(x, np.generic) else x
