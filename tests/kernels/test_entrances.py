"""What a compiled kernel refuses: lengths that do not fit, behind which it would go on; and layouts that it takes."""

import re

import numpy as np
import pytest

from linattn_ref.kernels import jit
from linattn_ref.kernels.jit import loops

X, W = np.ones((4, 6)), np.ones(6)
HEADS = np.ones((2, 7, 3))
ROW, S, Z = np.ones((2, 3)), np.ones((2, 3, 3)), np.ones((2, 3))
ADAM = {"betas": (0.9, 0.999), "size": 0.1, "root": 1.0, "eps": 1e-8}
LSTM = np.ones((5, 2, 3)), np.ones((3, 8)), np.ones((2, 8)), np.ones(8)
TARGETS, SHARE = np.zeros(4, int), np.ones(4)
LABELS, COUNTS = np.ones((2, 2), int), np.full(2, 3)


def refused(call, *arguments, **options):
    return pytest.param(call, arguments, options, id=f"{call.__module__.rpartition('.')[2]}.{call.__name__}")


@pytest.mark.parametrize(
    ("call", "arguments", "options"),
    [
        refused(loops.adam.step, W.copy(), W[:3], W.copy(), W.copy(), **ADAM),
        refused(loops.adam.step, W.copy(), W, W[:5].copy(), W.copy(), **ADAM),
        refused(loops.gelu.forward, X, W[:5]),
        refused(loops.gelu.forward, X, X),
        refused(loops.layer_norm.forward, X, W, W[:5], 1e-5),
        refused(loops.layer_norm.forward, X, W[:5], W, 1e-5),
        refused(loops.layer_norm.backward, X, X, np.ones((3, 1)), np.ones((4, 1)), W),
        refused(loops.cross_entropy.forward, X, TARGETS[:3], SHARE),
        refused(loops.cross_entropy.forward, X, TARGETS, SHARE[:3]),
        refused(loops.ctc.forward, HEADS, LABELS[:1], COUNTS, COUNTS, np.ones(2)),
        refused(loops.ctc.forward, HEADS, LABELS, COUNTS[:1], COUNTS, np.ones(2)),
        refused(loops.lstm.forward, LSTM[0], LSTM[1][:2], *LSTM[2:]),
        refused(jit.causal_product.forward, HEADS, HEADS[:1], HEADS, None),
        refused(jit.causal_product.forward, HEADS, HEADS[:, :5], HEADS, None),
        refused(jit.causal_product.step, ROW, ROW[:, :2].copy(), ROW, S, Z, 0.5),
        refused(jit.causal_product.step, ROW, ROW, ROW, S[:1], Z, 0.5),
        refused(jit.causal_product.step, ROW, ROW, ROW, S[..., :2].copy(), Z, 0.5),
        refused(jit.elu_plus_one.step, ROW, ROW, ROW, S, Z[:1], 0.5),
        refused(jit.elu_plus_one.backward, HEADS.copy(), HEADS[:, :5]),
        refused(jit.exponential_features.over_all_keys, HEADS, HEADS, np.ones((4, 2)), HEADS),
        refused(jit.exponential_features.over_all_keys, HEADS, HEADS[:, :5], np.ones((4, 3)), HEADS),
    ],
)
def test_lengths_that_do_not_fit_are_refused(call, arguments, options):
    with pytest.raises(ValueError, match="expected"):
        call(*arguments, **options)


def test_an_error_names_the_kernel_the_argument_and_both_lengths():
    message = "gelu._forward: bias: expected W = 6 in (1 W), got shape (1, 5)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        loops.gelu.forward(X, W[:5])


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
    _, *kept = loops.layer_norm.forward(x, gain, bias, 1e-5)
    for got, expected in (
        (loops.gelu.forward(x, odd), loops.gelu.forward(x, bias)),
        (loops.layer_norm.forward(x, other, odd, 1e-5), loops.layer_norm.forward(x, gain, bias, 1e-5)),
        (loops.layer_norm.backward(d_y, x, *kept, other), loops.layer_norm.backward(d_y, x, *kept, gain)),
        (
            loops.cross_entropy.forward(x, np.repeat(targets, 2)[::2], abs(strange)),
            loops.cross_entropy.forward(x, targets, abs(share)),
        ),
        (
            loops.ctc.forward(np.stack([x, d_y]), LABELS, counts, COUNTS - 1, abs(strange)[:2]),
            loops.ctc.forward(np.stack([x, d_y]), LABELS, np.array([3, 4]), COUNTS - 1, abs(share)[:2]),
        ),
    ):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
