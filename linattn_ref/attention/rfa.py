"""Random feature attention (Peng et al. 2021): linear attention of directions, with a gate that favours recent tokens.

``phi`` is a random feature map of ``feature_maps_random.py``. Without a gate the rest is linear attention, causal or
not. A gate ``g_t`` in (0, 1) lets both sums decay, and the new token enters with the weight ``1 - g_t``:

    S_t = g_t S_{t-1} + (1 - g_t) phi(k_t)^T v_t             (1)  (C, M)
    z_t = g_t z_{t-1} + (1 - g_t) phi(k_t)^T                 (2)  (C,)
    out_t = phi(q_t) S_t / (phi(q_t) z_t + eps)              (3)  (M,)

Both sums are one gated linear attention, with keys ``(1 - g_t) phi(k_t)`` and values ``[v_t, 1]``: ``z`` is the column
for a value that is always 1. In the paper ``g_t`` is a sigmoid of the token. A masked token leaves both sums alone.

With ``kind="gaussian"`` a similarity is an estimate of either sign. With few directions a denominator can come out near
0 or negative, and that row of the output lies far outside the range of the values; more directions help, ``eps`` does
not. ``arccos`` has no negative similarities.

:Time: ``O((N + L) C (D + M))``
:Memory: ``O((N + L) C + N M)``
:Causal: yes
:Exact: no, a random estimate
:Gives: an estimate of softmax attention of unit vectors, or of arc-cosine similarity; with a gate, of the recent

The gradient, by hand
---------------------
Let ``out_t = n_t / d_t``, and ``G_t`` its gradient. As in linear attention,

    dn_t = G_t / d_t,   dd_t = -dn_t . out_t                 (4)

which together are the gradient of gated linear attention's output ``[n_t, d_t]``. Its backward pass returns ``dkey_t``
and ``d log g_t = g_t dg_t``. As the gate is in the keys too,

    dphi(k_t) = (1 - g_t) dkey_t                             (5)
    dgate_t = d log g_t / g_t - phi(k_t) . dkey_t            (6)

which compares the past with the new token. A gate of 1/2 halves the past at every token: of three equal keys, the last
has four times the weight of the first.

>>> zeros, gate = np.zeros((3, 1)), np.full(3, 0.5)
>>> out, saved = forward(zeros, zeros, np.array([[0.0], [1.0], [2.0]]), np.ones((1, 1)), gate, causal=True, eps=0.0)
>>> out.T.round(3)  # (0.125 * 0 + 0.25 * 1 + 0.5 * 2) / 0.875
array([[0.   , 0.667, 1.429]])

References
----------
Peng et al. (2021), "Random feature attention", section 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import exponential, gated_linear, linear
from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.features.feature_maps_random import KINDS, Kind, check_omega
from linattn_ref.attention.linear import State
from linattn_ref.attention.parts.masks import divide, shown
from linattn_ref.attention.parts.recurrent import matrix_of, step_of
from linattn_ref.attention.parts.sums import check_d_state
from linattn_ref.op import Array, Bool, Constant, Float, op
from linattn_ref.op.options import check_choice

__all__ = ["KINDS", "Gradients", "Kind", "Saved", "State", "backward", "forward"]
__all__ += ["init_state", "matrix", "recency", "step"]


class Saved(NamedTuple):
    """What the backward pass needs with a gate. Without one it is linear attention's."""

    gated: Any  # gated_linear.Saved
    phi_k: Float[Array, "... N C"]
    gate: Float[Array, "... N"]
    out: Float[Array, "... N M"]
    d: Float[Array, "... N 1"]
    features: tuple[Any, Any, Any]
    key_mask: Bool[Array, "... N"] | None
    state: State  # after the last token


class Gradients(NamedTuple):
    q: Float[Array, "... N D"]
    k: Float[Array, "... N D"]
    v: Float[Array, "... N M"]
    gate: Float[Array, "... N"]
    state: State | None = None


def check_values(omega: Any, gate: Any = None, gate_t: Any = None, **_: Any) -> None:
    check_omega(omega)
    for name, x in (("gate", gate), ("gate_t", gate_t)):
        if x is not None and not ((x > 0) & (x < 1)).all():
            raise ValueError(f"{name}: expected numbers strictly between 0 and 1, got {x.min()} to {x.max()}")


