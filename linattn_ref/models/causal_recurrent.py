"""An autoregressive transformer token by token: `linattn_ref.models.causal` as a recurrent network.

With linear attention its memory is constant, with softmax it is the cache of keys and values. Equations are
those of `causal`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from linattn_ref.models.causal_network import Model, Params, check_tokens, embed, look, look_at_network, places
from linattn_ref.nn import affine, embedding, layer_norm, multi_head
from linattn_ref.op import Array, Int, Integers, op
from linattn_ref.op.shapes import name_of, rules_of

__all__ = ["State", "init_state", "read", "step"]


class State(NamedTuple):
    blocks: tuple[Any, ...]  # the mechanism's, of each block
    place: int  # of the next token


@op(look=look_at_network)
def init_state(batch: int, params: Params, model: Model) -> State:
    """Return the state before the first token of ``batch`` sequences."""
    states = (
        multi_head.init_state(batch, one.attention, model.inside, heads=model.heads, capacity=places(params, model))
        for one in params.blocks
    )
    return State(tuple(states), 0)


def look_at_state(tokens: Any, params: Any, state: Any, model: Any) -> None:
    """Check that a state is of this network, and of as many sequences as there are."""
    if len(state.blocks) != len(params.blocks) or state.place < 0:
        raise ValueError(
            f"state: expected one of {len(params.blocks)} blocks and a place of at least 0,"
            f" got {len(state.blocks)} and {state.place}"
        )
    inside, dtype = model.inside, params.norm.gain.dtype
    leading = len(tokens), model.heads // inside.options.get("groups", 1)
    rule = rules_of(inside.forward).get("state") if hasattr(inside.forward, "page") else None
    for one in state.blocks:  # of every mechanism, the first array is (B, H, ...)
        if rule and not isinstance(one, rule.kind):
            raise TypeError(f"state: expected {name_of(rule.kind)} for each block, got {name_of(type(one))}")
        if (one[0].shape[:2], one[0].dtype) != (leading, dtype):
            raise ValueError(
                f"state: expected {dtype} with (B, H) = {leading}, got {one[0].dtype} of shape {one[0].shape}"
            )
    if state.blocks:  # what there is at all, and widths, which all blocks share
        own = multi_head.init_state(1, params.blocks[0].attention, inside, heads=model.heads, capacity=1)
        for one in state.blocks:
            if other := difference(one, own):
                of = inside.forward.__module__.rpartition(".")[2]
                raise ValueError(f"state: expected one of {of}, got one with another {other}")


def difference(state: Any, fresh: Any) -> str:
    """The first field that only one of two states has, or that has another width in each; empty if there is none."""
    for name, x, y in zip(getattr(fresh, "_fields", ()), state, fresh, strict=False):
        width, usual = (getattr(each, "shape", ())[2:][-1:] for each in (x, y))  # of (B, H, ..., width)
        grows = name == "log_scale" and usual == (1,)  # into a number per feature
        if name != "key_mask" and ((x is None) != (y is None) or not (grows or width == usual)):
            return str(name)
    return ""


def look_at_step(tokens_t: Any, params: Any, state: Any, model: Any) -> None:
    look_at_state(tokens_t, params, state, model)
    if state.place >= places(params, model):
        raise ValueError(f"state: there are {places(params, model)} places, and all are taken")
    for one in params.blocks:
        multi_head.look_at_step(one.attention, model.inside, model.heads)


def check_token(tokens_t: Any, params: Any, **_: Any) -> None:
    embedding.check_tokens("tokens_t", tokens_t, len(params.embedding.table))


@op(look=look_at_step, values=check_token)
def step(tokens_t: Int[Integers, "B"], params: Params, state: State, model: Model) -> tuple[Array, State]:
    """One token of each sequence: ``(B,)`` to scores ``(B, V)``, and the state after it.

    Raises
    ------
    TypeError, ValueError
        There is no place left, or the state is of another mechanism, or of other blocks, heads or sequences.
    """
    x_t = embed(tokens_t[:, None], params, model, state.place)[:, 0]  # (1)  (B, E)
    states: list[Any] = []
    for one, before in zip(params.blocks, state.blocks, strict=True):
        x_t, after = model.block.step(
            x_t, one, before, model.inside, heads=model.heads, activation=model.activation
        )  # (2)
        states.append(after)
    x_t, _ = layer_norm.forward(x_t, params.norm)  # (3)
    scores, _ = affine.forward(x_t, params.head)  # (3)  (B, V)
    return scores, State(tuple(states), state.place + 1)


def look_at_more(tokens: Any, params: Any, state: Any, model: Any) -> None:
    look(tokens, params, model)
    look_at_state(tokens, params, state, model)
    if state.place + tokens.shape[1] > places(params, model):
        raise ValueError(
            f"tokens: there are {places(params, model)} places, got {tokens.shape[1]} tokens after {state.place}"
        )


@op(look=look_at_more, values=check_tokens)
def read(tokens: Int[Integers, "B N"], params: Params, state: State, model: Model) -> State:
    """Return the state after more tokens, ``(B, N)``, all at once: as by N steps."""
    x, states = embed(tokens, params, model, state.place), []  # (1)  (B, N, E)
    for one, before in zip(params.blocks, state.blocks, strict=True):
        going_on = model.inside._replace(options={**model.inside.options, "state": before})
        x, saved = model.block.forward(x, one, going_on, heads=model.heads, activation=model.activation)  # (2)
        states.append(saved.attention.attention.state)
    return State(tuple(states), state.place + tokens.shape[1])
