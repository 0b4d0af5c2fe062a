"""A transformer's block with its norms last, as Vaswani and BERT have it: what each layer adds is added, then normed.

    h = norm_1(x + attention(x))                             (1)
    y = norm_2(h + feed_forward(h))                          (2)

The gradient of a sum goes to both of its terms: with ``F`` and ``A`` the gradients of the sums in (2) and (1),

    dh = F + through feed_forward                            (3)
    dx = A + through attention                               (4)

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
    attended, attention = attend(x, params.attention)
    attended, drop_1 = drop(attended)
    h, norm_1 = norm(x, params.norm_1, added=attended)  # (1)
    fed, inside = feed(h, params.feed_forward)
    fed, drop_2 = drop(fed)
    y, norm_2 = norm(h, params.norm_2, added=fed)  # (2)
    return y, Saved(norm_1, attention, norm_2, inside, drop_1, drop_2)


forward, step = forward_of(layers, normed=("feed_forward",)), step_of(layers)


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """The same from the end, with what each sum hands to both of its terms."""
    of_1, of_attention, of_2, of_feed_forward = into or (None,) * 4
    d_sum, norm_2 = layer_norm.backward.unchecked(d_y, saved.norm_2, into=of_2, work=work)
    inside = recall(saved.feed_forward, layer_norm.recompute(saved.norm_1, work=work))
    d_fed = dropout.backward.unchecked(d_sum, saved.drop_2, work=work).x
    d_past, fed = feed_forward.backward.unchecked(d_fed, inside, into=of_feed_forward, work=work)
    d_h = np.add(d_sum, d_past, out=d_past)  # (3)
    d_sum, norm_1 = layer_norm.backward.unchecked(d_h, saved.norm_1, into=of_1, work=work)
    d_attended = dropout.backward.unchecked(d_sum, saved.drop_1, work=work).x
    d_past, attention = multi_head.backward.unchecked(d_attended, saved.attention, into=of_attention, work=work)
    d_x = np.add(d_sum, d_past, out=d_past)  # (4)
    return Gradients(d_x, Params(norm_1, attention, norm_2, fed))
