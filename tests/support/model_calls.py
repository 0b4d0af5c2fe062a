"""Layers, losses and models for ``random_calls.py``: any sizes, layouts, masks, mechanisms and blocks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import numpy as np
from layouts import laid_out
from mechanism_cases import HEADS, MECHANISMS, TOKENS, WIDTH

from linattn_ref.attention import feature_maps, linear, linformer, local, performer, rfa, softmax, sparse_transformer
from linattn_ref.gradcheck import check_directions
from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.kernels import jit, reference
from linattn_ref.models import causal, classifier, encoder, masked_tokens, speech, speech_lstm
from linattn_ref.nested import leaves, map_arrays
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
    mechanism,
    multi_head,
    no_norm,
    pooling,
    positions,
    post_norm,
    pre_norm,
    relu,
)
from linattn_ref.op.backends import pages_of

BLOCKS = {"pre": pre_norm, "post": post_norm, "none": no_norm}
# A network's third derivatives are some hundred times as large as a layer's.
STEP = 1e-6


@dataclass(frozen=True)
class Drawn:
    """A call of a layer or a model."""

    name: str
    forward: Callable[..., Any]  # of the arguments alone; the same random numbers each time
    backward: Callable[..., Any]
    args: tuple[Any, ...]
    dtype: Any
    expected: Callable[..., Any] | None = None  # its formula, in float64
    steps: Callable[[], Any] | None = None  # the same output token by token
    others: Callable[..., Any] | None = None  # the same in the other backend
    about: dict[str, Any] = field(default_factory=dict)

    def check(self, rng: np.random.Generator) -> None:
        kept = map_arrays(np.copy, self.args)
        y, saved = self.forward(*self.args)
        close = partial(self.assert_close, lost=cancelled(saved))
        d_y = laid_out(np.asarray(rng.standard_normal(np.shape(y)), self.dtype), rng)
        d_kept = d_y.copy()
        gradients = self.backward(d_y if d_y.ndim else d_y[()], saved)
        for (name, x), (_, before) in zip(
            leaves((*self.args, d_y), strict=False), leaves((*kept, d_kept), strict=False), strict=True
        ):
            np.testing.assert_array_equal(x, before, err_msg=f"argument {name} was written to")
        results = [np.asarray(y), *(x for _, x in float_arrays("", gradients))]
        for x in results:
            assert x.dtype == self.dtype
            assert np.isfinite(x).all()
        wide = widened(self.args)
        if self.expected:
            close(y, self.expected(*wide), "against its formula")
        if self.others:
            other, saved = self.others(*wide)
            again = self.backward(d_y.astype(np.float64) if d_y.ndim else np.float64(d_y), saved)
            pairs = zip(results, [np.asarray(other), *(x for _, x in float_arrays("", again))], strict=True)
            for ours, theirs in pairs:
                close(ours, theirs, "against reference")
        if self.steps:
            close(self.steps(), y, "token by token")
        if self.dtype == np.float64:
            check_directions(self.forward, self.backward, *self.args, rng=rng, directions=1, step=STEP).assert_ok()

    def assert_close(self, actual: Any, expected: Any, what: str, lost: float) -> None:
        largest = max(1.0, float(abs(np.asarray(expected)).max()))
        # Some thousand roundings, each of the largest number, in networks of three layers; and those of the terms of a
        # denominator, each so many times as large as it is.
        atol = (4096 + 16 * lost) * np.finfo(self.dtype).eps * largest
        np.testing.assert_allclose(actual, expected, rtol=0, atol=atol, err_msg=what)

    def __str__(self) -> str:
        shapes = [x.shape for _, x in leaves(self.args, strict=False)]
        return f"{self.name}, {np.dtype(self.dtype)}, shapes {shapes}, {self.about}"


def cancelled(saved: Any) -> float:
    """How many times as large as a denominator its terms are, at most, in all linear attention that was saved.

    They cancel where features have either sign, as those of (q . k + c)^2 have, and so their rounding stays.
    """
    lost = 0.0
    if {"phi_q", "phi_k", "causal"} <= {*getattr(saved, "_fields", ())}:
        d = getattr(saved, "d", None)
        d = saved.denominator[..., None] if d is None else d
        sums = abs(saved.phi_k).cumsum(axis=-2)[..., -d.shape[-2] if saved.causal else -1 :, :]
        terms = (abs(saved.phi_q) * sums).sum(axis=-1, keepdims=True)
        lost = float((terms / np.where(d == 0, np.inf, abs(d))).max())
    return max([lost, *(cancelled(x) for x in saved if isinstance(x, tuple))])  # its parts


def draw(kind: Any, rng: np.random.Generator, dtype: Any, *, everything: bool) -> Drawn:
    """A layer by its name, or what one of the functions below draws; in ``jit`` too, but float32 is not compiled."""
    in_numpy = dtype == np.float32 and not everything
    room = reference if in_numpy else jit if rng.random() < 0.4 else None
    return draw_layer(kind, rng, dtype, room) if isinstance(kind, str) else kind(rng, dtype, room)


def integer(rng, low, high):
    return int(rng.integers(low, high + 1))


def widened(x):
    return map_arrays(lambda x: x.astype(np.float64) if x.dtype.kind == "f" else x, x)


def normal(rng, dtype, *shape):
    return laid_out(rng.standard_normal(shape).astype(dtype), rng)


def laid(params, rng):
    return map_arrays(partial(laid_out, rng=rng), params)


# --- Layers and losses ----------------------------------------------------------------------------------------------


def draw_layer(name, rng, dtype, room):
    batch, n, e, f = integer(rng, 1, 4), integer(rng, 1, 9), integer(rng, 1, 9), integer(rng, 1, 9)
    lead = [(batch, n), (n,), (batch, 1, n), ()][rng.integers(4)]
    module, args, options, expected = LAYERS[name](rng, dtype, lead, batch, n, e, f)
    options = {k: x for k, x in options.items() if x is not None}
    in_room = {"kernels": room} if room and any(hasattr(room, page) for page in pages_of(module.__name__)) else {}

    @wraps(module.forward)
    def run(*args, **options):
        drawn = {"rng": np.random.default_rng(3)} if module is dropout else {}
        return module.forward(*args, **options, **drawn)

    def in_float64(*args):
        return run(*args, **{name: widened(x) for name, x in options.items()})

    return Drawn(
        name,
        partial(run, **options, **in_room),
        module.backward,
        args,
        dtype,
        expected=expected,
        others=in_float64 if in_room or dtype == np.float32 else None,
        about={**options, **{k: getattr(x, "__name__", x) for k, x in in_room.items()}},
    )


def _affine(rng, dtype, lead, batch, n, e, f):
    params = affine.Params(normal(rng, dtype, e, f), normal(rng, dtype, f))
    return affine, (normal(rng, dtype, *lead, e), params), {}, lambda x, p: np.einsum("...e,ef->...f", x, p.w) + p.b


def _erf(x):
    from math import erf

    return x * (1 + np.vectorize(lambda y: erf(y / 2**0.5), otypes=[float])(x)) / 2


def _tanh(x):
    return x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def _activation(module, formula):
    def drawn(rng, dtype, lead, batch, n, e, f):
        return module, (normal(rng, dtype, *lead, e) * dtype(rng.choice([1, 5])),), {}, formula

    return drawn


def _layer_norm(rng, dtype, lead, batch, n, e, f):
    e += 2  # of one entry nothing is left, of two their sign
    eps = float(rng.choice([1e-5, 1e-3, 0.1]))
    params = layer_norm.Params(normal(rng, dtype, e), normal(rng, dtype, e))

    def formula(x, p):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps) * p.gain + p.bias

    return layer_norm, (normal(rng, dtype, *lead, e), params), {"eps": eps}, formula


def _feed_forward(rng, dtype, lead, batch, n, e, f):
    formulas = {gelu: _erf, gelu_tanh: _tanh, relu: lambda x: np.maximum(x, 0)}
    activation = [*formulas][rng.integers(3)]
    params = laid(feed_forward.draw(e, f, rng, dtype=dtype), rng)
    options = {"activation": activation}

    def formula(x, p):
        return formulas[activation](x @ p.inner.w + p.inner.b) @ p.outer.w + p.outer.b

    return feed_forward, (normal(rng, dtype, *lead, e), params), options, formula


def _dropout(rng, dtype, lead, batch, n, e, f):
    return dropout, (normal(rng, dtype, *lead, e),), {"p": float(rng.choice([0.0, 0.3, 0.9]))}, None


def _embedding(rng, dtype, lead, batch, n, e, f):
    tokens = rng.integers(0, f, (batch, n)).astype(rng.choice([np.int64, np.int32, np.uint8]))
    table = normal(rng, dtype, f, e)
    return embedding, (laid_out(tokens, rng), embedding.Params(table)), {}, lambda t, p: p.table[t]


def _positions(rng, dtype, lead, batch, n, e, f):
    first = integer(rng, 0, 5)
    params = positions.Params(normal(rng, dtype, n + first + integer(rng, 0, 3), e))
    formula = lambda x, p: x + p.table[first : first + n]  # noqa: E731
    return positions, (normal(rng, dtype, batch, n, e), params), {"first": first}, formula


def _pooling(rng, dtype, lead, batch, n, e, f):
    mask = rng.random((batch, n)) < 0.7
    mask[np.arange(batch), rng.integers(0, n, batch)] = True
    if rng.random() < 0.3:
        return pooling, (normal(rng, dtype, batch, n, e),), {"pool": "first"}, lambda x: x[:, 0]
    formula = lambda x: np.stack([row[kept].mean(axis=0) for row, kept in zip(x, mask, strict=True)])  # noqa: E731
    return pooling, (normal(rng, dtype, batch, n, e),), {"key_mask": mask}, formula


def _lstm(rng, dtype, lead, batch, n, e, f):
    hidden, gate = integer(rng, 1, 5), lambda a: 1 / (1 + np.exp(-a))
    params = laid(lstm.draw(e, hidden, rng, dtype=dtype), rng)
    lengths = rng.integers(1, n + 1, batch) if rng.random() < 0.6 else None

    def formula(x, params):
        y = np.zeros((batch, n, 2, hidden))
        for b in range(batch):
            length = n if lengths is None else lengths[b]
            for side, (w, u, bias) in enumerate(params):
                h = c = np.zeros(hidden)
                for t in range(length) if side == 0 else reversed(range(length)):
                    i, f, g, o = (x[b, t] @ w + h @ u + bias).reshape(4, hidden)
                    c = gate(f) * c + gate(i) * np.tanh(g)
                    y[b, t, side] = h = gate(o) * np.tanh(c)
        return y.reshape(batch, n, 2 * hidden)

    return lstm, (normal(rng, dtype, batch, n, e), params), {"lengths": lengths}, formula


def _cross_entropy(rng, dtype, lead, batch, n, e, f):
    scores = normal(rng, dtype, batch, n, f) * dtype(rng.choice([1, 5]))
    targets = rng.integers(0, f, (batch, n))
    targets[rng.random((batch, n)) < 0.2] = cross_entropy.IGNORE
    targets[0, 0] = 0
    weight = rng.random((batch, n)).astype(dtype) + dtype(0.1) if rng.random() < 0.4 else None

    def formula(scores, targets):
        w = np.where(targets == cross_entropy.IGNORE, 0, 1.0 if weight is None else weight)
        a = scores - scores.max(axis=-1, keepdims=True)
        log_p = a - np.log(np.exp(a).sum(axis=-1, keepdims=True))
        return -(w * np.take_along_axis(log_p, np.maximum(targets, 0)[..., None], -1)[..., 0]).sum() / w.sum()

    return cross_entropy, (scores, laid_out(targets, rng)), {"weight": weight}, formula


def _ctc(rng, dtype, lead, batch, n, e, f):
    """Words short enough for their frames, even if all labels are equal."""
    words, labels = integer(rng, 1, 4), f + 1
    frames = 2 * words + n
    lengths, heard = rng.integers(1, words + 1, batch), rng.integers(2 * words, frames + 1, batch)
    targets = rng.integers(1, labels, (batch, words))
    targets[np.arange(words) >= lengths[:, None]] = -1
    options = {"frames": heard, "lengths": lengths}
    return ctc, (normal(rng, dtype, batch, frames, labels), targets), options, None


def _logistic_mixture(rng, dtype, lead, batch, n, e, f):
    parts = integer(rng, 1, 6)
    w, mu, log_s = rng.standard_normal((3, batch, n, parts))
    params = np.concatenate([w, mu, log_s - 3], axis=-1).astype(dtype)
    values = rng.integers(0, 256, (batch, n))
    values.flat[0] = rng.choice([0, 255])
    return logistic_mixture, (laid_out(params, rng), laid_out(values, rng)), {}, None


LAYERS = {
    "affine": _affine,
    "gelu": _activation(gelu, _erf),
    "gelu tanh": _activation(gelu_tanh, _tanh),
    "relu": _activation(relu, lambda x: np.maximum(x, 0)),
    "layer norm": _layer_norm,
    "feed-forward": _feed_forward,
    "dropout": _dropout,
    "embedding": _embedding,
    "positions": _positions,
    "pooling": _pooling,
    "lstm": _lstm,
    "cross-entropy": _cross_entropy,
    "ctc": _ctc,
    "logistic mixture": _logistic_mixture,
}


# --- Attention in a layer or a block --------------------------------------------------------------------------------


def draw_attention(rng, dtype, room):
    inside = MECHANISMS[rng.integers(len(MECHANISMS))]
    layer = [multi_head, pre_norm, post_norm, no_norm][rng.integers(4)]
    batch = integer(rng, 1, 3)
    shape = (WIDTH,) if layer is multi_head else (WIDTH, integer(rng, 1, 20))
    own = map_arrays(lambda x: x.astype(dtype), inside.own)
    params = laid(layer.draw(*shape, rng, reads=inside.mechanism.reads, own=own, dtype=dtype), rng)
    options = {}
    if layer is not multi_head:
        options = {
            "activation": [gelu, gelu_tanh, relu][rng.integers(3)],
            "eps": float(rng.choice([1e-5, 1e-3])),
            "dropout": float(rng.choice([0.0, 0.3])),
        }
        if layer is no_norm:
            del options["eps"]
    masked = rng.random() < 0.5
    if masked:
        options["key_mask"] = rng.random((batch, TOKENS)) < 0.8
    in_room = {"kernels": room} if room and layer is not multi_head else {}

    def forward(x, params, **where):
        drawn = {"rng": np.random.default_rng(5)} if options.get("dropout") else {}
        return layer.forward(x, params, inside.mechanism, heads=HEADS, **options, **where, **drawn)

    x = normal(rng, dtype, batch, TOKENS, WIDTH)

    def steps():
        attention = params if layer is multi_head else params.attention
        state = multi_head.init_state(batch, attention, inside.mechanism, heads=HEADS, **inside.more)
        outs = []
        for t in range(TOKENS):
            more = {name: options[name] for name in ("activation", "eps") if name in options}
            y_t, state = layer.step(x[:, t], params, state, inside.mechanism, heads=HEADS, **more)
            outs.append(y_t)
        return np.stack(outs, axis=1)

    by_step = inside.causal and inside.mechanism.step and not masked and not options.get("dropout")
    return Drawn(
        f"{layer.__name__} of {inside}",
        partial(forward, **in_room),
        layer.backward,
        (x, params),
        dtype,
        steps=steps if by_step else None,
        others=forward if in_room else None,
        about={k: getattr(v, "__name__", v) for k, v in (options | in_room).items()},
    )


# --- Models ---------------------------------------------------------------------------------------------------------


def _inside(rng, d, room, *, causal):
    """A mechanism for heads of width ``d``; whether it can go token by token."""
    kernels = {"kernels": room} if room else {}
    omega = feature_maps.orthogonal_gaussian(6, d, rng)
    short = 0.7 * omega / np.linalg.norm(omega, axis=-1, keepdims=True)
    choices = [
        (softmax, kernels),
        (linear, kernels),
        (performer, {"omega": omega, **kernels}),
        (rfa, {"omega": short, "eps": 0.1, **kernels}),
    ]
    if causal:
        choices.append((sparse_transformer, {"kind": "strided", "stride": integer(rng, 1, 5), **kernels}))
    else:
        choices.append((local, {"window": integer(rng, 1, 4), **kernels}))
    module, options = choices[rng.integers(len(choices))]
    more = {"causal": True} if causal and module is not sparse_transformer else {}
    return mechanism.of(module, **options, **more), module.__name__.rpartition(".")[2]


def _sizes(rng):
    """A norm of two numbers is their sign, and of one or two units ReLU may leave nothing: at a kink, no slope."""
    heads, d = integer(rng, 1, 3), 2 * integer(rng, 2, 3)
    return heads, d, {"width": heads * d, "hidden": integer(rng, 6, 16), "layers": integer(rng, 1, 3)}


def _anywhere(params, rng):
    """Biases away from 0, ReLU's kink, and embeddings of size 1, of which a step is a small part."""
    for _, x in leaves(params):
        x += (0.1 * rng.standard_normal(x.shape)).astype(x.dtype)
    for name in ("embedding", "positions", "types"):
        part = getattr(params, name, None)
        if part is not None:
            part.table[...] *= 10
    return params


