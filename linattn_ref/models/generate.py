"""Writing: what a network says comes next is drawn, appended, and read in turn.

    p = softmax(scores / temperature),   the next token ~ p                                  (1)

With ``top_k`` only the ``k`` likeliest are drawn from. Two ways to get the scores, which give the same sequence from
the same network and seed:

``recurrent``   a step for each token: what came before is in the state
``anew``        the whole sequence again for each token, which any causal mechanism can do
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, check_sizes, is_number
from linattn_ref.models import causal
from linattn_ref.models.causal import Model, Params
from linattn_ref.nn.embedding import check_tokens

__all__ = ["generate", "pick"]

Tokens = NDArray[np.integer[Any]]


def generate(
    prefix: Tokens,
    count: int,
    params: Params,
    model: Model,
    *,
    rng: np.random.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    recurrent: bool | None = None,
) -> Tokens:
    """``prefix (B, N)`` and ``count`` more tokens: ``(B, N + count)``.

    Parameters
    ----------
    prefix : ndarray of int ``(B, N)``
        At least one token each.
    count : int
    params, model
        A network of `linattn_ref.models.causal`.
    rng : numpy.random.Generator
        One number is drawn from it for each token.
    temperature : float
        0 takes the likeliest token each time.
    top_k : int, optional
        Draw from so many tokens only.
    recurrent : bool, optional
        Token by token, or all anew for each token; the first, unless given, where the mechanism has a recurrent form.
    """
    check_tokens("prefix", prefix, len(params.embedding.table))
    if prefix.ndim != 2 or prefix.size == 0:
        raise ValueError(f"prefix: expected shape (B, N) of at least one token, got {prefix.shape}")
    check_sizes(count=count)
    if prefix.shape[1] + count - 1 > causal.places(params, model):
        raise ValueError(
            f"count: {prefix.shape[1]} tokens and {count} more need {prefix.shape[1] + count - 1} places,"
            f" the network has {causal.places(params, model)}"
        )
    tokens = np.empty((len(prefix), prefix.shape[1] + count), prefix.dtype)
    tokens[:, : prefix.shape[1]] = prefix
    steps = model.mechanism.step is not None if recurrent is None else recurrent
    scores = (_by_steps if steps else _anew)(tokens, prefix.shape[1], params, model)
    for i in range(prefix.shape[1], tokens.shape[1]):
        tokens[:, i] = pick(next(scores), rng, temperature=temperature, top_k=top_k)  # (1)
    return tokens


def pick(scores: Array, rng: np.random.Generator, *, temperature: float = 1.0, top_k: int | None = None) -> Tokens:
    """Equation (1): a token for each row of ``scores (B, V)``, ``(B,)``."""
    if not (is_number(temperature) and temperature >= 0):
        raise ValueError(f"temperature: expected a number of at least 0, got {temperature!r}")
    if top_k is not None:
        check_sizes(top_k=top_k)
        least = np.sort(scores, axis=-1)[:, -min(top_k, scores.shape[-1]), None]  # (B, 1)
        scores = np.where(scores >= least, scores, -np.inf)
    uniform = rng.random(len(scores))
    if temperature == 0:
        return scores.argmax(axis=-1)
    p = np.exp((scores - scores.max(axis=-1, keepdims=True)) / temperature)
    cumulative = np.cumsum(p, axis=-1)  # (B, V)
    return (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=-1)


def _by_steps(tokens: Tokens, start: int, params: Params, model: Model) -> Iterator[Array]:
    """The scores after each token from ``start - 1`` on, by steps."""
    state = causal.init_state(len(tokens), params, model)
    for i in range(tokens.shape[1] - 1):
        scores, state = causal.step(tokens[:, i], params, state, model)
        if i >= start - 1:
            yield scores


def _anew(tokens: Tokens, start: int, params: Params, model: Model) -> Iterator[Array]:
    """The same by whole passes."""
    for i in range(start, tokens.shape[1]):
        yield causal.forward(tokens[:, :i], params, model)[0][:, -1]
