"""A transformer's block with its norms first: each layer's output is added to its input, which bypasses the norm.

    h = x + attention(norm_1(x))                             (1)
    y = h + feed_forward(norm_2(h))                          (2)

The gradient, by hand
---------------------
The gradient of a sum goes to both of its terms. With ``G`` that of ``y``,

    dh = G + through feed_forward and norm_2 from G          (3)
    dx = dh + through attention and norm_1 from dh           (4)

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

import numpy as np

from linattn_ref.nn import block, feed_forward, gelu, layer_norm, multi_head
from linattn_ref.nn import dropout as dropouts
from linattn_ref.nn.block import EPS, Gradients, Params, draw, look, look_at_step
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward", "step"]


class Saved(block.Saved):
    """What the backward pass needs."""


@op(look=look)
def forward(
    x: Float[Array, "B N E"],
    params: Params,
    mechanism: Mechanism,
    *,
    heads: int,
    activation: ModuleType = gelu,
    dropout: float = 0.0,
    rng: np.random.Generator | None = None,
    key_mask: Bool[Array, "B N"] | None = None,
    eps: float = EPS,
) -> tuple[Array, Saved]:
    """Equations (1) and (2); the arguments are explained in `linattn_ref.nn.block`."""
    a, norm_1 = layer_norm.forward(x, params.norm_1, eps=eps)
    attended, attention = multi_head.forward(a, params.attention, mechanism, heads=heads, key_mask=key_mask)
    attended, drop_1 = dropouts.forward(attended, p=dropout, rng=rng)
    h = x + attended  # (1)
    b, norm_2 = layer_norm.forward(h, params.norm_2, eps=eps)
    fed, inside = feed_forward.forward(b, params.feed_forward, activation=activation)
    fed, drop_2 = dropouts.forward(fed, p=dropout, rng=rng)
    return h + fed, Saved(norm_1, attention, drop_1, norm_2, inside, drop_2)  # (2)


@op
def backward(d_y: Float[Array, "... E"], saved: Saved) -> Gradients:
    """Equations (3) and (4)."""
    d_fed = dropouts.backward(d_y, saved.drop_2).x
    d_b, fed = feed_forward.backward(d_fed, saved.feed_forward)
    through, norm_2 = layer_norm.backward(d_b, saved.norm_2)
    d_h = d_y + through  # (3)
    d_attended = dropouts.backward(d_h, saved.drop_1).x
    d_a, attention, _ = multi_head.backward(d_attended, saved.attention)
    through, norm_1 = layer_norm.backward(d_a, saved.norm_1)
    return Gradients(d_h + through, Params(norm_1, attention, norm_2, fed))  # (4)


@op(look=look_at_step)
def step(
    x_t: Float[Array, "B E"],
    params: Params,
    state: Any,
    mechanism: Mechanism,
    *,
    heads: int,
    activation: ModuleType = gelu,
    eps: float = EPS,
) -> tuple[Array, Any]:
    """Equations (1) and (2) for one token, and the state after it."""
    a, _ = layer_norm.forward(x_t, params.norm_1, eps=eps)
    attended, state = multi_head.step(a, params.attention, state, mechanism, heads=heads)
    h = x_t + attended  # (1)
    b, _ = layer_norm.forward(h, params.norm_2, eps=eps)
    fed, _ = feed_forward.forward(b, params.feed_forward, activation=activation)
    return h + fed, state  # (2)