def draw_causal(rng, dtype, room):
    heads, d, sizes = _sizes(rng)
    inside, name = _inside(rng, d, room, causal=True)
    n, batch, vocabulary = integer(rng, 1, 8), integer(rng, 1, 3), integer(rng, 2, 9)
    block = [*BLOCKS][rng.integers(3)]
    params = causal.draw(
        rng, tokens=vocabulary, places=n + integer(rng, 0, 2), block=BLOCKS[block], dtype=dtype, **sizes
    )
    params = laid(_anywhere(params, rng), rng)
    more = {
        "block": BLOCKS[block],
        "activation": [gelu, relu][rng.integers(2)],
        "dropout": float(rng.choice([0.0, 0.2])),
    }
    model = causal.Model(inside, heads=heads, **more, **({"kernels": room} if room else {}))
    tokens = laid_out(rng.integers(0, vocabulary, (batch, n)), rng)

    def forward(tokens, params):
        drawn = {"rng": np.random.default_rng(5)} if model.dropout else {}
        return causal.forward(tokens, params, model, **drawn)

    def steps():
        state, outs = causal.init_state(batch, params, model), []
        for t in range(n):
            scores, state = causal.step(tokens[:, t], params, state, model)
            outs.append(scores)
        return np.stack(outs, axis=1)

    by_step = inside.step and not model.dropout
    about = {"mechanism": name, "heads": heads, "room": room and room.__name__, **sizes, **more}
    return Drawn(
        "causal", forward, causal.backward, (tokens, params), dtype, steps=steps if by_step else None, about=about
    )


