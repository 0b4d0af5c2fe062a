"""Shared heads (Shazeer 2019, Ainslie et al. 2023): ``G`` heads of queries read the same head of keys and values.

    out_h = attention(q_h, k_{h // G}, v_{h // G}),   h = 0 ... H - 1,   H = G K             (1)

Neighbours form a group. ``G = H`` is multi-query attention, where all heads read one. Masks, gates and ``beta`` belong
to the keys and have ``K`` heads too. So do caches and states, which are ``G`` times smaller than without sharing.

The gradient, by hand
---------------------
The head ``k_g`` occurs in (1) once for each head of its group, so its gradient is the sum of theirs,

    dk_g = sum of dk_h over the heads h of group g           (2)

and likewise for ``v``, gates, ``beta`` and the state before the first key. The state after the last key is the same for
all heads of a group. Each of them takes an equal share of its gradient, and (2) adds the shares up.

If every query sees all keys, then the queries of a group are simply ``G N`` queries of one head, and (2) is part of
that head's gradient. This is the case without ``causal``, and for a single query, as in decoding.

>>> from linattn_ref.attention import softmax
>>> q, k, v = np.zeros((4, 1, 1)), np.zeros((2, 2, 1)), np.array([[[1.0], [3.0]], [[5.0], [7.0]]])
>>> out, saved = softmax.forward(q, k, v, groups=2)
>>> out.ravel(), softmax.backward(np.ones((4, 1, 1)), saved).v.ravel()
(array([2., 2., 6., 6.]), array([1., 1., 1., 1.]))

References
----------
Shazeer (2019), "Fast transformer decoding: one write-head is all you need", section 3.
Ainslie et al. (2023), "GQA: training generalized multi-query transformer models from multi-head checkpoints",
section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.arguments import each_array, lengths, with_option, with_scale_of
from linattn_ref.op import Array

__all__ = ["Saved", "backward", "forward", "of_keys", "takes_groups"]


class Saved(NamedTuple):
    """What the backward pass needs."""

    inner: Any  # what the page saved, for queries (..., K, G, N, D) or (..., K, G N, D)
    shape: tuple[int, ...]  # of the output
    groups: int
    at_once: bool  # the queries of a group are those of one head
    state: Any  # after the last key
    page_backward: Callable[..., Any]

    def sizes(self) -> Any:
        return lengths(self.shape, self.inner)


def forward(page: Any, groups: int, q: Array, **arguments: Any) -> tuple[Array, Saved]:
    """Equation (1): the page's forward pass, where ``q`` has ``groups`` times as many heads as the other arrays."""
    heads, grouped = q.ndim - 3, of_keys(q.shape[:-2], groups)
    if at_once := "causal" in arguments and (q.shape[-2] == 1 or not arguments["causal"]):
        out, inner = page.forward(q.reshape(*grouped, -1, q.shape[-1]), **{**arguments, "causal": False})
        state = inner.state
    else:
        repeated = {name: each_array(repeat, x, heads + 1, groups) for name, x in arguments.items()}
        out, inner = page.forward(q.reshape(*grouped, groups, *q.shape[-2:]), **repeated)  # (1)
        state = each_array(np.take, inner.state, 0, heads + 1)
    out = out.reshape(*q.shape[:-1], -1)
    return out, Saved(inner, out.shape, groups, at_once, state, page.backward)


def backward(d_out: Array, saved: Saved, *, d_state: Any = None) -> Any:
    """Equation (2)."""
    inner, shape, groups, at_once, _, page_backward = saved
    heads, grouped = len(shape) - 3, of_keys(shape[:-2], groups)
    if d_state is not None and not at_once:
        share = with_scale_of(d_state, each_array(np.divide, d_state, groups))
        d_state = each_array(repeat, share, heads + 1, groups)
    d_rows = d_out.reshape(*grouped, *((-1,) if at_once else (groups, shape[-2])), shape[-1])
    d_q, *others = grads = page_backward(d_rows, inner, **({} if d_state is None else {"d_state": d_state}))
    if not at_once:
        d_before: Any = getattr(grads, "state", None)
        if hasattr(d_before, "log_scale"):  # one for all heads of a group, and no gradient: no sum
            others[-1] = d_before._replace(log_scale=None)
        others = [each_array(np.sum, x, heads + 1) for x in others]  # (2)
        if d_before is not None:
            others[-1] = with_scale_of(each_array(np.take, d_before, 0, heads + 1), others[-1])
    return grads._make((d_q.reshape(*shape[:-1], -1), *others))


def of_keys(leading: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """The leading axes of keys, for queries that have these."""
    if groups == 1:
        return leading
    if not leading or leading[-1] % groups:
        raise ValueError(f"groups: expected a divisor of the number of heads, got {groups} for leading axes {leading}")
    return *leading[:-1], leading[-1] // groups


def repeat(x: Array, axis: int, groups: int) -> Array:
    """``x`` with a new axis, along which it is the same ``groups`` times without being copied."""
    x = np.expand_dims(x, axis)
    return np.broadcast_to(x, (*x.shape[:axis], groups, *x.shape[axis + 1 :]))


takes_groups = partial(with_option, "groups", int, 1, forward)
