"""A transformer's block without norms, as the paper of linear transformers writes it.

    h = x + attention(x)                                     (1)
    y = feed_forward(h)                                      (2)

The only way past the attention is in (1), and there is none past the feed-forward layer. With ``G`` the gradient of
``y``,

    dh = G through feed_forward                              (3)
    dx = dh + through attention                              (4)

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

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.nn import dropout, feed_forward, multi_head
from linattn_ref.nn.block import check_backward, forward_of, step_of
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward", "layers", "step"]


@documented
class Params(NamedTuple):
    """What is learned."""

    attention: multi_head.Params
    feed_forward: feed_forward.Params


@documented
class Saved(NamedTuple):
    """What the backward pass needs: what its layers do."""

    attention: multi_head.Saved
    feed_forward: feed_forward.Saved
    drop_1: dropout.Saved  # of what attention says
    drop_2: dropout.Saved  # of what the feed-forward layer says


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (B, N, E)
    params: Params


def layers(x: Array, params: Params, attend: Any, norm: Any, feed: Any, drop: Any) -> tuple[Array, Saved]:
    """Equations (1) and (2): ``(B, N, E)``; the arguments are told in `linattn_ref.nn.block`."""
    attended, attention = attend(x, params.attention)
    attended, drop_1 = drop(attended)
    h = np.add(x, attended, out=attended)  # (1)
    y, inside = feed(h, params.feed_forward)  # (2)
    y, drop_2 = drop(y)
    return y, Saved(attention, inside, drop_1, drop_2)


forward, step = forward_of(layers, normed=()), step_of(layers)


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """The same from the end."""
    of_attention, of_feed_forward = into or (None, None)
    d_fed = dropout.backward.unchecked(d_y, saved.drop_2, work=work).x
    d_h, fed = feed_forward.backward.unchecked(d_fed, saved.feed_forward, into=of_feed_forward, work=work)  # (3)
    d_attended = dropout.backward.unchecked(d_h, saved.drop_1, work=work).x
    d_past, attention = multi_head.backward.unchecked(d_attended, saved.attention, into=of_attention, work=work)
    d_x = np.add(d_h, d_past, out=d_past)  # (4)
    return Gradients(d_x, Params(attention, fed))


@plain_numbers
def draw(
    width: int,
    hidden: int,
    rng: np.random.Generator,
    *,
    reads: int = 3,
    own: tuple[Any, ...] = (),
    dtype: Any = np.float64,
) -> Params:
    """Parameters to start from; see `multi_head.draw` and `feed_forward.draw`."""
    return Params(
        multi_head.draw(width, rng, reads=reads, own=own, dtype=dtype),
        feed_forward.draw(width, hidden, rng, dtype=dtype),
    )