def draw_encoder(rng, dtype, room):
    heads, d, sizes = _sizes(rng)
    n, batch, vocabulary = integer(rng, 1, 8), integer(rng, 1, 3), integer(rng, 2, 9)
    inside, name = _inside(rng, d, room, causal=False)
    own = None
    if rng.random() < 0.2:
        inside, name = mechanism.of(linformer), "linformer"
        own = [tuple(rng.standard_normal((2, integer(rng, 1, n), n)).astype(dtype)) for _ in range(sizes["layers"])]
    types = integer(rng, 0, 2)
    params = encoder.draw(rng, tokens=vocabulary, places=n, types=types, own=own, dtype=dtype, **sizes)
    block = [pre_norm, post_norm][rng.integers(2)]
    model = encoder.Model(
        inside,
        heads=heads,
        block=block,
        activation=[gelu, gelu_tanh][rng.integers(2)],
        **({"kernels": room} if room else {}),
    )
    params = laid(_anywhere(params, rng), rng)
    tokens = laid_out(rng.integers(0, vocabulary, (batch, n)), rng)
    mask = rng.random((batch, n)) < 0.8
    mask[:, 0] = True
    options = {"key_mask": mask if rng.random() < 0.6 else None}
    if types:
        options["types"] = rng.integers(0, types, (batch, n))
    head = [encoder, classifier, masked_tokens][rng.integers(3)]
    if head is classifier:
        params = classifier.draw(params, integer(rng, 1, 4), rng)
        options["pool"] = str(rng.choice(["mean", "first"]))
    if head is masked_tokens:
        params = masked_tokens.draw(params, rng, tied=bool(rng.random() < 0.5))
        options["chosen"] = np.sort(rng.choice(batch * n, integer(rng, 1, batch * n), replace=False))

    def forward(tokens, params):
        return head.forward(tokens, params, model, **options)

    about = {"mechanism": name, "heads": heads, "room": room and room.__name__, "block": block.__name__, **sizes}
    return Drawn(head.__name__, forward, head.backward, (tokens, params), dtype, about=about | options)


