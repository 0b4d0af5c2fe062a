"""What a compiled kernel refuses: lengths that do not fit, behind which it would go on; and layouts that it takes."""

import importlib
import pkgutil
import re

import numpy as np
import pytest

from linattn_ref.attention.sparse import part
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit import loops
from linattn_ref.kernels.jit.loops.entrance import Kernel
from linattn_ref.kernels.jit.loops.sparse import pattern_softmax

X, W = np.ones((4, 6)), np.ones(6)
HEADS = np.ones((2, 7, 3))
ROW, S, Z = np.ones((2, 3)), np.ones((2, 3, 3)), np.ones((2, 3))
ADAM = {"betas": (0.9, 0.999), "size": 0.1, "root": 1.0, "eps": 1e-8}
LSTM = np.ones((5, 2, 3)), np.ones((3, 8)), np.ones((2, 8)), np.ones(8)
TARGETS, SHARE = np.zeros(4, int), np.ones(4)
LABELS, COUNTS = np.ones((2, 2), int), np.full(2, 3)
SUMS, MASK = np.ones((2, 7)), np.ones((2, 7), bool)  # of queries
ORDER, SEEN = np.broadcast_to(np.arange(7), (2, 1, 7)), np.full(2, 7)
PART = part.band(7, 7, -1, 1, dilation=2)
GATE, STATE = np.ones((2, 7)), np.ones((2, 3, 3))
DELTA = HEADS, STATE, HEADS, HEADS, HEADS, HEADS, GATE, STATE, HEADS


def refused(call, *arguments, **options):
    return pytest.param(call, arguments, options, id=f"{call.__module__.rpartition('.')[2]}.{call.__name__}")


@pytest.mark.parametrize(
    ("call", "arguments", "options"),
    [
        refused(loops.layers.adam.step, W.copy(), W[:3], W.copy(), W.copy(), **ADAM),
        refused(loops.layers.adam.step, W.copy(), W, W[:5].copy(), W.copy(), **ADAM),
        refused(loops.layers.gelu.forward, X, W[:5]),
        refused(loops.layers.gelu.forward, X, X),
        refused(loops.layers.layer_norm.forward, X, W, W[:5], 1e-5),
        refused(loops.layers.layer_norm.forward, X, W[:5], W, 1e-5),
        refused(loops.layers.layer_norm.backward, X, X, np.ones((3, 1)), np.ones((4, 1)), W),
        refused(loops.layers.cross_entropy.forward, X, TARGETS[:3], SHARE),
        refused(loops.layers.cross_entropy.forward, X, TARGETS, SHARE[:3]),
        refused(loops.layers.ctc.forward, HEADS, LABELS[:1], COUNTS, COUNTS, np.ones(2)),
        refused(loops.layers.ctc.forward, HEADS, LABELS, COUNTS[:1], COUNTS, np.ones(2)),
        refused(loops.layers.lstm.forward, LSTM[0], LSTM[1][:2], *LSTM[2:]),
        refused(jit.loops.linear.causal_product.forward, HEADS, HEADS[:1], HEADS, None),
        refused(jit.loops.linear.causal_product.forward, HEADS, HEADS[:, :5], HEADS, None),
        refused(jit.loops.linear.causal_product.step, ROW, ROW[:, :2].copy(), ROW, S, Z, 0.5),
        refused(jit.loops.linear.causal_product.step, ROW, ROW, ROW, S[:1], Z, 0.5),
        refused(jit.loops.linear.causal_product.step, ROW, ROW, ROW, S[..., :2].copy(), Z, 0.5),
        refused(jit.loops.linear.elu_plus_one.step, ROW, ROW, ROW, S, Z[:1], 0.5),
        refused(jit.loops.linear.elu_plus_one.backward, HEADS.copy(), HEADS[:, :5]),
        refused(jit.loops.linear.exponential_features.over_all_keys, HEADS, HEADS, np.ones((4, 2)), HEADS),
        refused(jit.loops.linear.exponential_features.over_all_keys, HEADS, HEADS[:, :5], np.ones((4, 3)), HEADS),
    ],
)
def test_lengths_that_do_not_fit_are_refused(call, arguments, options):
    with pytest.raises(ValueError, match="expected"):
        call(*arguments, **options)


def replaced(arguments, place, x):
    return *arguments[:place], x, *arguments[place + 1 :]


