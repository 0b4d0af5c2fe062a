"""Generation: the next token is drawn, appended, and read in turn.

    p = softmax(scores / temperature),   the next token ~ p                                  (1)

With ``top_k`` only the ``k`` likeliest are drawn from; of equally likely tokens, the first ones. Where the scores are
something else, the parameters of a mixture of logistics say, ``sample`` draws in its own way
(`linattn_ref.nn.logistic_mixture.sample`).

Three ways to get the scores, which give the same sequence from the same network and seed:

``compiled``  a step for each token, what came before is in the state; all layers in one call (`decoding`)
``steps``     the same, one layer after the other (`causal.step`)
``anew``      the whole sequence again for each token, which any causal mechanism can do

A given prefix is read at once. :func:`ways` says which of the three a network has.

>>> from linattn_ref.attention import linear, local
>>> from linattn_ref.nn import mechanism
>>> params = causal.draw(np.random.default_rng(0), tokens=5, places=16, width=8, hidden=16, layers=2)
>>> [ways(params, Model(mechanism.of(module, causal=True), heads=2)) for module in (linear, local)]
[('steps', 'anew'), ('anew',)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from linattn_ref.models import causal, decoding
from linattn_ref.models.causal import Model, Params
from linattn_ref.nn.embedding import check_tokens
from linattn_ref.op import Array, Integers, op
from linattn_ref.op.options import check_sizes, is_number, plain

__all__ = ["check_temperature", "generate", "pick", "ways"]


@op
def pick(scores: Array, rng: np.random.Generator, *, temperature: float = 1.0, top_k: int | None = None) -> Integers:
    """Equation (1): a token for each row of ``scores (B, V)``, ``(B,)``.

    A token whose score is -inf is never drawn.

    Raises
    ------
    ValueError
        A score is NaN or +inf, or all scores of a row are -inf.
    """
    check_temperature(temperature)
    scores = _check_scores(scores)
    temperature = min(temperature, float(np.finfo(scores.dtype).max))
    if top_k is not None:
        check_sizes(top_k=top_k)
        left_out = np.argsort(-scores, axis=-1, kind="stable")[:, top_k:]  # of equal ones, the first stay
        scores = scores.copy()
        np.put_along_axis(scores, left_out, -np.inf, axis=-1)
    uniform = rng.random(len(scores))
    if temperature < np.finfo(scores.dtype).tiny:  # 0, or would be in their precision
        return scores.argmax(axis=-1)
    with np.errstate(over="ignore"):  # what is infinitely less likely has chance 0
        p = np.exp((scores - scores.max(axis=-1, keepdims=True)) / temperature)
    cumulative = np.cumsum(p, axis=-1, dtype=np.float64)  # (B, V); in 16 bits it would stand still
    return (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=-1)


def _check_scores(scores: Array) -> Array:
    """Scores that have a softmax, as floats."""
    if not isinstance(scores, np.ndarray) or scores.ndim != 2 or scores.size == 0 or scores.dtype.kind not in "iuf":
        got = f"{scores.dtype} {scores.shape}" if isinstance(scores, np.ndarray) else type(scores).__name__
        raise ValueError(f"scores: expected an array of numbers (B, V), got {got}")
    scores = scores.astype(np.result_type(scores, 0.0), copy=False)
    largest = scores.max(axis=-1)  # NaN where one is
    if not np.isfinite(largest).all():
        row = int(np.flatnonzero(~np.isfinite(largest))[0])
        found = "nothing but -inf" if largest[row] == -np.inf else str(largest[row])
        raise ValueError(f"scores: expected finite numbers, or -inf for some tokens of a row, got {found} in row {row}")
    return scores


def check_temperature(temperature: float) -> None:
    """What :func:`pick` can divide by, or 0."""
    if not (is_number(temperature) and 0 <= temperature < np.inf):
        raise ValueError(f"temperature: expected a finite number of at least 0, got {temperature!r}")


def generate(
    prefix: Integers,
    count: int,
    params: Params,
    model: Model,
    *,
    rng: np.random.Generator,
    sample: Callable[..., Integers] = pick,
    way: str | None = None,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    **options: Any,
) -> Integers:
    """``prefix (B, N)`` and ``count`` more tokens: ``(B, N + count)``, int64 whatever integers the prefix has.

    Parameters
    ----------
    prefix : ndarray of int ``(B, N)``
        At least one token each.
    count : int
    params, model
        A network of `linattn_ref.models.causal`.
    rng : numpy.random.Generator
        Given to ``sample`` for each token.
    sample : callable
        ``(scores (B, V), rng, **options) -> tokens (B,)``.
    way : str, optional
        One of :func:`ways`; the first of them unless given. The compiled way needs a mechanism with ``kernels=jit``.
    progress : callable
        ``tqdm.tqdm``, say.
    **options
        Of ``sample``: ``temperature``, 0 to take the likeliest token each time, and ``top_k``, to draw from so many
        tokens only.
    """
    count, options = plain(count), {name: plain(x) for name, x in options.items()}
    check_tokens("prefix", prefix, len(params.embedding.table))
    if prefix.ndim != 2 or prefix.size == 0:
        raise ValueError(f"prefix: expected shape (B, N) of at least one token, got {prefix.shape}")
    check_sizes(count=count)
    length, places = prefix.shape[1], causal.places(params, model)
    if length + count - 1 > places:
        raise ValueError(
            f"count: {length} tokens and {count} more need {length + count - 1} places, the network has {places}"
        )
    there = ways(params, model)
    if way not in (None, *there):
        lack = f" ({decoding.lacks(params, model)})" if way == "compiled" else ""
        raise ValueError(f"way: expected one of {', '.join(there)}, got {way!r}{lack}")
    tokens = np.empty((len(prefix), length + count), np.int64)  # the prefix's own type may not hold every token
    tokens[:, :length] = prefix
    scores = WAYS[way or there[0]](tokens, length, params, model)
    for i in progress(range(length, length + count)):
        drawn = sample(next(scores), rng, **options)  # (1)
        check_tokens("sample", drawn, len(params.embedding.table))
        if drawn.shape != (len(prefix),):
            raise ValueError(f"sample: expected tokens of shape ({len(prefix)},), got {drawn.shape}")
        tokens[:, i] = drawn
    return tokens


def ways(params: Params, model: Model) -> tuple[str, ...]:
    """How :func:`generate` can run a network, the fastest first."""
    compiled = decoding.lacks(params, model) is None
    return ("compiled",) * compiled + ("steps",) * (model.mechanism.step is not None) + ("anew",)


# --- The scores after each token from place ``start - 1`` on, of tokens that are written meanwhile ------------------


def _compiled(tokens: Integers, start: int, params: Params, model: Model) -> Iterator[Array]:
    packed = decoding.pack(params, model)
    state = decoding.stacked(_read(tokens[:, : start - 1], params, model), packed)
    for i in range(start - 1, tokens.shape[1] - 1):
        scores, state = decoding.step(tokens[:, i], packed, state, overwrite_state=True)
        yield scores


def _steps(tokens: Integers, start: int, params: Params, model: Model) -> Iterator[Array]:
    state = _read(tokens[:, : start - 1], params, model)
    for i in range(start - 1, tokens.shape[1] - 1):
        scores, state = causal.step(tokens[:, i], params, state, model, overwrite_state=True)
        yield scores


def _read(prefix: Integers, params: Params, model: Model) -> causal.State:
    state = causal.init_state(len(prefix), params, model)
    return causal.read(prefix, params, state, model) if prefix.size else state


def _anew(tokens: Integers, start: int, params: Params, model: Model) -> Iterator[Array]:
    for i in range(start, tokens.shape[1]):
        yield causal.forward(tokens[:, :i], params, model)[0][:, -1]


WAYS = {"compiled": _compiled, "steps": _steps, "anew": _anew}
