"""The figure of the gate: weights fade as the formula says, and the learned gate does what one number cannot."""

import numpy as np
import pytest
from quick import quick

from linattn_ref.attention import rfa
from linattn_ref.attention.feature_maps import gaussian
from linattn_ref.experiments.publishing import chapter, style
from linattn_ref.experiments.recurrence import rfa_decay


@pytest.fixture(scope="module")
def results():
    return quick("rfa_decay")


def test_weights_are_the_formulas(results):
    n, heads = results.length, results.heads
    for gate, weights in zip(results.gates, results.weights, strict=True):
        share = (1 - gate) * gate ** results.distances.astype(float) / (1 - gate**n)
        # A weight is a share of random similarities, which differ by a factor of at most about 2 either way
        np.testing.assert_allclose(weights, share, rtol=4 * 0.5 / np.sqrt(heads))
        assert weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(results.without, 1 / n, rtol=4 * 0.5 / np.sqrt(heads))


def test_reach(results):
    expected = np.log(0.1) / np.log(results.gates)
    short = expected < results.length / 5  # where what lies before the sequence has no weight
    assert short.sum() >= 3
    np.testing.assert_allclose(results.reach[short], expected[short], rtol=0.08)
    assert rfa_decay.distance_with(np.array([0.5, 0.4, 0.1]), 0.9) == pytest.approx(2)
    assert rfa_decay.distance_with(np.array([0.8, 0.2]), 0.9) == pytest.approx(1.5)


def test_last_row_is_that_of_the_matrix():
    omega = gaussian(64, 5, np.random.default_rng(0))
    row = rfa_decay.last_row(omega, 0.8, 12, np.random.default_rng(1))
    q, k = np.random.default_rng(1).standard_normal((2, 12, 5))
    matrix = rfa.matrix(q, k, omega, np.full(12, 0.8), causal=True, eps=0.0)
    np.testing.assert_allclose(row, matrix[-1, ::-1], rtol=1e-12)
    gates = np.random.default_rng(2).uniform(0, 1, 9)
    np.testing.assert_allclose(rfa_decay.gate_powers(gates), rfa.recency(gates)[-1], rtol=1e-14)


def test_the_gate_learns_to_close_at_a_mark(results):
    none, constant, learned = (results.latch[form] for form in ("none", "constant", "learned"))
    assert learned.losses[-20:].mean() < 0.05
    assert min(none.losses[-20:].mean(), constant.losses[-20:].mean()) > 0.7
    assert learned.gate_marked < 0.1
    assert learned.gate_other > 0.95


def test_targets_are_the_values_at_the_last_mark():
    batch = rfa_decay.draw_batch(np.random.default_rng(0), size=3, length=20)
    for b in range(3):
        for t in range(20):
            last = np.flatnonzero(batch.marked[b, : t + 1])[-1]
            np.testing.assert_array_equal(batch.target[b, t], batch.v[b, last])


def test_no_name_lies_on_a_line():
    with style.use():
        figure = rfa_decay.draw(chapter.results("rfa_decay"))
        figure.draw_without_rendering()
    weight = figure.axes[0]
    for line in weight.lines:
        drawn_line = line.get_transform().transform_path(line.get_path())
        crossed = [text.get_text() for text in weight.texts if drawn_line.intersects_bbox(text.get_window_extent())]
        assert crossed == []
