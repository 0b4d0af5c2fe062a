"""`linattn_ref.attention.delta_rule` on a loop that works by chunks, (13)-(22) of ``chunked_delta.py``."""

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.delta_rule import Gradients, State
from linattn_ref.attention.parts.masks import shown
from linattn_ref.op import Array, Bool, Float

__all__ = ["Saved", "backward", "forward", "without_masked"]


class Saved(NamedTuple):
    """What the backward pass needs: rows, and the state at both ends."""

    q: Float[Array, "... N C"]
    k: Float[Array, "... N C"]  # k, e and log_gate with masked rows 0
    v: Float[Array, "... N M"]
    e: Float[Array, "... N C"] | None
    log_gate: Any  # (..., N) or (..., N, C)
    u: Float[Array, "... N M"]
    key_mask: Bool[Array, "... N"] | None
    first: State | None
    state: State  # after the last token


def forward(loop, kind, q, k, v, erase=None, log_gate=None, *, key_mask=None, state=None):
    """Equations (1)-(4) of the page. A masked token leaves the state as it is. ``kind`` is the backend's ``Saved``."""
    k, v, e = shown(k, key_mask), shown(v, key_mask), erase if erase is None else shown(erase, key_mask)
    log_gate = without_masked(log_gate, key_mask, v)
    out, s, u = loop.forward(q, k, v, e, log_gate, None if state is None else state.s)
    return out, kind(q, k, v, e, log_gate, u, key_mask, state, State(s))


def backward(loop, d_out, saved, *, d_state=None):
    """Equations (5)-(11) of the page."""
    q, k, v, e, log_gate, u, key_mask, first, _ = saved
    before, after = (None if x is None else x.s for x in (first, d_state))
    d_q, d_k, d_v, d_e, d_log_gate, d_s = loop.backward(d_out, after, q, k, v, e, log_gate, before, u)
    d_k, d_v, d_e = shown(d_k, key_mask), shown(d_v, key_mask), None if d_e is None else shown(d_e, key_mask)
    d_log_gate = without_masked(d_log_gate, key_mask, v)
    return Gradients(d_q, d_k, d_v, d_e, d_log_gate, first and State(d_s))


def without_masked(log_gate, key_mask, v):
    """``log_gate``, or its gradient, with masked tokens 0."""
    if log_gate is None or key_mask is None:
        return log_gate
    return shown(log_gate, key_mask) if log_gate.ndim == v.ndim else np.where(key_mask, log_gate, v.dtype.type(0))
