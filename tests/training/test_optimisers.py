"""Optimisers step by their formulas, typed anew; in place, in their dtype, over arrays and trees of arrays."""

import math
import re
from typing import NamedTuple

import numpy as np
import pytest

from linattn_ref.kernels import jit, reference
from linattn_ref.training import adam, radam, sgd

STEPS = 12
RNG = np.random.default_rng(0)
START, GRADS = RNG.standard_normal(5), RNG.standard_normal((STEPS, 5))


def run(optimiser, dtype=np.float64, **options):
    p, state = START.astype(dtype), optimiser.init_state(START.astype(dtype))
    for g in GRADS.astype(dtype):
        state = optimiser.step(p, g, state, **options)
    assert p.dtype == dtype
    return p


def plain_sgd(lr, mu, decay, nesterov):
    p, b = START.copy(), None
    for g in GRADS:
        g = g + decay * p
        b = g if b is None else mu * b + g
        p = p - lr * (g + mu * b if nesterov else b)
    return p


def plain_adam(lr, betas, eps, decay, decoupled, rectified):
    p, m, v = START.copy(), 0, 0
    b1, b2 = betas
    for t, g in enumerate(GRADS, 1):
        if decoupled:
            p = p - lr * decay * p
        else:
            g = g + decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        if not rectified:
            p = p - lr * m_hat / (np.sqrt(v / (1 - b2**t)) + eps)
            continue
        longest = 2 / (1 - b2) - 1
        length = longest - 2 * t * b2**t / (1 - b2**t)
        if length > 5:
            r = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
            p = p - lr * m_hat * r * math.sqrt(1 - b2**t) / (np.sqrt(v) + eps)
        else:
            p = p - lr * m_hat
    return p


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("mu", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd(mu, nesterov, decay):
    got = run(sgd, learning_rate=0.05, momentum=mu, weight_decay=decay, nesterov=nesterov)
    np.testing.assert_allclose(got, plain_sgd(0.05, mu, decay, nesterov), rtol=1e-13)


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
def test_defaults_are_those_of_pytorch(kernels):
    np.testing.assert_allclose(run(sgd), plain_sgd(1e-3, 0.0, 0.0, False), rtol=1e-13)
    for optimiser, decoupled in ((adam, False), (adam, True), (radam, False), (radam, True)):
        decay = 0.01 if decoupled and optimiser is adam else 0.0
        expected = plain_adam(1e-3, (0.9, 0.999), 1e-8, decay, decoupled, optimiser is radam)
        np.testing.assert_allclose(run(optimiser, decoupled=decoupled, kernels=kernels), expected, rtol=1e-13)


def test_nesterovs_momentum_needs_one():
    state = sgd.init_state(START)
    for error, options in ((ValueError, {"nesterov": True}), (TypeError, {"nesterov": 1, "momentum": 0.5})):
        with pytest.raises(error, match=r"^nesterov: expected"):
            sgd.step(START, GRADS[0], state, learning_rate=0.1, **options)


@pytest.mark.parametrize("optimiser", [adam, radam])
@pytest.mark.parametrize(("decay", "decoupled"), [(0.0, False), (0.1, False), (0.1, True)])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.9)])
def test_adam_and_radam(optimiser, decay, decoupled, betas):
    options = {"learning_rate": 0.05, "betas": betas, "eps": 1e-3}
    got = run(optimiser, weight_decay=decay, decoupled=decoupled, **options)
    expected = plain_adam(0.05, betas, 1e-3, decay, decoupled, optimiser is radam)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    single = run(optimiser, np.float32, weight_decay=decay, decoupled=decoupled, **options)
    np.testing.assert_allclose(single, expected, rtol=1e-4)


def test_radam_trusts_nothing_at_first_and_all_in_the_end():
    known = [radam.rectification(t, 0.999) for t in (1, 5, 6, 100, 10**6)]
    assert known[:2] == [None, None]
    assert 0 < known[2] < known[3] < known[4] <= 1
    assert known[4] == pytest.approx(1)


@pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_squares_beyond_the_range(room):
    """RAdam's first steps do not look at them, and Adam takes a step of 0."""
    dtype, large = (np.float64, 1e160) if room is jit else (np.float32, 1e25)  # one is compiled for tests anyway
    g = np.array([large, 1], dtype)
    for optimiser, expected in ((radam, g), (adam, [0, 1])):
        p = np.zeros(2, dtype)
        optimiser.step(p, g, optimiser.init_state(p), learning_rate=1.0, kernels=room)
        np.testing.assert_allclose(-p, expected, rtol=1e-6)


