"""A transformer's block with its norms first: what each layer adds is added to what came in, which itself goes past.

    h = x + attention(norm_1(x))                             (1)
    y = h + feed_forward(norm_2(h))                          (2)

The gradient of a sum goes to both of its terms: with ``G`` that of ``y``,

    dh = G + through feed_forward and norm_2                 (3)
    dx = dh + through attention and norm_1                   (4)

>>> import numpy as np
>>> from linattn_ref.attention import linear
>>> from linattn_ref.nn import mechanism
>>> rng = np.random.default_rng(0)
>>> params, x = draw(8, 32, rng), rng.standard_normal((1, 5, 8))
>>> y, saved = forward(x, params, mechanism.of(linear, causal=True), heads=2)
>>> y.shape, backward(y, saved).params.feed_forward.inner.w.shape
((1, 5, 8), (8, 32))

References
----------
Xiong et al. (2020), "On layer normalization in the transformer architecture", Figure 1b.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.door import door
from linattn_ref.nn import feed_forward, gelu, layer_norm, multi_head
from linattn_ref.nn.block import EPS, Gradients, Params, Saved, check_backward, check_forward, draw
from linattn_ref.nn.buffers import Work, fresh
from linattn_ref.nn.mechanism import Mechanism

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward", "step"]


@door(check_forward)
def forward(
    x: Array,
    params: Params,
    mechanism: Mechanism,
    *,
    heads: int,
    activation: ModuleType = gelu,
    key_mask: Mask | None = None,
    eps: float = EPS,
    work: Work = fresh,
) -> tuple[Array, Saved]:
    """Equations (1) and (2): ``(B, N, E)``; the arguments are those of `linattn_ref.nn.block`."""
    a, norm_1 = layer_norm.forward.unchecked(x, params.norm_1, eps=eps)
    attended, attention = multi_head.forward.unchecked(
        a, params.attention, mechanism, heads=heads, key_mask=key_mask, work=work
    )
    h = x + attended  # (1)
    b, norm_2 = layer_norm.forward.unchecked(h, params.norm_2, eps=eps)
    fed, inside = feed_forward.forward.unchecked(b, params.feed_forward, activation=activation, work=work)
    return h + fed, Saved(norm_1, attention, norm_2, inside)  # (2)


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """The same from the end, with what each sum hands to both of its terms."""
    of_1, of_attention, of_2, of_feed_forward = into or (None,) * 4
    d_b, fed = feed_forward.backward.unchecked(d_y, saved.feed_forward, into=of_feed_forward, work=work)
    d_past, norm_2 = layer_norm.backward.unchecked(d_b, saved.norm_2, into=of_2)
    d_h = d_y + d_past  # (3)
    d_a, attention = multi_head.backward.unchecked(d_h, saved.attention, into=of_attention, work=work)
    d_past, norm_1 = layer_norm.backward.unchecked(d_a, saved.norm_1, into=of_1)
    return Gradients(d_h + d_past, Params(norm_1, attention, norm_2, fed))  # (4)


def step(
    x_t: Array,
    params: Params,
    state: Any,
    mechanism: Mechanism,
    *,
    heads: int,
    activation: ModuleType = gelu,
    eps: float = EPS,
) -> tuple[Array, Any]:
    """One token, ``(B, E)``, with `multi_head.step`; ``state`` is spent."""
    a_t, _ = layer_norm.forward(x_t, params.norm_1, eps=eps)
    attended, state = multi_head.step(a_t, params.attention, state, mechanism, heads=heads)
    h_t = x_t + attended  # (1)
    b_t, _ = layer_norm.forward(h_t, params.norm_2, eps=eps)
    fed, _ = feed_forward.forward(b_t, params.feed_forward, activation=activation)
    return h_t + fed, state  # (2)
