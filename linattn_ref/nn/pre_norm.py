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

from typing import Any

import numpy as np

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.door import door
from linattn_ref.nn import dropout, feed_forward, layer_norm, multi_head
from linattn_ref.nn.block import Gradients, Params, Saved, check_backward, draw, forward_of, recall, step_of
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward", "layers", "step"]


def layers(x: Array, params: Params, attend: Any, norm: Any, feed: Any, drop: Any) -> tuple[Array, Saved]:
    """Equations (1) and (2): ``(B, N, E)``; the arguments are told in `linattn_ref.nn.block`."""
    a, norm_1 = norm(x, params.norm_1)
    attended, attention = attend(a, params.attention)
    attended, drop_1 = drop(attended)
    b, norm_2 = norm(x, params.norm_2, added=attended)  # (1), whose h is norm_2.total
    fed, inside = feed(b, params.feed_forward)
    fed, drop_2 = drop(fed)
    return np.add(norm_2.total, fed, out=fed), Saved(norm_1, attention, norm_2, inside, drop_1, drop_2)  # (2)


forward, step = forward_of(layers, normed=("attention", "feed_forward")), step_of(layers)


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """The same from the end, with what each sum hands to both of its terms."""
    of_1, of_attention, of_2, of_feed_forward = into or (None,) * 4
    inside = recall(saved.feed_forward, layer_norm.recompute(saved.norm_2, work=work))
    d_fed = dropout.backward.unchecked(d_y, saved.drop_2, work=work).x
    d_b, fed = feed_forward.backward.unchecked(d_fed, inside, into=of_feed_forward, work=work)
    d_h, norm_2 = layer_norm.backward.unchecked(d_b, saved.norm_2, past=d_y, into=of_2, work=work)  # (3)
    inside = recall(saved.attention, layer_norm.recompute(saved.norm_1, work=work))
    d_attended = dropout.backward.unchecked(d_h, saved.drop_1, work=work).x
    d_a, attention = multi_head.backward.unchecked(d_attended, inside, into=of_attention, work=work)
    d_x, norm_1 = layer_norm.backward.unchecked(d_a, saved.norm_1, past=d_h, into=of_1, work=work)  # (4)
    return Gradients(d_x, Params(norm_1, attention, norm_2, fed))
