"""The figure of rewinding: what it shows is so, and both ways are the same in exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from quick import drawn, quick

from linattn_ref.attention import gated_linear
from linattn_ref.experiments.recurrence import rewind

EPS = float(np.finfo(np.float32).eps)


@pytest.fixture(scope="module")
def results():
    return quick("rewind")


def draw(n, dtype):
    rng = np.random.default_rng(1)
    return rng.standard_normal((n, 2, 3)).astype(dtype), rng.standard_normal((n, 2, 4)).astype(dtype)


def test_the_last_state_forward_is_the_pages():
    phi_k, v = draw(50, np.float64)
    gate = np.full((2, 50), 0.9)
    heads_first = [x.swapaxes(0, 1) for x in (phi_k, phi_k, v)]  # (H, N, C), ...
    _, saved = gated_linear.forward(*heads_first, np.log(gate))
    np.testing.assert_allclose(rewind.forward_states(phi_k, v, 0.9)[-1], saved.state.s, rtol=1e-13, atol=1e-13)


def test_rewinding_is_right_where_nothing_is_rounded():
    rng = np.random.default_rng(2)
    phi_k, v = (rng.integers(-8, 9, (20, 2, width)).astype(np.float32) for width in (3, 4))
    states = rewind.forward_states(phi_k, v, np.float32(1))  # small whole numbers: exact
    np.testing.assert_array_equal(rewind.rewound_states(states[-1], phi_k, v, np.float32(1)), states)


def test_an_error_of_the_last_state_grows_by_one_over_the_gate_a_step():
    phi_k, v = draw(12, np.float64)
    states = rewind.forward_states(phi_k, v, 0.5)
    off = rewind.rewound_states(states[-1] + 1e-3, phi_k, v, 0.5) - states
    expected = 1e-3 * float(1 / Fraction(1, 2)) ** np.arange(12)[::-1]
    np.testing.assert_allclose(off, np.broadcast_to(expected[:, None, None, None], off.shape), rtol=1e-9)


def test_errors_are_relative_and_separate():
    truth = np.ones((1, 1, 2, 3))
    states = truth.copy()
    states[..., 0, 0] = 1.5  # of S
    states[..., 1, 2] = 4.0  # of Z
    s, z = rewind.errors(states, truth)
    np.testing.assert_allclose((s, z), ([0.5 / 2], [3 / np.sqrt(2)]))
    states[...] = np.nan
    assert np.isinf(rewind.errors(states, truth)).all()


def test_computing_again_keeps_the_digits_and_rewinding_does_not(results):
    assert results.lengths[-1] == 512
    assert (results.worst_recomputed < 10 * EPS).all()
    assert (results.worst_rewound >= results.worst_recomputed).all()
    assert (np.diff(results.worst_rewound[0]) > 0).all()  # more digits lost the longer the sequence
    assert results.worst_rewound[0, -1] > 30 * EPS
    assert results.rewound_z[0, 0] > results.rewound_s[0, 0]  # its terms are positive, so Z_N is larger
    by_gate = results.worst_rewound[:, -1]
    assert (np.diff(by_gate) > 0).all()  # the stronger the gate, the worse
    assert by_gate[-1] > rewind.NOTHING_LEFT


def test_with_a_gate_the_error_grows_at_the_rate_of_the_gate(results):
    gate, after = results.gates[-1], results.after_steps[-1]
    far = (after > 1e-4) & (after < 1e4)
    # |S| stays the same but for its chance ups and downs, which move a slope over many steps little.
    rate = np.polyfit(results.steps[far], np.log(after[far]), 1)[0]
    assert rate == pytest.approx(-np.log(gate), rel=0.1)


def test_the_figure_shows_the_results(results):
    figure = drawn("rewind")
    np.testing.assert_array_equal(figure.axes[0].lines[2].get_ydata(), results.rewound_s[0])
    np.testing.assert_array_equal(figure.axes[2].lines[1].get_ydata(), results.worst_rewound[0])
    assert all(axis.get_xlabel() for axis in figure.axes)
