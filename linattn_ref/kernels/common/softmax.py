"""`softmax`, by the equations of `online_softmax`, on a loop that keeps no ``P``, and a cache written in place.

A row of a cache never changes once it is written, so states share the memory of theirs. The next row is free for the
state that comes first; a second continuation from the same state copies what it shares.
"""

import os
import threading
from typing import NamedTuple

import numpy as np

from linattn_ref.attention import softmax as page
from linattn_ref.attention.parts.masks import shown
from linattn_ref.attention.parts.shared_heads import of_keys
from linattn_ref.op import Array, Bool, Float

__all__ = ["Cache", "Saved", "backward", "forward", "init_state", "step"]

TURN = threading.Lock()  # held while the next rows of a cache are taken


def _in_a_forked_child():
    global TURN
    TURN = threading.Lock()  # the thread that held it does not exist here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_forked_child)


class Rows:
    """The arrays that states of one cache share, and how many of their rows are written."""

    def __init__(self, k, v, written):
        self.k, self.v, self.written = k, v, written  # (..., capacity, D), (..., capacity, M)


class Cache(page.State):
    """A state whose ``k`` and ``v`` are the first rows of larger arrays."""

    rows: Rows | None = None

    def __reduce__(self):
        return Cache, tuple(self)  # the rows that are written, and no others


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output and two numbers per row."""

    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]  # masked rows 0, those of the state first
    v: Float[Array, "... L M"]
    out: Float[Array, "... N M"]
    m: Float[Array, "... N"]
    share: Float[Array, "... N"]  # one over the sum of weights; 0 where a query sees nothing
    key_mask: Bool[Array, "... L"] | None
    causal: bool
    scale: float
    earlier: int  # of the L keys, how many came with a state
    state: page.State | None


def forward(loop, kind, q, k, v, *, causal=False, key_mask=None, scale=None, state=None, out=None):
    """Equations (1)-(3) of the page, by those of `online_softmax`; ``kind`` is the backend's class of what is saved."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = shown(k, key_mask), shown(v, key_mask)
    earlier = 0 if state is None else state.k.shape[-2]
    if state is not None:
        k, v, key_mask = state = append(state, k, v, key_mask)
    buffer = {} if out is None else {"out": out}
    out, m, share = loop.forward(q, k, v, key_mask, causal, scale, **buffer)
    return out, kind(q, k, v, out, m, share, key_mask, causal, scale, earlier, state)


def backward(loop, d_out, saved):
    """Equations (4)-(8), with ``P`` computed again from ``m`` and ``share``, as `online_softmax` does by its (5)."""
    d_q, d_k, d_v = loop.backward(d_out, *saved[:9])
    return page.Gradients(d_q, d_k[..., saved.earlier :, :], d_v[..., saved.earlier :, :])


def init_state(leading, key_width, value_width, *, dtype=np.float64, groups=1, capacity=None):
    """An empty cache, in arrays of ``capacity`` rows."""
    shape = *of_keys(leading, groups), capacity or 1
    k, v = (np.empty((*shape, width), dtype) for width in (key_width, value_width))
    return _first(Rows(k, v, 0), 0, None)


def append(state, k, v, key_mask):
    """`softmax.append`, in place where the next rows are free."""
    start, end = state.k.shape[-2], state.k.shape[-2] + k.shape[-2]
    rows = getattr(state, "rows", None)
    with TURN:
        free = rows is not None and rows.written == start and rows.k.shape[-2] >= end
        if free:
            rows.written = end
    if not free:
        rows = Rows(_enlarged(state.k, 2 * end), _enlarged(state.v, 2 * end), end)
    rows.k[..., start:end, :], rows.v[..., start:end, :] = k, v
    return _first(rows, end, page.joined_masks(state, k, key_mask))


def _enlarged(x, capacity):
    larger = np.empty_like(x, shape=(*x.shape[:-2], capacity, x.shape[-1]))
    larger[..., : x.shape[-2], :] = x
    return larger


def _first(rows, count, key_mask):
    state = Cache(rows.k[..., :count, :], rows.v[..., :count, :], key_mask)
    state.rows = rows
    return state


def step(loop, q_t, k_t, v_t, state, *, scale=None):
    """One token; where no key is masked, by a loop over the rows of the cache."""
    row = k_t[..., None, :], v_t[..., None, :]
    if state.key_mask is not None or not hasattr(loop, "step"):
        out, saved = forward(loop, Saved, q_t[..., None, :], *row, causal=True, scale=scale, state=state)
        return out[..., 0, :], saved.state
    after = append(state, *row, None)
    scale = q_t.shape[-1] ** -0.5 if scale is None else scale
    return loop.step(q_t, after.rows.k, after.rows.v, after.k.shape[-2], scale), after
