"""Options that are True or False are nothing else, whichever function has them."""

from functools import partial

import numpy as np
import pytest

from linattn_ref import conform
from linattn_ref.attention import delta, feature_maps, linear, performer, softmax
from linattn_ref.models import encoder, masked_tokens
from linattn_ref.nn import ctc, logistic_mixture
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
    (partial(random_features.draw_directions, 3, 4, 2, RNG), "regular"),
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


@wrong_ones
def test_so_it_is_where_a_kernel_is_judged(wrong):
    with pytest.raises(TypeError, match=r"^full: expected True or False"):
        conform.check(softmax, "softmax", full=wrong)
