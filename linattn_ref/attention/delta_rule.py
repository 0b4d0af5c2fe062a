"""The gated delta rule, row by row: a state that decays, is read before it is written, and is corrected.

The state maps keys to values. Row ``i`` brings a query, a key, a value, a direction ``e_i`` to erase along, and a gate
``g_i = exp(log_gate_i)`` from 0 to 1, one per head or per channel. Tokens are rows, so that ``k S`` reads the state.

    S~_i = diag(g_i) S_{i-1}                                 (1)  (C, M)  the state decays,
    u_i = v_i - e_i S~_i                                     (2)  (M,)    what is missing from it
    S_i = S~_i + k_i^T u_i                                   (3)  (C, M)  is written,
    out_i = q_i S_i                                          (4)  (M,)    and the query reads it.

`delta.py` makes the arguments from queries, keys, values and ``beta``; `gated_linear.py` is the case ``e = 0``, where
nothing is erased. `chunked_delta.py` computes the same numbers by products of matrices.

:Time: ``O(N C M)``
:Memory: ``O(N (C + M))``
:Causal: always
:Exact: no, another similarity
:Gives: the rule of `delta` and `gated_linear`

The gradient, by hand
---------------------
Let ``G_i``, ``A_i``, ``A~_i`` and ``r_i`` be the gradients of ``out_i``, ``S_i``, ``S~_i`` and ``u_i``. ``S_i`` occurs
in (4), and in (1) for the next row. ``u_i`` occurs in (3), and ``S~_i`` in (3) and (2). So

    A_i = q_i^T G_i + diag(g_{i+1}) A~_{i+1}                 (5)
    r_i = k_i A_i = dv_i                                     (6)
    A~_i = A_i - e_i^T r_i                                   (7)

which is the same rule backward in time, with ``k`` and ``e`` exchanged. From (3), (2) and (4),

    dk_i = u_i A_i^T,   de_i = -r_i S~_i^T,   dq_i = G_i S_i^T                               (8) (9) (10)

and from (1), where ``dg_i = rowsum(A~_i * S_{i-1})`` and ``d log g_i = g_i dg_i``,

    d log g_i = rowsum(A~_i * S~_i)                          (11)  (C,)

The gradients (9)-(11) need the states, the last one first. We cannot compute a state from the next one, because that
divides by gates, and keeping them all takes ``N C M`` numbers. So the forward pass keeps every ``C``-th state, together
about ``N M`` numbers for ``N`` much larger than ``C``. The backward pass computes the others again, ``C`` at a time.

There is another formula, which needs no states: the sum of ``q * dq + e * de - k * dk`` over the rows from ``i`` on,
and of ``S * dS`` over the columns of the last state, where that has a gradient. With strong gates it is a small
difference of large numbers: at a log gate of -20 no digit of it is right in float32.

One channel, and the same key three times, with values 1, 5 and 3. Each erases the one before. With ``e = 0`` they add
up.

>>> x, v = np.ones((3, 1)), np.array([[1.0], [5.0], [3.0]])
>>> forward(x, x, v, x)[0].T, forward(x, x, v, 0 * x)[0].T
(array([[1., 5., 3.]]), array([[1., 6., 9.]]))

References
----------
Yang et al. (2025), "Gated delta networks: improving Mamba2 with delta rule", equation 10.
Schlag et al. (2021), "Linear transformers are secretly fast weight programmers", section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.masks import shown
from linattn_ref.attention.parts.pieces import State
from linattn_ref.attention.parts.recurrent import step_of
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "State", "backward", "check_gate", "forward", "init_state", "step"]


class Saved(NamedTuple):
    """What the backward pass needs: rows, and every ``C``-th state."""

    q: Float[Array, "... N C"]
    k: Float[Array, "... N C"]  # k and e with masked rows 0
    e: Float[Array, "... N C"]
    gate: Float[Array, "... N G"]  # one per head, or C; masked rows 1
    u: Float[Array, "... N M"]
    noted: tuple[Array, ...]  # S before the rows 0, C, 2C, ...
    first: State | None
    state: State  # after the last token
    given: tuple[bool, int]  # whether there is something to erase; how many axes log_gate has, 0 for None
    key_mask: Bool[Array, "... N"] | None


class Gradients(NamedTuple):
    q: Float[Array, "... N C"]
    k: Float[Array, "... N C"]
    v: Float[Array, "... N M"]
    erase: Float[Any, "... N C"] = None  # this and the next two where forward was given them
    log_gate: Float[Any, "... N C?"] = None
    state: State | None = None


def check_gate(log_gate: Any = None, log_gate_t: Any = None, **_: Any) -> None:
    """Gates are at most 1."""
    for name, x in (("log_gate", log_gate), ("log_gate_t", log_gate_t)):
        if x is not None and not (x <= 0).all():
            raise ValueError(f"{name}: expected logarithms of gates up to 1, numbers up to 0, got up to {x.max()}")


@op(values=check_gate)
def forward(
    q: Float[Array, "... N C"],
    k: Float[Array, "... N C"],
    v: Float[Array, "... N M"],
    erase: Float[Array, "... N C"] | None = None,
    log_gate: Float[Array, "... N C?"] | None = None,
    *,
    key_mask: Bool[Array, "... N"] | None = None,
    state: State | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(4), from ``state`` on. A masked token leaves the state as it is."""
    k, v = shown(k, key_mask), shown(v, key_mask)
    e = np.zeros_like(k) if erase is None else shown(erase, key_mask)
    gate, s = gate_rows(log_gate, q, key_mask), (state or nothing(k, v)).s
    out, u, noted = np.empty_like(v), np.empty_like(v), []
    for i in range(q.shape[-2]):
        row = np.s_[..., i : i + 1, :]
        if i % q.shape[-1] == 0:
            noted.append(s)
        decayed = gate[row].mT * s  # (1)
        u[row] = v[row] - e[row] @ decayed  # (2)
        s = decayed + k[row].mT @ u[row]  # (3)
        out[row] = q[row] @ s  # (4)
    given = erase is not None, 0 if log_gate is None else log_gate.ndim
    return out, Saved(q, k, e, gate, u, tuple(noted), state, State(s), given, key_mask)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved, *, d_state: State | None = None) -> Gradients:
    """Equations (5)-(11); ``d_state`` is the gradient of ``saved.state``, where something went on from it."""
    q, k, e, gate, u, _, state, _, (erased, axes), key_mask = saved
    d_q, d_k, d_v, d_e, d_log_gate = (np.empty_like(x) for x in (q, k, u, e, q))
    a = (d_state or nothing(k, u)).s
    for row, decayed in decayed_states(saved):  # the last first
        a = a + q[row].mT @ d_out[row]  # (5)
        d_v[row] = k[row] @ a  # (6)
        d_k[row] = u[row] @ a.mT  # (8)
        a = a - e[row].mT @ d_v[row]  # (7)
        d_e[row] = -d_v[row] @ decayed.mT  # (9)
        d_q[row] = d_out[row] @ (decayed + k[row].mT @ u[row]).mT  # (10), by (3)
        d_log_gate[row] = (a * decayed).sum(axis=-1)[..., None, :]  # (11)
        a = gate[row].mT * a  # what (5) adds for the row before; at last, the gradient of the first state
    d_k, d_v, d_e, d_log_gate = (shown(x, key_mask) for x in (d_k, d_v, d_e, d_log_gate))
    return Gradients(d_q, d_k, d_v, d_e if erased else None, like_log_gate(d_log_gate, axes), state and State(a))


