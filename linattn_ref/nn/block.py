"""A transformer's block: attention, then a feed-forward layer. What its two forms have in common.

`pre_norm` and `post_norm` have the same parts and parameters, and differ in where the norms stand. Both take

x : ndarray ``(B, N, E)``
params : Params
mechanism : Mechanism
    From `linattn_ref.nn.mechanism.of`.
heads : int
    ``H``.
activation : module
    Of the feed-forward layer: `linattn_ref.nn.gelu`, or ``relu``.
key_mask : ndarray of bool ``(B, N)``, optional
    True = may be attended.
eps : float
    Of the layer norms.
work
    See `linattn_ref.nn`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.fields import documented
from linattn_ref.nn import feed_forward, layer_norm, multi_head
from linattn_ref.nn.mechanism import Mechanism

__all__ = ["EPS", "Gradients", "Params", "Saved", "check_backward", "check_forward", "draw"]

EPS = 1e-5


@documented
class Params(NamedTuple):
    """What is learned."""

    norm_1: layer_norm.Params
    attention: multi_head.Params
    norm_2: layer_norm.Params
    feed_forward: feed_forward.Params


@documented
class Saved(NamedTuple):
    """What the backward pass needs: what its layers do."""

    norm_1: layer_norm.Saved
    attention: multi_head.Saved
    norm_2: layer_norm.Saved
    feed_forward: feed_forward.Saved


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (B, N, E)
    params: Params


def check_forward(
    x: Array, params: Params, mechanism: Mechanism, *, heads: int, key_mask: Mask | None = None, **_: Any
) -> None:
    """Shapes and dtypes."""
    multi_head.check_forward(x, params.attention, mechanism, heads=heads, key_mask=key_mask)
    feed_forward.check_forward(x, params.feed_forward)


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype."""
    layer_norm.check_backward(d_y, saved.norm_2)


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
        layer_norm.draw(width, dtype=dtype),
        multi_head.draw(width, rng, reads=reads, own=own, dtype=dtype),
        layer_norm.draw(width, dtype=dtype),
        feed_forward.draw(width, hidden, rng, dtype=dtype),
    )