def wrong(name, call, arguments, place, x):
    """What is refused with the argument's name, or these words, where ``arguments`` themselves are taken."""
    return pytest.param(name, call, replaced(arguments, place, x), id=f"{call.__name__}-{name}-{place}")


def cut(x, axis=-1):
    """One less along an axis."""
    return np.ascontiguousarray(np.take(x, np.arange(x.shape[axis] - 1), axis=axis))


def with_field(**fields):
    return (PART._replace(**fields),)


SOFTMAX = HEADS, HEADS, HEADS, MASK, True, 0.5
SOFTMAX_BACKWARD = HEADS, HEADS, HEADS, HEADS, HEADS, SUMS, SUMS, MASK, True, 0.5
PATTERN = HEADS, HEADS, HEADS, MASK, (PART,), 0.5
PATTERN_BACKWARD = HEADS, HEADS, HEADS, HEADS, HEADS, SUMS, SUMS, MASK, (PART,), 0.5
LSH = HEADS, HEADS, HEADS, ORDER, SEEN, 2, True, 0.5
LSH_BACKWARD = HEADS, HEADS, HEADS, HEADS, HEADS, SUMS, SUMS, ORDER, SEEN, 2, True, 0.5
STEP = ROW, HEADS, HEADS, 7, 0.5  # from a cache of seven rows


@pytest.mark.parametrize(
    ("name", "call", "arguments"),
    [
        wrong("table: expected D = 3", loops.softmax.softmax.forward, SOFTMAX, 1, HEADS[..., :2]),
        wrong("table: expected L = 7", loops.softmax.softmax.forward, SOFTMAX, 2, HEADS[:, :5]),
        wrong("table: expected D = 3", loops.softmax.softmax.backward, SOFTMAX_BACKWARD, 2, HEADS[..., :2]),
        wrong("table: expected L = 7", loops.softmax.softmax.backward, SOFTMAX_BACKWARD, 3, HEADS[:, :5]),
        wrong("length", loops.softmax.softmax.step, STEP, 3, 8),
        wrong("length", loops.softmax.softmax.step, STEP, 3, 0),
        wrong("expected q (..., D), k (..., capacity, D)", loops.softmax.softmax.step, STEP, 1, cut(HEADS)),
        wrong("expected the same leading axes of q, k, v", loops.softmax.softmax.step, STEP, 2, cut(HEADS, 1)),
        wrong("pattern", pattern_softmax.forward, PATTERN, 2, HEADS[:, :5]),
        wrong("part.queries", pattern_softmax.forward, PATTERN, 4, with_field(queries=PART.queries + 1)),
        wrong("part.queries", pattern_softmax.forward, PATTERN, 4, with_field(queries=PART.queries - 1)),
        wrong("pattern", pattern_softmax.forward, PATTERN, 4, with_field(keys=PART.keys + 1)),
        wrong("pattern", pattern_softmax.forward, PATTERN, 4, with_field(keys=PART.keys - 1)),
        wrong("part.high", pattern_softmax.forward, PATTERN, 4, with_field(high=PART.high + 7)),
        wrong("part.low", pattern_softmax.forward, PATTERN, 4, with_field(low=PART.low - 7)),
        wrong("part.low", pattern_softmax.forward, PATTERN, 4, with_field(low=PART.low[1:])),
        wrong("part.runs", pattern_softmax.forward, PATTERN, 4, with_field(runs=PART.runs + 7)),
        wrong("part.runs", pattern_softmax.forward, PATTERN, 4, with_field(runs=PART.runs[0])),
        wrong("part.first_run", pattern_softmax.forward, PATTERN, 4, with_field(first_run=PART.first_run + 9)),
        wrong("part.tiles", pattern_softmax.forward, PATTERN, 4, with_field(tiles=PART.tiles + 9)),
        wrong("part.keys", pattern_softmax.backward, PATTERN_BACKWARD, 8, with_field(keys=PART.keys + 1)),
        wrong("pattern", pattern_softmax.backward, PATTERN_BACKWARD, 8, with_field(queries=PART.queries - 1)),
        wrong("order", loops.sparse.lsh.forward, LSH, 3, ORDER + 1),
        wrong("order", loops.sparse.lsh.forward, LSH, 3, ORDER - 1),
        wrong("seen", loops.sparse.lsh.forward, LSH, 4, SEEN + 1),
        wrong("seen", loops.sparse.lsh.forward, LSH, 4, -SEEN),
        wrong("table: expected D = 3", loops.sparse.lsh.forward, LSH, 1, HEADS[..., :2]),
        wrong("order", loops.sparse.lsh.backward, LSH_BACKWARD, 7, ORDER + 1),
        wrong("seen", loops.sparse.lsh.backward, LSH_BACKWARD, 8, SEEN + 1),
        wrong("table: expected C = 2", loops.delta.delta_product.backward, DELTA, 2, HEADS[..., :2]),
        wrong("table: expected M = 2", loops.delta.delta_product.backward, DELTA, 0, HEADS[..., :2]),
        wrong("targets", loops.layers.cross_entropy.forward, (X, TARGETS, SHARE), 1, TARGETS + 6),
        wrong("targets", loops.layers.cross_entropy.forward, (X, TARGETS, SHARE), 1, TARGETS - 1),
        wrong("targets", loops.layers.ctc.forward, (HEADS, LABELS, COUNTS, COUNTS - 1, np.ones(2)), 1, LABELS + 2),
        wrong("frames", loops.layers.ctc.forward, (HEADS, LABELS, COUNTS, COUNTS - 1, np.ones(2)), 2, COUNTS + 5),
        wrong("lengths", loops.layers.ctc.forward, (HEADS, LABELS, COUNTS, COUNTS - 1, np.ones(2)), 3, COUNTS),
    ],
)
def test_what_does_not_fit_and_indices_out_of_range_are_refused(name, call, arguments):
    told = name if "expected" in name else f"{name}: expected"
    with pytest.raises(ValueError, match=rf"(^| ){re.escape(told)}"):
        call(*arguments)


