"""A transformer's block: attention, then a feed-forward layer. What its forms have in common.

`pre_norm` and `post_norm` have the same parts and parameters, and differ in where the norms stand; `no_norm` has none.
Each is written once, as ``layers``, of three functions that it is handed:

    attend(x, params)               -> y, saved        `multi_head`
    norm(x, params, added=None)     -> y, saved        `layer_norm`, of the sum if something is added
    feed(x, params)                 -> y, saved        `feed_forward`
    drop(x)                         -> y, saved        `dropout`

From that come ``forward``, all tokens at once, and ``step``, one token, where ``attend`` is `multi_head.step` and what
it saves is the state. They take

x : ndarray ``(B, N, E)``, or in ``step`` ``(B, E)``
params : Params
state
    In ``step``; with ``overwrite_state`` its arrays may be worked in, and their content is undefined afterwards.
mechanism : Mechanism
    From `linattn_ref.nn.mechanism.of`.
heads : int
    ``H``.
activation : module
    Of the feed-forward layer: `linattn_ref.nn.gelu`, or ``relu``.
recompute : bool
    Of the feed-forward layer: whether to compute its hidden units again in the backward pass, for less memory.
dropout : float
    The probability with which numbers that a layer adds are left out; without ``rng`` none are.
rng : numpy.random.Generator, optional
    That says which.
key_mask : ndarray of bool ``(B, N)``, optional
    True = may be attended.
eps : float
    Of the layer norms.
kernels, work
    See `linattn_ref.nn`.

What a norm gives is not kept: the backward pass makes it again (`layer_norm.recompute`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.kernels import reference
from linattn_ref.nn import dropout as dropouts
from linattn_ref.nn import feed_forward, gelu, layer_norm, multi_head
from linattn_ref.nn.buffers import Work, fresh
from linattn_ref.nn.mechanism import Mechanism

__all__ = [
    "EPS",
    "Gradients",
    "Params",
    "Saved",
    "check_backward",
    "check_forward",
    "draw",
    "forget",
    "forward_of",
    "recall",
    "step_of",
]

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
    drop_1: dropouts.Saved  # of what attention says
    drop_2: dropouts.Saved  # of what the feed-forward layer says


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (B, N, E)
    params: Params


def check_forward(
    x: Array,
    params: Any,
    mechanism: Mechanism,
    *,
    heads: int,
    key_mask: Mask | None = None,
    eps: float = EPS,
    dropout: float = 0.0,
    rng: np.random.Generator | None = None,
    kernels: Any = reference,
    **_: Any,
) -> None:
    """Shapes and dtypes."""
    dropouts.check_options(dropout, rng, "dropout")
    multi_head.check_forward(x, params.attention, mechanism, heads=heads, key_mask=key_mask)
    feed_forward.check_forward(x, params.feed_forward)
    for name in {"norm_1", "norm_2"} & set(params._fields):
        layer_norm.check_forward(x, getattr(params, name), eps=eps, kernels=kernels)


def check_backward(d_y: Array, saved: Any, **_: Any) -> None:
    """Shape and dtype."""
    feed_forward.check_backward(d_y, saved.feed_forward)


def forward_of(layers: Callable[..., tuple[Array, Any]], *, normed: tuple[str, ...]) -> Any:
    """All tokens at once; of the layers ``normed``, what they read is not kept."""

    @wraps(layers)
    def forward(
        x: Array,
        params: Any,
        mechanism: Mechanism,
        *,
        heads: int,
        activation: ModuleType = gelu,
        recompute: bool = False,
        dropout: float = 0.0,
        rng: np.random.Generator | None = None,
        key_mask: Mask | None = None,
        eps: float = EPS,
        kernels: Any = reference,
        work: Work = fresh,
    ) -> tuple[Array, Any]:
        attend = partial(multi_head.forward.unchecked, mechanism=mechanism, heads=heads, key_mask=key_mask, work=work)
        feed, norm = _others(activation, recompute, eps, kernels, work)
        drop = partial(dropouts.forward.unchecked, p=dropout, rng=rng, work=work)
        y, saved = layers(x, params, attend, norm, feed, drop)
        return y, saved._replace(**{name: forget(getattr(saved, name)) for name in normed})

    del forward.__wrapped__  # the arguments are those of this one
    forward.__name__ = forward.__qualname__ = "forward"
    return door(check_forward)(forward)


def step_of(layers: Callable[..., tuple[Array, Any]]) -> Any:
    """One token, and the state after it."""

    @wraps(layers)
    def step(
        x_t: Array,
        params: Any,
        state: Any,
        mechanism: Mechanism,
        *,
        heads: int,
        activation: ModuleType = gelu,
        eps: float = EPS,
        kernels: Any = reference,
        overwrite_state: bool = False,
    ) -> tuple[Array, Any]:
        attend = partial(
            multi_head.step, state=state, mechanism=mechanism, heads=heads, overwrite_state=overwrite_state
        )
        feed, norm = _others(activation, False, eps, kernels, fresh)
        y_t, saved = layers(x_t, params, attend, norm, feed, partial(dropouts.forward.unchecked, p=0.0, rng=None))
        return y_t, saved.attention

    del step.__wrapped__
    step.__name__ = step.__qualname__ = "step"
    return plain_numbers(step)


def _others(activation: ModuleType, recompute: bool, eps: float, kernels: Any, work: Work) -> tuple[Any, Any]:
    feed = partial(
        feed_forward.forward.unchecked, activation=activation, recompute=recompute, kernels=kernels, work=work
    )
    return feed, partial(layer_norm.forward.unchecked, eps=eps, spend=True, kernels=kernels, work=work)


def forget(saved: Any) -> Any:
    """What a layer saved, without the ``x`` that it read."""
    return saved._replace(inner=saved.inner._replace(x=None))


def recall(saved: Any, x: Array) -> Any:
    """The same with ``x`` again."""
    return saved._replace(inner=saved.inner._replace(x=x))


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
        layer_norm.draw(width, dtype=dtype),
        multi_head.draw(width, rng, reads=reads, own=own, dtype=dtype),
        layer_norm.draw(width, dtype=dtype),
        feed_forward.draw(width, hidden, rng, dtype=dtype),
    )
