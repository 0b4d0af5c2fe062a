"""Delta attention (DeltaNet, Yang et al. 2024): linear attention that overwrites, so that a key has its latest value.

Linear attention adds ``k^T v`` to its state, whatever value the state already holds for ``k``. The delta rule reads it
first, and moves it a fraction ``beta`` of the way to the new value. Queries and keys are scaled to unit length,

    n(x) = x / sqrt(|x|^2 + 1e-6),   q^ = scale n(q),   k^ = n(k)                            (1)

where a row whose square is beyond the range counts as 0. The rest is ``delta_rule.py`` with the value ``beta v`` and
the direction to erase ``beta k^``:

    S_i = (I - beta_i k^_i^T k^_i) diag(g_i) S_{i-1} + beta_i k^_i^T v_i,   out_i = q^_i S_i                 (2)

After the decay, this is one step of gradient descent, with step size ``beta``, on the error ``|v_i - k^_i S|^2 / 2``.
With ``beta = 1`` the key ``k^_i`` then reads ``v_i``, but for the 1e-6 in (1), and every key orthogonal to it reads
what it did before. The first factor of (2) has the eigenvalue ``1 - beta_i`` along the key. For ``beta`` in (0, 2) it
is less than 1 in size.

DeltaNet has no gate. Gated DeltaNet (2025) has one per head, Kimi Delta Attention (2025) one per channel.

:Time: ``O(N C M)``
:Memory: ``O(N (C + M))``
:Causal: always
:Exact: no, another similarity
:Gives: linear attention that overwrites: the latest value of each key rather than the sum of all

The gradient, by hand
---------------------
`delta_rule.backward` returns ``dq^``, ``dkey``, ``dvalue``, ``de`` and the gate's gradient. With the value ``beta v``
and ``e = beta k^``,

    dv_i = beta_i dvalue_i                                   (3)
    dbeta_i = v_i . dvalue_i + k^_i . de_i                   (4)
    dk^_i = dkey_i + beta_i de_i                             (5)

and through (1), where ``y = n(x) = rho x``, and the gradient of ``rho`` with respect to ``x`` is ``-rho^3 x``,

    dx = rho (dy - y (y . dy))                               (6)

The same key three times, with values 1, 5 and 3: the query reads the latest, and only that one has a gradient.

>>> x = np.full((3, 1), 1e3)
>>> out, saved = forward(x, x, np.array([[1.0], [5.0], [3.0]]), np.ones(3))
>>> out.round(6).T, backward(np.array([[0.0], [0.0], [1.0]]), saved).v.round(6).T
(array([[1., 5., 3.]]), array([[0., 0., 1.]]))

References
----------
Yang et al. (2024), "Parallelizing linear transformers with the delta rule over sequence length", section 2.2.
Schlag et al. (2021), "Linear transformers are secretly fast weight programmers", section 4.2 (the rule).
Yang et al. (2025), "Gated delta networks: improving Mamba2 with delta rule".
Kimi Team (2025), "Kimi Linear".
Grazzi et al. (2025), "Unlocking state-tracking in linear RNNs through negative eigenvalues" (``beta`` up to 2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import delta_rule
from linattn_ref.attention.parts.masks import shown
from linattn_ref.attention.parts.packed import takes_offsets
from linattn_ref.attention.parts.pieces import Piece, State, apply, apply_backward, combine, piece_of
from linattn_ref.attention.parts.recurrent import matrix_of, step_of
from linattn_ref.attention.parts.shared_heads import of_keys, takes_groups
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Piece", "Saved", "State", "apply", "apply_backward", "backward"]
__all__ += ["combine", "forward", "init_state", "matrix", "step", "summarise"]


class Saved(NamedTuple):
    """What the backward pass needs."""

    q: Float[Array, "... N C"]
    k: Float[Array, "... N C"]  # k and v with masked rows 0
    v: Float[Array, "... N M"]
    beta: Float[Array, "... N 1"]
    rule: Any  # what the delta rule saved
    normalise: bool
    scale: float
    key_mask: Bool[Array, "... N"] | None
    state: State  # after the last token


class Gradients(NamedTuple):
    q: Float[Array, "... N C"]
    k: Float[Array, "... N C"]
    v: Float[Array, "... N M"]
    beta: Float[Array, "... N"]
    log_gate: Float[Any, "... N C?"] = None
    state: State | None = None


def check_values(beta: Any = None, beta_t: Any = None, **others: Any) -> None:
    """Gates are at most 1, ``beta`` from 0 to 2."""
    delta_rule.check_gate(**others)
    for name, x in (("beta", beta), ("beta_t", beta_t)):
        if x is not None and not ((x >= 0) & (x <= 2)).all():
            raise ValueError(f"{name}: expected numbers from 0 to 2, got {x.min()} to {x.max()}")


@op(values=check_values)
@takes_offsets
@takes_groups
def forward(
    q: Float[Array, "... N C"],
    k: Float[Array, "... N C"],
    v: Float[Array, "... N M"],
    beta: Float[Array, "... N"],
    log_gate: Float[Array, "... N C?"] | None = None,
    *,
    normalise: bool = True,
    scale: float | None = None,
    key_mask: Bool[Array, "... N"] | None = None,
    state: State | None = None,
) -> tuple[Array, Saved]:
    """Equations (1) and (2), from ``state`` on; ``normalise=False`` takes ``n(x) = x``."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v, beta = shown(k, key_mask), shown(v, key_mask), beta[..., None]
    unit_q, unit_k = (unit(q), unit(k)) if normalise else (q, k)  # (1)
    out, rule = delta_rule.forward(
        scale * unit_q, unit_k, beta * v, beta * unit_k, log_gate, key_mask=key_mask, state=state
    )  # (2)
    return out, Saved(q, k, v, beta, rule, normalise, scale, key_mask, rule.state)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved, *, d_state: State | None = None) -> Gradients:
    """Equations (3)-(6)."""
    q, k, v, beta, rule, normalise, scale, key_mask, _ = saved
    unit_k = unit(k) if normalise else k  # (1)
    d_q, d_k, d_value, d_e, d_log_gate, d_first = delta_rule.backward(d_out, rule, d_state=d_state)
    d_v = beta * d_value  # (3)
    d_beta = (v * d_value).sum(axis=-1) + (unit_k * d_e).sum(axis=-1)  # (4)
    d_q, d_k = scale * d_q, d_k + beta * d_e  # (5)
    if normalise:
        d_q, d_k = unit_backward(d_q, q), unit_backward(d_k, k)  # (6)
    return Gradients(d_q, shown(d_k, key_mask), d_v, d_beta, d_log_gate, d_first)


def length(x: Array) -> Array:
    """``1 / rho``: the length of each row, or a little more, so that a row of zeros stays 0."""
    return np.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(1e-6))


def unit(x: Array) -> Array:
    return x / length(x)  # (1)


def unit_backward(d_y: Array, x: Array) -> Array:
    y = unit(x)
    return (d_y - y * (y * d_y).sum(axis=-1, keepdims=True)) / length(x)  # (6)


step, matrix, summarise = step_of(forward), matrix_of(forward), piece_of(forward)


@op
def init_state(
    leading: tuple[int, ...], key_width: int, value_width: int, *, dtype: Any = np.float64, groups: int = 1
) -> State:
    """The state before the first token, for queries with the ``leading`` axes."""
    return State(np.zeros((*of_keys(leading, groups), key_width, value_width), dtype))
