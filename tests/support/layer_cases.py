"""Every layer and loss on one line: a line in ``LAYERS`` buys the tests of ``test_layers.py``."""

from collections.abc import Callable
from functools import partial
from itertools import groupby
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.nn import (
    affine,
    cross_entropy,
    ctc,
    dropout,
    embedding,
    feed_forward,
    gelu,
    gelu_tanh,
    layer_norm,
    logistic_mixture,
    lstm,
    pooling,
    positions,
    relu,
)

ROWS, WIDTH, WIDE = (2, 5), 4, 6  # all different, so that a mix-up of two cannot pass


class Layer(NamedTuple):
    """A pair, what it is called with, and what its own formula says, the slow way."""

    name: str
    module: ModuleType
    draw: Callable[[np.random.Generator, Any], tuple[Any, ...]]  # the arguments of forward, for a dtype
    expected: Callable[..., Any]  # of the same arguments, in float64
    options: Callable[[], dict[str, Any]] = dict

    def forward(self, *args: Any, **more: Any) -> Any:
        return self.module.forward(*args, **self.options(), **more)

    def __str__(self) -> str:
        return self.name


def normal(*shape):
    return lambda rng, dtype: rng.standard_normal(shape).astype(dtype)


def all_of(*draws):
    return lambda rng, dtype: tuple(draw(rng, dtype) for draw in draws)


def affine_params(width, to):
    return lambda rng, dtype: affine.Params(*all_of(normal(width, to), normal(to))(rng, dtype))


def norm_params(rng, dtype):
    return layer_norm.Params(*all_of(normal(WIDTH), normal(WIDTH))(rng, dtype))


def tokens(rng, dtype):
    return rng.integers(0, WIDE, ROWS)


def embedding_params(rng, dtype):
    return embedding.Params(normal(WIDE, WIDTH)(rng, dtype))


def position_params(rng, dtype):
    return positions.Params(normal(9, WIDTH)(rng, dtype))


def feed_forward_params(rng, dtype):
    return feed_forward.Params(affine_params(WIDTH, WIDE)(rng, dtype), affine_params(WIDE, WIDTH)(rng, dtype))


def lstm_params(rng, dtype):
    return lstm.Params(
        *(lstm.Direction(*all_of(normal(WIDTH, 12), normal(3, 12), normal(12))(rng, dtype)) for _ in "ab")
    )


def targets(rng, dtype):
    drawn = rng.integers(0, WIDTH, ROWS)
    drawn[0, 1] = cross_entropy.IGNORE
    return drawn


def labels(rng, dtype):
    return np.array([[2, 2, 1], [3, 1, -1]])  # a repetition, and padding


def away_from_0(rng, dtype):
    x = normal(*ROWS, WIDTH)(rng, dtype)
    return x + np.sign(x) * dtype(0.1)


def mixtures(rng, dtype):
    """Means in and outside of the range, scales from narrow to wide."""
    w, mu, log_s = normal(*ROWS, 3)(rng, dtype), normal(*ROWS, 3)(rng, dtype), normal(*ROWS, 3)(rng, dtype) - 3
    return np.concatenate([w, mu, log_s], axis=-1)


def pixels(rng, dtype):
    drawn = rng.integers(0, 256, ROWS)
    drawn[0, :2] = 0, 255
    return drawn


# --- The formulas, the slow way ---


def slow_affine(x, params):
    return np.einsum("...e,ef->...f", x, params.w) + params.b


def slow_gelu(x):
    from math import erf

    return np.vectorize(lambda number: number * (1 + erf(number / 2**0.5)) / 2)(x)


def slow_layer_norm(x, params):
    rows = [(row - row.mean()) / np.sqrt(row.var() + 1e-3) for row in x.reshape(-1, WIDTH)]
    return np.reshape(rows, x.shape) * params.gain + params.bias


def slow_gelu_tanh(x):
    return x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def slow_feed_forward(x, params):
    return slow_affine(slow_gelu(slow_affine(x, params.inner)), params.outer)


def slow_cross_entropy(scores, targets):
    rows = [(a, t) for a, t in zip(scores.reshape(-1, WIDTH), targets.ravel(), strict=True) if t >= 0]
    return -np.mean([np.log(np.exp(a)[t] / np.exp(a).sum()) for a, t in rows])


def slow_ctc(scores, targets):
    losses = []
    for a, said in ((scores[0], [2, 2, 1]), (scores[1, :3], [3, 1])):
        y = np.exp(a) / np.exp(a).sum(axis=-1, keepdims=True)
        paths = [path for path in np.ndindex(*[WIDTH] * len(y)) if [c for c, _ in groupby(path) if c] == said]
        losses.append(-np.log(sum(np.prod(y[np.arange(len(y)), path]) for path in paths)) / len(said))
    return np.mean(losses)