def look(omega: Any, kind: Any = "gaussian", gate: Any = None, causal: bool = True, **others: Any) -> None:
    check_choice("kind", kind, KINDS)
    if gate is not None and not causal:
        raise ValueError("gate: needs causal=True, since it lets the past decay")
    if gate is not None and others["q"].shape[-2] != others["k"].shape[-2]:
        n, keys = others["q"].shape[-2], others["k"].shape[-2]
        raise ValueError(f"gate: needs N = L, a gate per token, got N = {n} and L = {keys}")
    feature_maps.check_linear(KINDS[kind](omega), **others)


@op(look=look, values=check_values)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    omega: Constant[Array, "m D"],
    gate: Float[Array, "... N"] | None = None,
    *,
    kind: Kind = "gaussian",
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    eps: float = 1e-6,
    state: State | None = None,
) -> tuple[Array, Saved | linear.Saved | exponential.Saved]:
    """Equations (1)-(3); ``omega`` is a constant, and a gate needs ``causal=True`` and ``N = L``."""
    phi = KINDS[kind](omega)
    if gate is None:
        return linear.forward(q, k, v, feature_map=phi, causal=causal, key_mask=key_mask, eps=eps, state=state)
    (phi_q, of_q), (phi_k, of_k) = phi.forward(q), phi.forward(shown(k, key_mask))
    keys, values = (1 - gate)[..., None] * phi_k, np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    options = {"scale": 1.0, "key_mask": key_mask, "state": state and gated_linear.State(beside(state))}
    both, gated = gated_linear.forward(phi_q, keys, values, np.log(gate), **options)  # (1), (2)
    n, d = both[..., :-1], both[..., -1:] + eps
    out, s = divide(n, d), gated.state.s  # (3)
    return out, Saved(gated, phi_k, gate, out, d, (phi, of_q, of_k), key_mask, State(s[..., :-1], s[..., -1]))


@op(look=check_d_state)
def backward(d_out: Float[Array, "... N M"], saved: Saved | linear.Saved, *, d_state: State | None = None) -> Gradients:
    """Equations (4)-(6)."""
    gated, phi_k, gate, out, d, (phi, of_q, of_k), key_mask, _ = saved  # type: ignore[misc]
    d_n = divide(d_out, d)  # (4)
    d_both = np.concatenate([d_n, -(d_n * out).sum(axis=-1, keepdims=True)], axis=-1)  # (4)
    after = d_state and gated_linear.State(beside(d_state))
    d_phi_q, d_keys, d_values, d_log_gate, d_s = gated_linear.backward(d_both, gated, d_state=after)
    d_phi_k = (1 - gate)[..., None] * d_keys  # (5)
    d_gate = d_log_gate / gate - (phi_k * d_keys).sum(axis=-1)  # (6)
    d_q, d_k = phi.backward(d_phi_q, of_q), shown(phi.backward(d_phi_k, of_k), key_mask)
    return Gradients(d_q, d_k, d_values[..., :-1], d_gate, d_s and State(d_s.s[..., :-1], d_s.s[..., -1]))


def beside(state: State) -> Array:
    """``z`` as one more column of ``s``."""
    return np.concatenate([state.s, state.z[..., None]], axis=-1)


step, matrix = step_of(forward), matrix_of(forward)


@op(look=look, values=check_values)
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    omega: Constant[Array, "m D"],
    *,
    kind: Kind = "gaussian",
    dtype: Any = np.float64,
) -> State:
    """The state before any key, for arrays with the ``leading`` axes."""
    return linear.init_state(leading, key_width, value_width, feature_map=KINDS[kind](omega), dtype=dtype)


@op
def recency(gate: Float[Array, "... N"]) -> Array:
    """The weights ``(1 - g_j) g_{j+1} ... g_t`` of the keys ``j <= t``, ``(..., N, N)``, for gates ``(..., N)``."""
    below = np.tri(gate.shape[-1], k=-1, dtype=np.bool_)
    factors = np.where(below, gate[..., None], gate.dtype.type(1))  # g_t for j < t, else 1  (..., N, N)
    return np.tril(np.cumprod(factors, axis=-2)) * (1 - gate[..., None, :])