@pytest.mark.parametrize("optimiser", [sgd, adam, radam])
def test_bad_arguments_are_named(optimiser):
    p, state = START.copy(), optimiser.init_state(START)
    with pytest.raises(ValueError, match=r"grads: expected shape of params = \(5,\), got \(4,\)"):
        optimiser.step(p, np.ones(4), state, learning_rate=0.1)
    with pytest.raises(TypeError, match="grads: expected float64"):
        optimiser.step(p, np.ones(5, np.float32), state, learning_rate=0.1)
    for wrong in (float("nan"), None):
        with pytest.raises(ValueError, match=f"learning_rate: expected a finite number of at least 0, got {wrong}"):
            optimiser.step(p, np.ones(5), state, learning_rate=wrong)
    if optimiser is radam:  # Adam's is another for its two kinds of decay
        with pytest.raises(ValueError, match="weight_decay: expected a finite number of at least 0, got None"):
            optimiser.step(p, np.ones(5), state, weight_decay=None)
    optimiser.step(p, np.ones(5), state, learning_rate=0.1)
    p.setflags(write=False)  # the next call is of a kind that is known
    with pytest.raises(ValueError, match="params: expected an array that can be written to"):
        optimiser.step(p, np.ones(5), state, learning_rate=0.1)
    state[0].setflags(write=False)
    with pytest.raises(ValueError, match=r"state\.\w+: expected an array that can be written to"):
        optimiser.step(p.copy(), np.ones(5), state, learning_rate=0.1)


@pytest.mark.parametrize("betas", [(1.0, 0.9), (0.9, 1.0), (0.9, np.nan), (-0.1, 0.9), (0.9,), (False, 0.9)], ids=str)
@pytest.mark.parametrize("optimiser", [adam, radam])
def test_betas_are_two_numbers_below_1(optimiser, betas):
    with pytest.raises(ValueError, match=rf"^betas: expected two numbers .* below 1, got {re.escape(repr(betas))}"):
        optimiser.step(START.copy(), GRADS[0], optimiser.init_state(START), betas=betas)


@pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize("optimiser", [sgd, adam, radam])
@pytest.mark.parametrize("view", [np.s_[4:8], np.s_[:, 1:3], np.s_[::2, ::-1], np.s_[2], np.s_[:, 3]], ids=str)
def test_a_parameter_may_be_any_part_of_a_larger_array(optimiser, room, view):
    """One or two axes, with gaps or without: it alone is moved, and as if it lay by itself."""
    everything = np.random.default_rng(1).standard_normal((40, 5))
    before, grads = everything.copy(), np.random.default_rng(2).standard_normal((7, *everything[view].shape))
    alone, p = everything[view].ravel(), everything[view]
    options = {"learning_rate": 0.1, "weight_decay": 0.1}
    if optimiser is not sgd:
        options["kernels"] = room
    state, of_alone = optimiser.init_state(p), optimiser.init_state(alone)
    for g in grads:
        state = optimiser.step(p, g, state, **options)
        of_alone = optimiser.step(alone, g.ravel(), of_alone, **options)
    np.testing.assert_allclose(p.ravel(), alone, rtol=1e-13)
    everything[view] = before[view]
    np.testing.assert_array_equal(everything, before)


class Pair(NamedTuple):
    w: np.ndarray
    b: np.ndarray | None
    deeper: tuple[np.ndarray, ...] = ()


@pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize("optimiser", [sgd, adam, radam])
def test_a_tree_is_stepped_array_by_array(optimiser, room):
    """As each array would be by itself; an array in two places once, by the sum of its gradients."""
    rng = np.random.default_rng(3)
    w, e = rng.standard_normal((3, 2)), rng.standard_normal(4)
    tree = Pair(w.copy(), None, (e.copy(),) * 2)
    options = {"learning_rate": 0.1, "weight_decay": 0.1} | ({} if optimiser is sgd else {"kernels": room})
    state, of_w, of_e = (optimiser.init_state(each) for each in (tree, w, e))
    for _ in range(7):
        grads = Pair(rng.standard_normal(w.shape), None, tuple(rng.standard_normal((2, 4))))
        state = optimiser.step(tree, grads, state, **options)
        of_w = optimiser.step(w, grads.w, of_w, **options)
        of_e = optimiser.step(e, sum(grads.deeper), of_e, **options)
    np.testing.assert_array_equal(tree.w, w)
    np.testing.assert_array_equal(tree.deeper, [e, e])
    with pytest.raises(TypeError, match=r"grads: expected the structure of params"):
        optimiser.step(tree, (w, e), state, **options)
    for odd in (np.matrix, np.ma.MaskedArray):  # whose products and sums are others
        wrong = tree._replace(w=w.view(odd))
        for called, trees in (("params", (wrong, tree)), ("grads", (tree, wrong))):
            with pytest.raises(TypeError, match=rf"{called}\.w: expected a numpy\.ndarray, got {odd.__name__}"):
                optimiser.step(*trees, state, **options)
    with pytest.raises(TypeError, match=r"params: expected an array with axes, or arrays in NamedTuples"):
        optimiser.step(Pair(None, None), Pair(None, None), optimiser.init_state(Pair(None, None)), **options)


@pytest.mark.parametrize(
    ("t", "beta_2", "told"), [(0, 0.999, "t: expected an integer of at least 1"), (3, 1.0, "beta_2: ")]
)
def test_a_rectification_of_nothing_is_named(t, beta_2, told):
    with pytest.raises(ValueError, match=f"^{told}"):
        radam.rectification(t, beta_2)