def slow_logistic_mixture(params, values):
    def sigma(x):
        return 1 / (1 + np.exp(-x))

    losses = []
    for row, n in zip(params.reshape(-1, params.shape[-1]).astype(np.longdouble), values.ravel(), strict=True):
        w, mu, log_s = np.split(row, 3)
        pi, s, x = np.exp(w) / np.exp(w).sum(), np.exp(np.maximum(log_s, -7)), 2 * np.longdouble(n) / 255 - 1
        high = 1 if n == 255 else sigma((x + np.longdouble(1) / 255 - mu) / s)
        low = 0 if n == 0 else sigma((x - np.longdouble(1) / 255 - mu) / s)
        losses.append(-np.log((pi * (high - low)).sum()))
    return np.float64(np.mean(losses))


def slow_lstm(x, params):
    def sigma(a):
        return 1 / (1 + np.exp(-a))

    y = np.zeros((*x.shape[:-1], 2, 3))
    for b, length in enumerate((5, 3)):
        for side, (w, u, bias) in enumerate(params):
            h = c = np.zeros(3)
            for t in range(length) if side == 0 else reversed(range(length)):
                i, f, g, o = (x[b, t] @ w + h @ u + bias).reshape(4, 3)
                c = sigma(f) * c + sigma(i) * np.tanh(g)
                y[b, t, side] = h = sigma(o) * np.tanh(c)
    return y.reshape(*x.shape[:-1], 6)


def half_of(x):
    return x * np.where(np.random.default_rng(3).random(x.shape, dtype=np.float32) >= 0.5, 2, 0)


LAYERS = (
    Layer("affine", affine, all_of(normal(*ROWS, WIDTH), affine_params(WIDTH, WIDE)), slow_affine),
    Layer("relu", relu, all_of(away_from_0), lambda x: np.where(x > 0, x, 0)),
    Layer("gelu", gelu, all_of(normal(*ROWS, WIDTH)), slow_gelu),
    Layer(
        "layer norm",
        layer_norm,
        all_of(normal(*ROWS, WIDTH), norm_params),
        slow_layer_norm,
        partial(dict, eps=1e-3),
    ),
    Layer("gelu tanh", gelu_tanh, all_of(normal(*ROWS, WIDTH)), slow_gelu_tanh),
    Layer(
        "pooling",
        pooling,
        all_of(normal(*ROWS, WIDTH)),
        lambda x: np.stack([x[0, :3].mean(axis=0), x[1].mean(axis=0)]),
        lambda: {"key_mask": np.array([[True] * 3 + [False] * 2, [True] * 5])},
    ),
    Layer("pooling first", pooling, all_of(normal(*ROWS, WIDTH)), lambda x: x[:, 0], lambda: {"pool": "first"}),
    Layer(
        "dropout",
        dropout,
        all_of(normal(*ROWS, WIDTH)),
        half_of,
        lambda: {"p": 0.5, "rng": np.random.default_rng(3)},
    ),
    Layer("embedding", embedding, all_of(tokens, embedding_params), lambda t, params: params.table[t]),
    Layer(
        "positions",
        positions,
        all_of(normal(*ROWS, WIDTH), position_params),
        lambda x, params: x + params.table[2:7],
        partial(dict, first=2),
    ),
    Layer("feed-forward", feed_forward, all_of(normal(*ROWS, WIDTH), feed_forward_params), slow_feed_forward),
    Layer(
        "feed-forward relu",
        feed_forward,
        all_of(normal(*ROWS, WIDTH), feed_forward_params),
        lambda x, params: slow_affine(np.maximum(slow_affine(x, params.inner), 0), params.outer),
        lambda: {"activation": relu},
    ),
    Layer(
        "lstm",
        lstm,
        all_of(normal(*ROWS, WIDTH), lstm_params),
        slow_lstm,
        lambda: {"lengths": np.array([5, 3])},
    ),
    Layer("cross-entropy", cross_entropy, all_of(normal(*ROWS, WIDTH), targets), slow_cross_entropy),
    Layer(
        "ctc",
        ctc,
        all_of(normal(*ROWS, WIDTH), labels),
        slow_ctc,
        lambda: {"frames": np.array([5, 3]), "lengths": np.array([3, 2])},
    ),
    Layer("logistic mixture", logistic_mixture, all_of(mixtures, pixels), slow_logistic_mixture),
)