def test_every_kernel_says_what_it_takes():
    """Or nothing would find what does not fit."""
    for found in pkgutil.walk_packages(loops.__path__, f"{loops.__name__}."):
        module = importlib.import_module(found.name)
        for word, x in vars(module).items():
            if isinstance(x, Kernel) and x.__module__ == module.__name__:
                assert x.entrance.said, f"{found.name}.{word}"


def test_an_error_names_the_kernel_the_argument_and_both_lengths():
    message = "gelu._forward: bias: expected W = 6 in (1 W), got shape (1, 5)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        loops.layers.gelu.forward(X, W[:5])


def views(rng, *shape):
    """The same numbers: whole, between others, in reverse, and not to be written to."""
    x = rng.standard_normal(shape)
    wide, back, fixed = np.full((*shape[:-1], 2 * shape[-1]), np.nan), x[..., ::-1].copy()[..., ::-1], x.copy()
    wide[..., 1::2] = x
    fixed.setflags(write=False)
    return x, wide[..., 1::2], back, fixed


@pytest.mark.parametrize("layout", [1, 2, 3], ids=["gaps", "reversed", "read-only"])
def test_vectors_of_any_layout_are_read_as_they_are(layout):
    """Biases, gains, shares and counts, which no test of layouts passes otherwise."""
    rng = np.random.default_rng(0)
    x, d_y = rng.standard_normal((2, 4, 6))
    (bias, odd), (gain, other) = ([each[i] for i in (0, layout)] for each in (views(rng, 6), views(rng, 6)))
    share, strange = (each for i, each in enumerate(views(rng, 4)) if i in (0, layout))
    targets = np.array([5, 0, 3, 1])
    counts = np.repeat(np.array([3, 4]), 2)[::2]
    _, *kept = loops.layers.layer_norm.forward(x, gain, bias, 1e-5)
    for got, expected in (
        (loops.layers.gelu.forward(x, odd), loops.layers.gelu.forward(x, bias)),
        (loops.layers.layer_norm.forward(x, other, odd, 1e-5), loops.layers.layer_norm.forward(x, gain, bias, 1e-5)),
        (loops.layers.layer_norm.backward(d_y, x, *kept, other), loops.layers.layer_norm.backward(d_y, x, *kept, gain)),
        (
            loops.layers.cross_entropy.forward(x, np.repeat(targets, 2)[::2], abs(strange)),
            loops.layers.cross_entropy.forward(x, targets, abs(share)),
        ),
        (
            loops.layers.ctc.forward(np.stack([x, d_y]), LABELS, counts, COUNTS - 1, abs(strange)[:2]),
            loops.layers.ctc.forward(np.stack([x, d_y]), LABELS, np.array([3, 4]), COUNTS - 1, abs(share)[:2]),
        ),
    ):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
