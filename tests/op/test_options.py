"""Options are what they may be, whichever function has them: True or False, one of some choices, a dtype, an rng."""

import re
from functools import partial
from inspect import signature

import numpy as np
import pytest

from linattn_ref import conform
from linattn_ref.attention import bigbird, delta, feature_maps, gated_linear, linear, performer, softmax
from linattn_ref.attention.parts import lsh_hashing
from linattn_ref.models import causal, classifier, encoder, masked_tokens, speech, speech_lstm
from linattn_ref.nn import (
    affine,
    block,
    cross_entropy,
    ctc,
    embedding,
    feed_forward,
    layer_norm,
    logistic_mixture,
    lstm,
    multi_head,
    positions,
)
from linattn_ref.op.options import check_choice
from linattn_ref.theory import random_features
from linattn_ref.training import adam, radam, sgd

X, ONES, RNG = np.random.default_rng(0).standard_normal((3, 4)), np.ones(3), np.random.default_rng(0)
SIZES = {"tokens": 5, "places": 3, "width": 4, "hidden": 4, "layers": 1}
TARGETS, MEASURED = np.array([[1]]), {"trials": 2, "rng": RNG}
FLAGS = [  # a call without the flag, and its name
    (partial(delta.forward, X, X, X, ONES), "normalise"),
    (partial(delta.step, *X, delta.init_state((), 4, 4), np.array(1.0)), "normalise"),
    (partial(linear.forward, X, X, X), "causal"),
    (partial(softmax.matrix, X, X), "causal"),
    (partial(feature_maps.orthogonal_gaussian, 3, 4, RNG), "regular"),
    (partial(performer.redraw, X, RNG), "orthogonal"),
    (partial(performer.redraw, X, RNG, orthogonal=False), "regular"),
    (partial(random_features.mse, "trig", X, X, 3), "orthogonal"),
    (partial(random_features.relative_mse, "trig", X, X, 3), "orthogonal"),
    (partial(random_features.draw_directions, 3, 4, 2, RNG), "orthogonal"),
    (partial(random_features.draw_directions, 3, 4, 2, RNG, orthogonal=True), "regular"),
    (partial(random_features.squared_errors, "trig", *X[:2], 3, **MEASURED), "orthogonal"),
    (partial(ctc.forward, X[None], TARGETS), "infinite_to_zero"),
    (partial(logistic_mixture.forward, X[:, :3], np.arange(3)), "switch"),
    (partial(masked_tokens.draw, encoder.draw(RNG, **SIZES), RNG), "tied"),
    (partial(adam.step, X.copy(), X, adam.init_state(X)), "decoupled"),
    (partial(radam.step, X.copy(), X, radam.init_state(X)), "decoupled"),
    (partial(sgd.step, X.copy(), X, sgd.init_state(X), momentum=0.5), "nesterov"),
]
each = pytest.mark.parametrize(("call", "name"), FLAGS, ids=lambda x: x if isinstance(x, str) else x.func.__module__)
wrong_ones = pytest.mark.parametrize("wrong", ["no", 1, None, np.array([True])], ids=repr)


@each
@wrong_ones
def test_what_is_merely_true_or_false_as_a_condition_is_refused(call, name, wrong):
    with pytest.raises(TypeError, match=rf"^{name}: expected True or False, got "):
        call(**{name: wrong})


@each
@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_pythons_and_numpys_are_taken(call, name, kind):
    for flag in (True, False):
        call(**{name: kind(flag)})


@pytest.mark.parametrize("wrong", ["c", None, 1, ["a"], np.array(["a"])], ids=repr)
@pytest.mark.parametrize("choices", [("a", "b"), {"a": 1, "b": 2}], ids=type)
def test_what_is_none_of_the_choices_is_refused(wrong, choices):
    check_choice("kind", "b", choices)
    with pytest.raises(ValueError, match=r"^kind: expected one of a, b, got "):
        check_choice("kind", wrong, choices)


