"""The state of gated linear attention and of the delta rule, and how pieces of a sequence compose.

A token fades the state, corrects it and adds to it: an affine map ``S -> W S + B``. So is any piece of a sequence, and
what follows one another is composed:

    S' = W S + B,   W (C, C), B (C, M)                       (1)
    W_ab = W_b W_a,   B_ab = W_b B_a + B_b                   (2)  first a, then b

States of linear attention are sums, and add. These do not: who adds the states of two pieces forgets how much the
second has faded and erased of what the first wrote, which is ``W_b``. Composition associates as addition does, so that
machines can share a sequence all the same, each with a :class:`Piece`. Backward, a gradient goes through the transpose,

    dS = W^T dS'                                             (3)

Who owns a state, ``ownership.py`` says.

References
----------
Yang et al. (2024), "Parallelizing linear transformers with the delta rule over sequence length".
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_array,
    check_dtype,
    check_leading,
    check_shape,
    check_sizes,
    name_of,
)
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.ownership import Count, check_unspent, new_count
from linattn_ref.attention.rooms import DeltaProductRoom

__all__ = ["Piece", "State", "apply", "apply_backward", "combine", "init_state"]

Gate = TypeVar("Gate", Array, Array | None)


@documented
class State(NamedTuple):
    """One matrix a head, whatever the number of tokens. One put together by hand needs nothing else."""

    s: Array  # (..., C, M)
    steps: Count | None = None  # taken in this array by whoever; None: it is copied before it is written to
    taken: int = 0  # what ``steps`` was when this state was made


@documented
class Piece(NamedTuple):
    """What a piece of a sequence does to a state, equation (1)."""

    w: Array  # (..., C, C), what becomes of what was there
    b: Array  # (..., C, M), what it writes into a state of 0


# --- Checks ---------------------------------------------------------------------------------------------------------


def check_state(name: str, state: Any, k: Array, v: Array) -> None:
    """``state`` is one for keys ``k (..., N, C)`` and values ``v (..., N, M)``, and not spent."""
    _check_is(name, state, State)
    check_array(f"{name}.s", state.s, dtype=k.dtype)
    check_shape(f"{name}.s", state.s, (*k.shape[:-2], k.shape[-1], v.shape[-1]), "(..., C, M)")
    check_unspent(name, state)


def check_d_state(d_state: Any, state: State) -> None:
    """``d_state`` is shaped like ``state``."""
    _check_is("d_state", d_state, State)
    check_array("d_state.s", d_state.s, dtype=state.s.dtype)
    check_shape("d_state.s", d_state.s, state.s.shape, "of saved.state.s")


def _check_is(name: str, x: Any, kind: type) -> None:
    if not isinstance(x, kind):
        raise TypeError(f"{name}: expected a {name_of(kind)}, got a {name_of(type(x))}")


def _check_piece(name: str, piece: Any) -> None:
    _check_is(name, piece, Piece)
    check_array(f"{name}.w", piece.w)
    check_array(f"{name}.b", piece.b, dtype=piece.w.dtype)
    check_shape(f"{name}.w", piece.w, (*piece.b.shape[:-1], piece.b.shape[-2]), "(..., C, C)")


def _check_combine(piece_a: Any, piece_b: Any) -> None:
    _check_piece("piece_a", piece_a)
    _check_piece("piece_b", piece_b)
    check_array("piece_b.b", piece_b.b, dtype=piece_a.b.dtype)
    check_shape("piece_b.b", piece_b.b, piece_a.b.shape, "of piece_a.b")


def _check_apply(piece: Any, state: Any, name: str = "state") -> None:
    _check_piece("piece", piece)
    _check_is(name, state, State)
    check_array(f"{name}.s", state.s, dtype=piece.b.dtype)
    check_shape(f"{name}.s", state.s, piece.b.shape, "of piece.b")
    check_unspent(name, state)


def _check_apply_backward(piece: Any, d_state: Any) -> None:
    _check_apply(piece, d_state, "d_state")


def _check_init_state(
    leading: Any, key_width: Any, value_width: Any, *, dtype: Any = np.float64, like: Any = None
) -> None:
    check_leading(leading)
    check_sizes(key_width=key_width, value_width=value_width)
    check_dtype(dtype)


# --- Made, spent, composed ------------------------------------------------------------------------------------------


@door(_check_init_state)
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    *,
    dtype: DTypeLike = np.float64,
    like: Array | None = None,
) -> State:
    """The state before the first token, for arrays with the ``leading`` axes.

    Parameters
    ----------
    leading : tuple of int
    key_width, value_width : int
        ``C`` and ``M``.
    dtype
        float32 or float64.
    like : array, optional
        One on a GPU, for a state that is there too.
    """
    return State(np.zeros((*leading, key_width, value_width), dtype, like=like), new_count())


def spend(state: State) -> State:
    """The state whose array a step may write to, and from here on the only one that it belongs to."""
    if state.steps is None:  # put together by hand: nobody has said that it may be written to
        return State(state.s.copy(), new_count(1), 1)
    check_unspent("state", state)
    state.steps[0] += 1
    return State(state.s, state.steps, state.taken + 1)


def unfaded(log_gate: Gate, key_mask: Mask | None) -> Gate:
    """Log gates ``(..., N)`` or ``(..., N, C)``, and 0 for masked tokens, where the state stays as it is.

    Their gradients, too, are 0 there.
    """
    if log_gate is None or key_mask is None:
        return log_gate
    shown = key_mask if log_gate.ndim == key_mask.ndim else key_mask[..., None]
    return np.where(shown, log_gate, log_gate.dtype.type(0))


def piece_of(k: Array, v: Array, erase: Array | None, log_gate: Array | None, kernels: DeltaProductRoom) -> Piece:
    """What rows do to a state: the kernel's state with columns for ``W`` before those for ``B``.

    ``W`` is what becomes of ``I`` when nothing is written, ``B`` what becomes of 0.
    """
    *leading, _, c = k.shape
    start = np.zeros_like(k, shape=(*leading, c, c + v.shape[-1]))
    start[..., :c] = np.eye(c, like=k)
    nothing_then_v = np.concatenate([np.zeros_like(k), v], axis=-1)  # (..., N, C + M)
    _, s, _ = kernels.delta_product.forward(
        q=k, k=k, v=nothing_then_v, erase=erase, log_gate=log_gate, state=start
    )  # (1)  (..., C, C + M)
    return Piece(s[..., :c].copy(), s[..., c:].copy())


@door(_check_combine)
def combine(piece_a: Piece, piece_b: Piece) -> Piece:
    """Two pieces, one after the other: ``combine(a, combine(b, c)) == combine(combine(a, b), c)``."""
    return Piece(piece_b.w @ piece_a.w, piece_b.w @ piece_a.b + piece_b.b)  # (2)


@door(_check_apply)
def apply(piece: Piece, state: State) -> State:
    """The state after a piece that begins with ``state``, which is left alone."""
    return State(piece.w @ state.s + piece.b, new_count())  # (1)


@door(_check_apply_backward)
def apply_backward(piece: Piece, d_state: State) -> State:
    """The gradient of the state before a piece, given that of the state after it."""
    return State(piece.w.swapaxes(-1, -2) @ d_state.s)  # (3)
