"""Token by token in one compiled step: `causal.step` for all layers at once, the same numbers from the same network.

What is learned is copied once, in the order and the layout in which a step reads it (:func:`pack`); the states of all
blocks stand in one. ``linattn-ref bench generation`` measures how much time that takes, and compares with PyTorch.

>>> from linattn_ref.attention import linear
>>> from linattn_ref.kernels import jit
>>> from linattn_ref.models import causal
>>> from linattn_ref.nn import mechanism
>>> model = causal.Model(mechanism.of(linear, causal=True, kernels=jit), heads=2)
>>> params = causal.draw(np.random.default_rng(0), tokens=5, places=16, width=8, hidden=16, layers=2)
>>> packed = pack(params, model)
>>> scores, state = step(np.array([3]), packed, init_state(1, packed))
>>> bool(np.allclose(scores, causal.forward(np.array([[3]]), params, model)[0][:, 0]))
True

There is such a step of linear attention with ``elu_plus_one`` and of softmax with its cache, where the mechanism is
given ``kernels=jit``; :func:`lacks` says what is in the way of any other, and `causal.step` runs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import numpy as np

from linattn_ref.attention import linear, softmax
from linattn_ref.attention.features.feature_maps import elu_plus_one
from linattn_ref.models import causal, causal_network
from linattn_ref.models.causal import Model, Params
from linattn_ref.nn import gelu, post_norm, pre_norm, relu
from linattn_ref.nn.embedding import check_tokens
from linattn_ref.op import Array, Integers, op
from linattn_ref.op.options import check_flags, check_sizes

__all__ = ["Packed", "State", "init_state", "lacks", "pack", "stacked", "step"]

EPS = 1e-6  # of linear attention, unless its options say another
# What else a mechanism's options may be.
OPTIONS = {linear.__name__: {"eps"}, softmax.__name__: {"scale"}}


class Packed(NamedTuple):
    """A network as a step reads it; widths are filled up by zeros."""

    tokens: Array  # (V, E), the embedding
    places: Array  # (places, E)
    norms: Array  # (2 blocks + 1, 2, E), gain and bias
    weights: Array  # (rows, lanes), every affine map
    attention: str  # "linear" or "softmax"
    number: float  # eps of the one, scale of the other
    norms_first: bool
    activation: str  # "gelu" or "relu"
    heads: int
    width: int  # E
    hidden: int  # of the feed-forward layers
    outputs: int  # scores per token
    kernels: str  # the module of the backend that it was packed for


class State(NamedTuple):
    """What is carried from token to token, in arrays of all blocks."""

    first: Array  # linear attention's s (blocks, B, H, D, D), or softmax's keys (blocks, B, H, places, D)
    second: Array  # z (blocks, B, H, D), or values (blocks, B, H, places, D)
    place: int  # of the next token; so many keys and values are there


def lacks(params: Params, model: Model) -> str | None:
    """Why a network has no compiled step, in words; None where it has one."""
    name, options = model.mechanism.forward.__module__, dict(model.mechanism.options)
    kernels, feature_map = options.pop("kernels", None), options.pop("feature_map", elu_plus_one)
    more = set(options) - {"causal"} - OPTIONS.get(name, set())
    if name not in OPTIONS or any(one.attention.own for one in params.blocks):
        return f"there is none of {name}"
    if not hasattr(kernels, "decode"):
        return f"kernels={getattr(kernels, '__name__', None)} of the mechanism has none"
    if more:
        return f"there is none of {name} with {', '.join(sorted(more))}"
    if feature_map is not elu_plus_one:
        return f"there is none with the feature map {feature_map.name}"
    width = len(params.norm.gain)
    if not params.blocks:
        return "there is none without blocks"
    if model.heads < 1 or width % model.heads:
        return f"there is none of {model.heads} heads in a width of {width}"
    sizes = {(*one.attention.inner.w.shape, *one.attention.outer.w.shape) for one in params.blocks}
    if model.groups != 1 or sizes != {(width, 3 * width, width, width)}:
        return "there is none of heads that are shared, or that have widths of their own"
    if len({len(one.feed_forward.inner.b) for one in params.blocks}) > 1:
        return "there is none of blocks of several hidden widths"
    if model.block not in (pre_norm, post_norm) or model.activation not in (gelu, relu):
        return f"there is none of {model.block.__name__} with {model.activation.__name__}"
    return None


def pack(params: Params, model: Model) -> Packed:
    """A network for :func:`step`: a copy of its parameters, to be made again when they have changed.

    Raises
    ------
    ValueError
        There is no compiled step of it, or `causal.forward` refuses it.
    """
    if reason := lacks(params, model):
        raise ValueError(f"model: expected one with a compiled step, but {reason}")
    causal_network.look(np.zeros((1, 1), int), params, model)
    options = model.mechanism.options
    backend = options["kernels"]
    width = len(params.norm.gain)
    is_linear = model.mechanism.forward.__module__ == linear.__name__
    scale = options.get("scale")
    scale = (width // model.heads) ** -0.5 if scale is None else scale
    number = options.get("eps", EPS) if is_linear else scale
    norms = np.array([*(norm for one in params.blocks for norm in (one.norm_1, one.norm_2)), params.norm])
    tokens, places = _positions(params, model, width)
    maps = [affine for one in params.blocks for affine in (*one.attention[:2], *one.feed_forward)]
    tokens, places, norms, weights = backend.decode.pack(tokens, places, norms, [*maps, params.head])
    return Packed(
        tokens,
        places,
        norms,
        weights,
        attention="linear" if is_linear else "softmax",
        number=float(number),
        norms_first=model.block is pre_norm,
        activation="gelu" if model.activation is gelu else "relu",
        heads=model.heads,
        width=width,
        hidden=len(params.blocks[0].feed_forward.inner.b),
        outputs=len(params.head.b),
        kernels=backend.__name__,
    )


def _positions(params: Params, model: Model, width: int) -> tuple[Array, Array]:
    """Two tables, ``(V, E)`` and ``(places, E)``, whose rows are added; fixed positions have columns of their own."""
    table = params.embedding.table
    if params.positions is not None:
        return table, params.positions.table
    own = width - table.shape[1]
    places = np.pad(model.sinusoids, ((0, 0), (table.shape[1], 0)))  # type: ignore
    return np.pad(table, ((0, 0), (0, own))), places.astype(table.dtype)


# --- Token by token -------------------------------------------------------------------------------------------------


@op
def init_state(batch: int, packed: Packed) -> State:
    """The state before the first token of ``batch`` sequences."""
    check_sizes(batch=batch)
    first, second = (np.zeros(shape, packed.tokens.dtype) for shape in _shapes(batch, packed))
    return State(first, second, 0)


def _shapes(batch: int, packed: Packed) -> tuple[tuple[int, ...], ...]:
    """Of the arrays in a state."""
    leading, d = (len(packed.norms) // 2, batch, packed.heads), packed.width // packed.heads
    cache = (*leading, len(packed.places), d)
    return ((*leading, d, d), (*leading, d)) if packed.attention == "linear" else (cache, cache)


def stacked(state: causal.State, packed: Packed) -> State:
    """A state of `causal`, of a prefix that was read at once say, for :func:`step`; a copy."""
    batch = len(state.blocks[0][0])
    stacked = init_state(batch, packed)._replace(place=state.place)
    rows = np.s_[...] if packed.attention == "linear" else np.s_[:, :, : state.place]
    for own, one in zip(zip(*stacked[:2], strict=True), state.blocks, strict=True):
        own[0][rows], own[1][rows] = one[:2]
    return stacked


def step(tokens_t: Integers, packed: Packed, state: State, *, overwrite_state: bool = False) -> tuple[Array, State]:
    """One token of each sequence: ``(B,)`` to scores ``(B, V)``, and the state after it.

    With ``overwrite_state`` it works in the arrays of the state, whose content is undefined afterwards.

    Raises
    ------
    ValueError
        There is no place left.
    """
    check_tokens("tokens_t", tokens_t, len(packed.tokens))
    check_flags(overwrite_state=overwrite_state)
    kernel = import_module(packed.kernels).decode
    kernel.check(packed)
    _check_state(tokens_t, packed, state)
    after = state[:2] if overwrite_state else (state.first.copy(), state.second.copy())
    if not all(x.flags.c_contiguous and x.flags.writeable for x in after):
        raise ValueError("state: expected C-contiguous arrays that can be written to")
    scores, place = np.empty((len(tokens_t), packed.outputs), packed.tokens.dtype), state.place + 1
    kernel.step(tokens_t.astype(np.int64), state.place, packed, after, place, scores)
    return scores, State(*after, place)


def _check_state(tokens_t: Integers, packed: Packed, state: State) -> None:
    """Compiled code looks at no index: what it is given must have the network's shapes."""
    shapes, capacity = _shapes(state.first.shape[1], packed), len(packed.places)
    if tokens_t.shape != (state.first.shape[1],):
        raise ValueError(f"tokens_t: expected shape ({state.first.shape[1]},) of the state, got {tokens_t.shape}")
    kinds = (state.first.shape, state.second.shape), state.first.dtype, state.second.dtype
    if kinds != (shapes, packed.tokens.dtype, packed.tokens.dtype):
        raise ValueError(
            f"state: expected one of this network, with arrays of shapes {shapes}, got {state.first.shape}, ..."
        )
    if not 0 <= state.place < capacity:
        taken = "all are taken" if state.place == capacity else f"place is {state.place}"
        raise ValueError(f"state: there are {capacity} places, and {taken}")
