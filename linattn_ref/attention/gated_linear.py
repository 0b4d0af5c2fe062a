"""Gated linear attention (Yang et al. 2024): a state that decays, by a gate per head or channel, and no denominator.

    S_i = diag(g_i) S_{i-1} + k_i^T v_i                      (1)  (C, M)
    out_i = scale q_i S_i                                    (2)  (M,)

so that ``out_i = sum_{j <= i} scale q_i . (g_{j+1} * ... * g_i * k_j) v_j``: every gate after token ``j`` reduces its
weight. This is the delta rule with nothing to erase. Its gradients are (5)-(11) of ``delta_rule.py`` with ``e = 0``.
RetNet has one fixed gate per head, Mamba-2 one per head and token, GLA one per token and channel.

:Time: ``O(N C M)``
:Memory: ``O(N (C + M))``
:Causal: always
:Exact: no, another similarity
:Gives: linear attention that favours recent tokens, by a learned gate per head or per channel

A gate of 1/2 halves the weight of the past. A gate of 0, whose logarithm is -inf, erases it.

>>> ones, v = np.ones((4, 1)), np.array([[8.0], [0.0], [0.0], [0.0]])
>>> out, saved = forward(ones, ones, v, np.array([0.0, -np.log(2), -np.log(2), -np.inf]))
>>> out.T, backward(np.ones((4, 1)), saved).log_gate
(array([[8., 4., 2., 0.]]), array([0., 6., 2., 0.]))

References
----------
Yang et al. (2024), "Gated linear attention transformers with hardware-efficient training", section 4.1.
Sun et al. (2023), "Retentive network", section 2.2.
Dao and Gu (2024), "Transformers are SSMs".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import delta_rule
from linattn_ref.attention.parts.packed import takes_offsets
from linattn_ref.attention.parts.pieces import Piece, State, apply, apply_backward, combine, piece_of
from linattn_ref.attention.parts.recurrent import matrix_of, step_of
from linattn_ref.attention.parts.shared_heads import of_keys, takes_groups
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import check_sizes

__all__ = ["Gradients", "Piece", "Saved", "State", "apply", "apply_backward", "backward"]
__all__ += ["combine", "forward", "init_state", "matrix", "retention_gate", "step", "summarise"]


class Saved(NamedTuple):
    """What the backward pass needs."""

    rule: Any  # what the delta rule saved
    scale: float
    state: State  # after the last token


class Gradients(NamedTuple):
    q: Float[Array, "... N C"]
    k: Float[Array, "... N C"]
    v: Float[Array, "... N M"]
    log_gate: Float[Any, "... N C?"] = None
    state: State | None = None


@op(values=delta_rule.check_gate)
@takes_offsets
@takes_groups
def forward(
    q: Float[Array, "... N C"],
    k: Float[Array, "... N C"],
    v: Float[Array, "... N M"],
    log_gate: Float[Array, "... N C?"] | None,
    *,
    scale: float | None = None,
    key_mask: Bool[Array, "... N"] | None = None,
    state: State | None = None,
) -> tuple[Array, Saved]:
    """Equations (1) and (2)."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, rule = delta_rule.forward(scale * q, k, v, None, log_gate, key_mask=key_mask, state=state)  # (1), (2)
    return out, Saved(rule, scale, rule.state)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved, *, d_state: State | None = None) -> Gradients:
    """The delta rule's gradients, without that of ``erase``."""
    d_q, d_k, d_v, _, d_log_gate, d_first = delta_rule.backward(d_out, saved.rule, d_state=d_state)
    return Gradients(saved.scale * d_q, d_k, d_v, d_log_gate, d_first)


step, matrix, summarise = step_of(forward), matrix_of(forward), piece_of(forward)


@op
def init_state(
    leading: tuple[int, ...], key_width: int, value_width: int, *, dtype: Any = np.float64, groups: int = 1
) -> State:
    """The state before the first token, for queries with the ``leading`` axes."""
    return State(np.zeros((*of_keys(leading, groups), key_width, value_width), dtype))


@op
def retention_gate(heads: int, *, dtype: Any = np.float64) -> Array:
    """RetNet's log gates, ``log(1 - 2^(-5-h))`` for heads ``h = 0, 1, ...``: ``(H, 1)``, to broadcast to ``(H, N)``."""
    check_sizes(heads=heads)
    return np.log1p(-np.exp2(-5.0 - np.arange(heads))).astype(dtype)[:, None]