def draw_speech(rng, dtype, room):
    heads, d, sizes = _sizes(rng)
    inside, name = _inside(rng, d, room, causal=False)
    n, batch, inputs = integer(rng, 1, 8), integer(rng, 1, 3), integer(rng, 1, 5)
    frames, lengths = normal(rng, dtype, batch, n, inputs), rng.integers(1, n + 1, batch)
    options = {"lengths": lengths if rng.random() < 0.7 else None}
    options = {k: x for k, x in options.items() if x is not None}
    if rng.random() < 0.5:
        params = speech_lstm.draw(
            rng, inputs=inputs, labels=4, hidden=integer(rng, 1, 4), layers=integer(rng, 1, 2), dtype=dtype
        )
        run, backward, name = speech_lstm.forward, speech_lstm.backward, "lstm"
    else:
        params = speech.draw(rng, inputs=inputs, labels=4, dtype=dtype, **sizes)
        model = speech.Model(inside, heads=heads, **({"kernels": room} if room else {}))
        run, backward = partial(speech.forward, model=model), speech.backward

    def forward(frames, params):
        return run(frames, params, **options)

    about = {"mechanism": name, "room": room and room.__name__, **options}
    return Drawn("speech", forward, backward, (frames, laid(_anywhere(params, rng), rng)), dtype, about=about)


# Each as often as it has parts that differ.
KINDS = (*LAYERS, *[draw_attention] * 8, *[draw_causal] * 5, *[draw_encoder] * 5, *[draw_speech] * 3)
