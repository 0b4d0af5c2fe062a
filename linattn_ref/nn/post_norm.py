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
    attended, attention = multi_head.forward.unchecked(
        x, params.attention, mechanism, heads=heads, key_mask=key_mask, work=work
    )
    h, norm_1 = layer_norm.forward.unchecked(x + attended, params.norm_1, eps=eps)  # (1)
    fed, inside = feed_forward.forward.unchecked(h, params.feed_forward, activation=activation, work=work)
    y, norm_2 = layer_norm.forward.unchecked(h + fed, params.norm_2, eps=eps)  # (2)
    return y, Saved(norm_1, attention, norm_2, inside)


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """The same from the end, with what each sum hands to both of its terms."""
    of_1, of_attention, of_2, of_feed_forward = into or (None,) * 4
    d_sum, norm_2 = layer_norm.backward.unchecked(d_y, saved.norm_2, into=of_2)
    d_past, fed = feed_forward.backward.unchecked(d_sum, saved.feed_forward, into=of_feed_forward, work=work)
    d_h = d_sum + d_past  # (3)
    d_sum, norm_1 = layer_norm.backward.unchecked(d_h, saved.norm_1, into=of_1)
    d_past, attention = multi_head.backward.unchecked(d_sum, saved.attention, into=of_attention, work=work)
    return Gradients(d_sum + d_past, Params(norm_1, attention, norm_2, fed))  # (4)


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
    attended, state = multi_head.step(x_t, params.attention, state, mechanism, heads=heads)
    h_t, _ = layer_norm.forward(x_t + attended, params.norm_1, eps=eps)  # (1)
    fed, _ = feed_forward.forward(h_t, params.feed_forward, activation=activation)
    return layer_norm.forward(h_t + fed, params.norm_2, eps=eps)[0], state  # (2)
