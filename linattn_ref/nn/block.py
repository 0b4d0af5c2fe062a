"""A transformer's block: attention, then a feed-forward layer. What its forms have in common.

`pre_norm` and `post_norm` have the same parts and parameters, and differ in where the norms stand; `no_norm` has none.
Their ``forward`` takes all tokens at once, and their ``step`` one token and the state before it. The arguments are

x : ndarray ``(B, N, E)``, or in ``step`` ``(B, E)``
params : Params
state
    In ``step``: the mechanism's.
mechanism : Mechanism
    From `linattn_ref.nn.mechanism.of`.
heads : int
    ``H``.
activation : module
    Of the feed-forward layer: `linattn_ref.nn.gelu`, or ``relu``.
dropout : float
    The probability with which numbers that a layer adds are left out; without ``rng`` none are.
rng : numpy.random.Generator, optional
    Draws which.
key_mask : ndarray of bool ``(B, N)``, optional
    True = may be attended.
eps : float
    Of the layer norms, where there are any.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.nn import dropout as dropouts
from linattn_ref.nn import feed_forward, layer_norm, multi_head
from linattn_ref.op import Array, Float, Of, op

__all__ = ["EPS", "Gradients", "Params", "Saved", "draw", "look", "look_at_step"]

EPS = 1e-5


class Params(NamedTuple):
    norm_1: Of[layer_norm.Params, "E"]
    attention: Of[multi_head.Params, "E P V E"]
    norm_2: Of[layer_norm.Params, "E"]
    feed_forward: Of[feed_forward.Params, "E F E"]


class Saved(NamedTuple):
    """What a block's backward pass needs; each block has a class of its own, by which its backward pass is found."""

    norm_1: Of[layer_norm.Saved, "E"]
    attention: multi_head.Saved
    drop_1: dropouts.Saved  # of what attention adds
    norm_2: Of[layer_norm.Saved, "E"]
    feed_forward: feed_forward.Saved
    drop_2: dropouts.Saved  # of what the feed-forward layer adds


class Gradients(NamedTuple):
    x: Float[Array, "B N E"]
    params: Params


def look(x: Any, params: Any, mechanism: Any, heads: Any, key_mask: Any = None, **more: Any) -> None:
    dropouts.check_options(more["dropout"], more["rng"], "dropout")
    look_at_layers(x, **more)
    multi_head.look(x, params.attention, mechanism, heads, key_mask)


def look_at_step(x_t: Any, params: Any, state: Any, mechanism: Any, heads: Any, **more: Any) -> None:
    look_at_layers(x_t, **more)
    multi_head.look_at_step(params.attention, mechanism, heads, x_t=x_t, state=state)


def look_at_layers(x: Any, activation: Any, eps: Any = None, **_: Any) -> None:
    feed_forward.look(activation)
    if eps is not None:  # not in a block without norms
        layer_norm.look(x, eps)


@op
def draw(
    width: int,
    hidden: int,
    rng: np.random.Generator,
    *,
    reads: int = 3,
    groups: int = 1,
    own: tuple[Any, ...] = (),
    dtype: Any = np.float64,
) -> Params:
    """Draw parameters to start from; see `multi_head.draw` and `feed_forward.draw`."""
    return Params(
        layer_norm.draw(width, dtype=dtype),
        multi_head.draw(width, rng, reads=reads, groups=groups, own=own, dtype=dtype),
        layer_norm.draw(width, dtype=dtype),
        feed_forward.draw(width, hidden, rng, dtype=dtype),
    )
