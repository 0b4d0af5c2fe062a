"""Packed sequences: one row of tokens holds several sequences, one after the other, and none of them sees another.

    out[o_p : o_{p+1}] = attention(q[o_p : o_{p+1}], k[o_p : o_{p+1}], v[o_p : o_{p+1}])     (1)   p = 0 ... P - 1

The offsets ``o`` run from 0 to ``N``, and no token is padding. Each sequence has a state of its own, along a first axis
of length ``P``. Those of the same length run as one batch, and an empty one leaves its state as it is.

Every token belongs to one sequence, so gradients are cut in the same places:

    dq[o_p : o_{p+1}] is the gradient of sequence p          (2)

and likewise for all other arrays.

>>> from linattn_ref.attention import softmax
>>> q, v = np.zeros((5, 1)), np.array([[1.0], [3.0], [10.0], [20.0], [30.0]])
>>> out, saved = softmax.forward(q, q, v, offsets=np.array([0, 2, 5]))
>>> out.T, softmax.backward(v, saved).v.round(3).T
(array([[ 2.,  2., 20., 20., 20.]]), array([[ 2.,  2., 20., 20., 20.]]))

References
----------
Krell et al. (2021), "Efficient sequence packing without cross-contamination", section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.arguments import each_array, lengths, with_option, with_scale_of
from linattn_ref.op import Array, Int, Integers

__all__ = ["Batch", "Saved", "backward", "forward", "takes_offsets"]


class Batch(NamedTuple):
    """The sequences of one length."""

    members: Integers  # (P',): which of the P they are
    rows: Integers  # (P', n): where their tokens are
    inner: Any  # what the page saved, for arrays (P', ..., n, D); None if n = 0


class Saved(NamedTuple):
    """What the backward pass needs."""

    batches: tuple[Batch, ...]  # the shortest sequences first
    shape: tuple[int, ...]  # of the output
    state: Any  # (P, ...), after the last token of each
    page_backward: Callable[..., Any]

    def sizes(self) -> Any:
        return lengths(self.shape, self.batches[-1].inner)


def forward(page: Any, offsets: Integers, q: Array, *, state: Any = None, **arguments: Any) -> tuple[Array, Saved]:
    """Equation (1), by the page's forward pass."""
    axis, outs, saved, after = q.ndim - 2, [], [], []  # of tokens
    for members, rows in batches(offsets, q.shape[axis]):
        inner, before = None, each_array(chosen, state, members)
        if rows.size:
            own = {name: each_array(cut, x, rows, axis) for name, x in arguments.items()}
            out, inner = page.forward(cut(q, rows, axis), state=before, **own)  # (1)
            outs.append(out)
        elif state is None:  # what there is before any token is what a masked one leaves
            own = {name: each_array(cut, x, members[:, None] * 0, axis) for name, x in {"q": q, **arguments}.items()}
            before = page.forward(**{**own, "key_mask": np.zeros_like(own["k"][..., 0], bool)})[1].state
        saved.append(Batch(members, rows, inner))
        after.append((members, before if inner is None else inner.state))
    out = in_order(outs, saved, axis)
    return out, Saved(tuple(saved), out.shape, joined(after), page.backward)


def backward(d_out: Array, saved: Saved, *, d_state: Any = None) -> Any:
    """Equation (2)."""
    axis, grads, before = len(saved.shape) - 2, [], []
    for members, rows, inner in saved.batches:
        d_after = each_array(chosen, d_state, members)
        if inner is None:  # the state stays as it is, and so does its gradient
            state = each_array(chosen, saved.state, members)
            if getattr(d_after, "log_scale", None) is None:
                d_after = with_scale_of(state, d_after or each_array(np.zeros_like, state))
            before.append((members, d_after))
            continue
        more = {} if d_after is None else {"d_state": d_after}
        grads.append(saved.page_backward(cut(d_out, rows, axis), inner, **more))  # (2)
        before.append((members, getattr(grads[-1], "state", None)))
    found = {name: [getattr(each, name) for each in grads] for name in grads[0]._fields}
    state = {"state": joined(before)} if found.pop("state", None) else {}
    arrays = {name: None if x[0] is None else in_order(x, saved.batches, axis) for name, x in found.items()}
    return grads[0]._replace(**arrays, **state)


def batches(offsets: Integers, tokens: int) -> Iterator[tuple[Integers, Integers]]:
    """The sequences of each length, ``(P',)``, and the rows of their tokens, ``(P', n)``; the shortest first."""
    ends = np.array(offsets.tolist())  # on the host, and signed
    sizes = np.diff(ends)
    if ends[0] != 0 or ends[-1] != tokens or (sizes < 0).any():
        raise ValueError(f"offsets: expected integers from 0 to N = {tokens} that never fall, got {ends}")
    for size in np.unique(sizes):
        members = np.flatnonzero(sizes == size)
        yield members, ends[members, None] + np.arange(size)


def cut(x: Array, rows: Integers, axis: int) -> Array:
    """Rows of ``x (..., N, D)`` as ``(P', ..., n, D)``."""
    return np.moveaxis(np.take(x, np.asarray(rows, like=x), axis), axis, 0)


def in_order(parts: Sequence[Array], batches: Sequence[Batch], axis: int) -> Array:
    """Arrays ``(P', ..., n, D)``, one for each batch, as ``(..., N, D)``."""
    parts = [np.moveaxis(x, 0, axis) for x in parts]
    flat = np.concatenate([x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]) for x in parts], axis=axis)
    order = np.argsort(np.concatenate([batch.rows.ravel() for batch in batches]))
    return np.take(flat, np.asarray(order, like=flat), axis)


def chosen(x: Array, members: Integers) -> Array:
    return x[members]


def joined(parts: list[tuple[Integers, Any]]) -> Any:
    """The states of all sequences, given those of some at a time; caches of unequal length end in masked keys."""
    *_, (_, last) = parts
    if last is None:
        return None
    states, cache = [state for _, state in parts], hasattr(last, "key_mask")
    if cache and (last.key_mask is not None or len({state.k.shape[-2] for state in states}) > 1):
        masks = [np.ones_like(x.k[..., 0], bool) if x.key_mask is None else x.key_mask for x in states]
        states = [x._replace(key_mask=mask) for x, mask in zip(states, masks, strict=True)]
    count, whole = sum(len(members) for members, _ in parts), list[Any]()
    for fields in zip(*states, strict=True):
        whole.append(None)
        if fields[-1] is not None:
            largest = np.max([x.shape for x in fields], axis=0)[1:]
            whole[-1] = np.zeros_like(fields[-1], shape=(count, *largest))
            for (members, _), x in zip(parts, fields, strict=True):
                whole[-1][(members, *map(slice, x.shape[1:] if cache else ()))] = x
    return last._make(whole)


takes_offsets = partial(with_option, "offsets", Int[Integers, "P+1"] | None, None, forward)
