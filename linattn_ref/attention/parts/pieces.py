"""How pieces of a sequence act on the state of gated linear attention and of the delta rule, and how they compose.

A token makes the state decay, corrects it and adds to it. That is an affine map ``S -> W S + B``. So is what any piece
of a sequence does, and pieces that follow one another compose:

    S' = W S + B                                             (1)  W (C, C), B (C, M)
    W_ab = W_b W_a,   B_ab = W_b B_a + B_b                   (2)  first a, then b

States of linear attention are sums, and add. These do not. Adding the states of two pieces would ignore ``W_b``: the
second piece lets what the first wrote decay, and erases some of it. But composition is associative as addition is, so
machines can share a sequence all the same, each with a :class:`Piece`. Backward, a gradient goes through the transpose,

    dS = W^T dS'                                             (3)

References
----------
Yang et al. (2024), "Parallelizing linear transformers with the delta rule over sequence length".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.recurrent import derived
from linattn_ref.op import Array, Float, op

__all__ = ["Piece", "State", "apply", "apply_backward", "combine", "piece_of"]


class State(NamedTuple):
    """What all tokens so far have written: one matrix per head."""

    s: Float[Array, "... C M"]


class Piece(NamedTuple):
    """What a piece of a sequence does to a state, equation (1)."""

    w: Float[Array, "... C C"]  # what becomes of what was there
    b: Float[Array, "... C M"]  # what it writes into a state of 0


@op
def combine(piece_a: Piece, piece_b: Piece) -> Piece:
    """Two pieces, one after the other: ``combine(a, combine(b, c)) == combine(combine(a, b), c)``."""
    return Piece(piece_b.w @ piece_a.w, piece_b.w @ piece_a.b + piece_b.b)  # (2)


@op
def apply(piece: Piece, state: State) -> State:
    """The state after a piece that begins with ``state``."""
    return State(piece.w @ state.s + piece.b)  # (1)


@op
def apply_backward(piece: Piece, d_state: State) -> State:
    """The gradient of the state before a piece, given that of the state after it."""
    return State(piece.w.mT @ d_state.s)  # (3)


def piece_of(forward: Any) -> Any:
    """What rows do to a state, by one forward pass over a state ``(C, C + M)`` whose first ``C`` columns are for ``W``.

    ``W`` is what becomes of ``I`` when nothing is written, and ``B`` is what becomes of 0.
    """

    def summarise(*, k: Array, v: Array, **given: Any) -> Piece:
        c, start = k.shape[-1], np.zeros_like(k, shape=(*k.shape[:-2], k.shape[-1], k.shape[-1] + v.shape[-1]))
        start[..., :c] = np.identity(c, k.dtype, like=k)
        nothing_then_v = np.concatenate([np.zeros_like(k), v], axis=-1)  # (..., N, C + M)
        s = forward(q=k, k=k, v=nothing_then_v, state=State(start), **given)[1].state.s  # (1)
        return Piece(s[..., :c].copy(), s[..., c:].copy())

    summarise.__doc__ = "What a piece of a sequence does to a state: what a machine reports about its piece."
    return derived(forward, summarise, Piece, "q", "scale", "state", "offsets", "groups")
