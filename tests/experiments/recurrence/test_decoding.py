"""The figure of decoding: its formulas are what is counted, and its record holds all of it."""

import numpy as np
import pytest
from looks import each_look

from linattn_ref.attention import linear, softmax
from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.recurrence import decoding
from linattn_ref.kernels import jit, reference

HEADS, WIDTH = 3, 32


@pytest.fixture(scope="module", params=[pytest.param(np.float32, marks=pytest.mark.slow), np.float64])
def results(request):
    rng = np.random.default_rng(0)
    return decoding.compute((1, 64, 300), rng=rng, heads=HEADS, width=WIDTH, rounds=2, dtype=request.param)


@pytest.mark.parametrize("network", ["linear", "softmax"])
def test_what_is_counted_is_what_the_formulas_say(results, network):
    costs = getattr(results, network)
    np.testing.assert_array_equal(costs.state, costs.state_formula)
    # On top comes linear attention's denominator: a number a feature, over 2 WIDTH = 64.
    assert (costs.multiply_adds >= costs.multiply_adds_formula).all()
    np.testing.assert_allclose(costs.multiply_adds[1:], costs.multiply_adds_formula[1:], rtol=0.1)


def test_one_is_constant_and_the_other_grows(results):
    assert len(set(results.linear.state)) == len(set(results.linear.multiply_adds)) == 1
    np.testing.assert_array_equal(results.softmax.state, results.positions * results.softmax.state[0])
    assert (np.diff(results.softmax.multiply_adds) > 0).all()


def test_a_time_for_every_position(results):
    for x in (results.linear.seconds, results.softmax.seconds, results.ratio, results.at_once):
        assert x.shape == results.positions.shape
        assert (x > 0).all()


@pytest.mark.parametrize("kernels", [reference, jit])
@pytest.mark.parametrize("position", [1, 7])
def test_the_token_is_made_at_its_position(position, kernels):
    setup = decoding.setup(position, HEADS, WIDTH, np.float64, np.random.default_rng(0), kernels=kernels)
    q, k, v = setup.qkv
    expected = linear.forward(q[:, -1:], k, v)[0][:, 0], softmax.forward(q[:, -1:], k, v)[0][:, 0]
    for each, out in zip((setup.linear, setup.softmax), expected, strict=True):
        np.testing.assert_allclose(decoding.make(each, *each.arrays)[0], out, rtol=0, atol=1e-14)  # size 1
    assert decoding.make(setup.softmax, *setup.softmax.arrays)[1].k.shape[-2] == position


@each_look
def test_the_figure_shows_the_results(results, look):
    with style.use(look):
        figure = decoding.draw(results)
        figure.draw_without_rendering()
    shown = [next(line for line in axis.lines if line.get_label() == "linear").get_ydata() for axis in figure.axes]
    np.testing.assert_array_equal(shown[0], results.linear.state / 1024)
    np.testing.assert_array_equal(shown[1], results.linear.multiply_adds / 1e3)
    np.testing.assert_array_equal(shown[2], results.linear.seconds * 1e6)
