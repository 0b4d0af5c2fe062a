"""An autoregressive transformer token by token: `linattn_ref.models.causal` as a recurrent network.

With linear attention its memory is constant, with softmax it is the cache of keys and values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import room_of
from linattn_ref.models.causal_network import Model, Params, Tokens, check_tokens, embed, places
from linattn_ref.nn import affine, embedding, layer_norm, multi_head

__all__ = ["State", "init_state", "read", "step"]


@documented
class State(NamedTuple):
    """What is carried from token to token."""

    blocks: tuple[Any, ...]  # the mechanism's, of each block
    place: int  # of the next token


@plain_numbers
def init_state(batch: int, params: Params, model: Model) -> State:
    """The state before the first token of ``batch`` sequences."""
    states = (
        multi_head.init_state(batch, one.attention, model.mechanism, heads=model.heads, capacity=places(params, model))
        for one in params.blocks
    )
    return State(tuple(states), 0)


def step(
    tokens_t: Tokens, params: Params, state: State, model: Model, *, overwrite_state: bool = False
) -> tuple[Array, State]:
    """One token of each sequence: ``(B,)`` to scores ``(B, V)``, and the state after it.

    With ``overwrite_state`` it may work in the arrays of the state, whose content is undefined afterwards.

    Raises
    ------
    ValueError
        There is no place left.
    """
    embedding.check_tokens("tokens_t", tokens_t, len(params.embedding.table))
    if state.place >= places(params, model):
        raise ValueError(f"state: there are {places(params, model)} places, and all are taken")
    x_t = embed(tokens_t[:, None], params, model, state.place)[:, 0]  # (1)  (B, E)
    states: list[Any] = []
    options = {"heads": model.heads, "activation": model.activation, "overwrite_state": overwrite_state}
    kernels = room_of(model.kernels)
    for one, before in zip(params.blocks, state.blocks, strict=True):
        x_t, after = model.block.step(x_t, one, before, model.mechanism, kernels=kernels, **options)  # (2)
        states.append(after)
    scores, _ = affine.forward(layer_norm.forward(x_t, params.norm, kernels=kernels)[0], params.head)  # (3)  (B, V)
    return scores, State(tuple(states), state.place + 1)


def read(tokens: Tokens, params: Params, state: State, model: Model) -> State:
    """The state after more tokens, ``(B, N)``, all at once: as by N steps."""
    check_tokens(tokens, params, model)
    if state.place + tokens.shape[1] > places(params, model):
        raise ValueError(
            f"tokens: there are {places(params, model)} places, got {tokens.shape[1]} tokens after {state.place}"
        )
    x = embed(tokens, params, model, state.place)  # (1)  (B, N, E)
    states = []
    for one, before in zip(params.blocks, state.blocks, strict=True):
        going_on = model.mechanism._replace(options={**model.mechanism.options, "state": before})
        x, saved = model.block.forward.unchecked(
            x, one, going_on, heads=model.heads, activation=model.activation, kernels=room_of(model.kernels)
        )  # (2)
        states.append(saved.attention.attention.state)
    return State(tuple(states), state.place + tokens.shape[1])
