"""A transformer's block without norms, as the paper of linear transformers writes it.

    h = x + attention(x)                                     (1)
    y = feed_forward(h)                                      (2)

Attention has a residual connection, (1); the feed-forward layer has none.

The gradient, by hand
---------------------
With ``G`` the gradient of ``y``,

    dh = through feed_forward from G                         (3)
    dx = dh + through attention from dh                      (4)

>>> import numpy as np
>>> from linattn_ref.attention import linear
>>> from linattn_ref.nn import mechanism
>>> rng = np.random.default_rng(0)
>>> params, x = draw(8, 32, rng), rng.standard_normal((1, 5, 8))
>>> y, saved = forward(x, params, mechanism.of(linear, causal=True), heads=2)
>>> y.shape, backward(y, saved).params._fields
((1, 5, 8), ('attention', 'feed_forward'))

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.1, equation 1.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.nn import block, feed_forward, gelu, multi_head
from linattn_ref.nn import dropout as dropouts
from linattn_ref.nn.block import look, look_at_step
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op import Array, Bool, Float, Of, op

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward", "step"]


class Params(NamedTuple):
    attention: Of[multi_head.Params, "E P V E"]
    feed_forward: Of[feed_forward.Params, "E F E"]


class Saved(NamedTuple):
    attention: multi_head.Saved
    drop_1: dropouts.Saved  # of what attention adds
    feed_forward: feed_forward.Saved
    drop_2: dropouts.Saved  # of what the feed-forward layer returns


class Gradients(NamedTuple):
    x: Float[Array, "B N E"]
    params: Params


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
) -> tuple[Array, Saved]:
    """Equations (1) and (2); the arguments are explained in `linattn_ref.nn.block`."""
    attended, attention = multi_head.forward(x, params.attention, mechanism, heads=heads, key_mask=key_mask)
    attended, drop_1 = dropouts.forward(attended, p=dropout, rng=rng)
    h = x + attended  # (1)
    fed, inside = feed_forward.forward(h, params.feed_forward, activation=activation)
    y, drop_2 = dropouts.forward(fed, p=dropout, rng=rng)  # (2)
    return y, Saved(attention, drop_1, inside, drop_2)


@op
def backward(d_y: Float[Array, "... Y"], saved: Saved) -> Gradients:
    """Equations (3) and (4)."""
    d_fed = dropouts.backward(d_y, saved.drop_2).x
    d_h, fed = feed_forward.backward(d_fed, saved.feed_forward)  # (3)
    d_attended = dropouts.backward(d_h, saved.drop_1).x
    through, attention, _ = multi_head.backward(d_attended, saved.attention)
    return Gradients(d_h + through, Params(attention, fed))  # (4)


@op(look=look_at_step)
def step(
    x_t: Float[Array, "B E"],
    params: Params,
    state: Any,
    mechanism: Mechanism,
    *,
    heads: int,
    activation: ModuleType = gelu,
) -> tuple[Array, Any]:
    """Equations (1) and (2) for one token, and the state after it."""
    attended, state = multi_head.step(x_t, params.attention, state, mechanism, heads=heads)
    h = x_t + attended  # (1)
    return feed_forward.forward(h, params.feed_forward, activation=activation)[0], state  # (2)


def draw(width: int, hidden: int, rng: np.random.Generator, **options: Any) -> Params:
    """Draw parameters to start from, as `block.draw` does, without norms."""
    _, attention, _, inside = block.draw(width, hidden, rng, **options)
    return Params(attention, inside)