def decayed_states(saved: Saved) -> Iterator[tuple[Any, Array]]:
    """Every ``S~_i``, the last first, as if all had been kept: (1) and (3) again, from one noted state to the next."""
    n, c = saved.q.shape[-2:]
    for start, s in reversed([*zip(range(0, n, c), saved.noted, strict=True)]):
        few = []
        for i in range(start, min(start + c, n)):
            row = np.s_[..., i : i + 1, :]
            few.append((row, saved.gate[row].mT * s))  # (1)
            s = few[-1][1] + saved.k[row].mT @ saved.u[row]  # (3)
        yield from reversed(few)


def gate_rows(log_gate: Array | None, q: Array, key_mask: Array | None) -> Array:
    """``g (..., N, 1 or C)``: 1 where there is no gate, and where the token is masked."""
    if log_gate is None:
        return np.ones_like(q[..., :1])
    return np.exp(shown(log_gate if log_gate.ndim == q.ndim else log_gate[..., None], key_mask))


def like_log_gate(d_log_gate: Array, axes: int) -> Array | None:
    """The gradient per channel, summed up where one gate serves all of them."""
    return None if not axes else d_log_gate if axes == d_log_gate.ndim else d_log_gate.sum(axis=-1)


def nothing(k: Array, v: Array) -> State:
    """The state before the first token."""
    return State(np.zeros_like(v, shape=(*v.shape[:-2], k.shape[-1], v.shape[-1])))


step = step_of(forward)


@op
def init_state(leading: tuple[int, ...], key_width: int, value_width: int, *, dtype: Any = np.float64) -> State:
    """The state before the first token, for arrays with the ``leading`` axes."""
    return State(np.zeros((*leading, key_width, value_width), dtype))