HEARD = {"inputs": 3, "labels": 3, "width": 4, "hidden": 4, "layers": 1}
DRAWN = [  # calls without a generator
    partial(affine.draw, 2, 3),
    partial(positions.draw, 2, 4),
    partial(embedding.draw, 2, 4),
    partial(lstm.draw, 2, 4),
    partial(block.draw, 4, 4),
    partial(causal.draw, **SIZES),
    partial(encoder.draw, **SIZES),
    partial(speech.draw, **HEARD),
    partial(lsh_hashing.draw_rotations, 2, 4, 6),
]
ENCODER = encoder.draw(RNG, **SIZES)
OF_NO_DTYPE = [
    partial(classifier.draw, ENCODER, 3),
    partial(masked_tokens.draw, ENCODER),
    partial(logistic_mixture.sample, np.ones((2, 30))),
    partial(bigbird.draw_random_blocks, 9, 1),
]
COUNTED = [  # calls that say how many
    *(partial(call, rng=RNG) for call in DRAWN if call.func.__name__ == "draw"),
    partial(feed_forward.draw, 2, 3, RNG),
    partial(multi_head.draw, 4, RNG),
    partial(layer_norm.draw, 4),
    partial(speech_lstm.draw, RNG, inputs=3, labels=3, hidden=4, layers=1),
    partial(classifier.draw, ENCODER, 3, RNG),
]
MADE = [  # calls without a dtype
    *(partial(call, rng=RNG) for call in DRAWN),
    partial(positions.sinusoidal, 2, 4),
    partial(layer_norm.draw, 4),
    partial(gated_linear.retention_gate, 2),
    partial(softmax.init_state, (2,), 3, 4),
]


@pytest.mark.parametrize("call", [partial(embedding.draw, 3, 2, RNG), partial(positions.draw, 3, 2, RNG)])
def test_a_scale_that_stands_for_nothing_is_refused(call):
    with pytest.raises(TypeError, match=r"^scale: expected a number, got None$"):
        call(scale=None)


@pytest.mark.parametrize("wrong", [None, "a", True, np.array(1j)])
def test_a_gradient_of_the_loss_is_a_number(wrong):
    _, saved = cross_entropy.forward(np.zeros((2, 3)), np.array([0, 2]))
    with pytest.raises(TypeError, match=f"^d_loss: expected a number, got {re.escape(repr(wrong))}"):
        cross_entropy.backward(wrong, saved)


def test_a_gradient_of_the_loss_may_be_an_array_without_axes_of_any_float():
    _, saved = cross_entropy.forward(np.zeros((2, 3)), np.array([0, 2]))
    expected = cross_entropy.backward(1.0, saved)
    for dtype in (np.float16, np.float64, pytest.importorskip("ml_dtypes").bfloat16):
        found = cross_entropy.backward(np.array(1, dtype), saved)
        np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.mark.parametrize("call", [*DRAWN, *OF_NO_DTYPE], ids=lambda call: call.func.__module__)
@pytest.mark.parametrize("wrong", [0, None, np.random, np.random.RandomState(0)], ids=["seed", "none", "module", "old"])
def test_a_generator_is_one_of_numpys(call, wrong):
    call(rng=np.random.default_rng(0))
    with pytest.raises(TypeError, match=r"^rng: expected a numpy\.random\.Generator, got "):
        call(rng=wrong)


@pytest.mark.parametrize(
    ("call", "name"),
    [(call, name) for call in COUNTED for name, x in signature(call.func).parameters.items() if "int" in x.annotation],
    ids=lambda x: x if isinstance(x, str) else x.func.__module__,
)
def test_a_draw_makes_at_least_one_of_everything(call, name):
    given = signature(call.func).bind(*call.args, **call.keywords)
    may_be_none = name in ("types", "sinusoids")
    for wrong in [*[0][may_be_none:], -1, 2.5, True, "2", 10**30]:
        given.arguments[name] = wrong
        with pytest.raises(ValueError, match=rf"^{name}: expected "):
            call.func(*given.args, **given.kwargs)


@pytest.mark.parametrize("columns", [4, 5])
def test_sinusoids_leave_columns_to_the_embedding(columns):
    with pytest.raises(ValueError, match=rf"^sinusoids: expected fewer columns than width = 4, got {columns}"):
        causal.draw(RNG, **SIZES, sinusoids=columns)


@pytest.mark.parametrize("call", MADE, ids=lambda call: call.func.__module__)
@pytest.mark.parametrize("wrong", [int, "float16", np.complex128, "no dtype"], ids=str)
def test_a_dtype_is_float32_or_float64(call, wrong):
    call(dtype="float32")
    with pytest.raises(TypeError, match=r"^dtype: expected float32 or float64, got "):
        call(dtype=wrong)


@wrong_ones
def test_so_it_is_where_a_kernel_is_judged(wrong):
    with pytest.raises(TypeError, match=r"^full: expected True or False"):
        conform.check(softmax, "softmax", full=wrong)
