"""A transformer's block with its norms last: each layer's output is added to its input, and the sum is normalised.

This is the block of Vaswani's transformer and of BERT.

    h = norm_1(x + attention(x))                             (1)
    y = norm_2(h + feed_forward(h))                          (2)

The gradient, by hand
---------------------
The gradient of a sum goes to both of its terms. With ``G`` that of ``y``, and ``S_2`` and ``S_1`` those of the sums,

    S_2 = through norm_2 from G                              (3)
    dh = S_2 + through feed_forward from S_2                 (4)
    S_1 = through norm_1 from dh                             (5)
    dx = S_1 + through attention from S_1                    (6)

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
Vaswani et al. (2017), "Attention is all you need", section 3.1.
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
    attended, attention = multi_head.forward(x, params.attention, mechanism, heads=heads, key_mask=key_mask)
    attended, drop_1 = dropouts.forward(attended, p=dropout, rng=rng)
    h, norm_1 = layer_norm.forward(x + attended, params.norm_1, eps=eps)  # (1)
    fed, inside = feed_forward.forward(h, params.feed_forward, activation=activation)
    fed, drop_2 = dropouts.forward(fed, p=dropout, rng=rng)
    y, norm_2 = layer_norm.forward(h + fed, params.norm_2, eps=eps)  # (2)
    return y, Saved(norm_1, attention, drop_1, norm_2, inside, drop_2)


@op
def backward(d_y: Float[Array, "... E"], saved: Saved) -> Gradients:
    """Equations (3)-(6)."""
    d_sum, norm_2 = layer_norm.backward(d_y, saved.norm_2)  # (3)
    d_fed = dropouts.backward(d_sum, saved.drop_2).x
    through, fed = feed_forward.backward(d_fed, saved.feed_forward)
    d_h = d_sum + through  # (4)
    d_sum, norm_1 = layer_norm.backward(d_h, saved.norm_1)  # (5)
    d_attended = dropouts.backward(d_sum, saved.drop_1).x
    through, attention, _ = multi_head.backward(d_attended, saved.attention)
    return Gradients(d_sum + through, Params(norm_1, attention, norm_2, fed))  # (6)


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
    attended, state = multi_head.step(x_t, params.attention, state, mechanism, heads=heads)
    h, _ = layer_norm.forward(x_t + attended, params.norm_1, eps=eps)  # (1)
    fed, _ = feed_forward.forward(h, params.feed_forward, activation=activation)
    return layer_norm.forward(h + fed, params.norm_2, eps=eps)[0], state  # (2)
