"""Depthwise convolution along the sequence, both passes."""

from functools import partial

import numpy as np
import pytest

from linattn_ref import gradcheck
from linattn_ref.attention.parts import depthwise

same = partial(np.testing.assert_allclose, rtol=0, atol=1e-14)  # sums of some products of numbers of size 1


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("taps", [1, 3, 7, 13])
def test_output_is_the_sum_it_says(rng, taps):
    """Also where the window is wider than the sequence."""
    v, conv = rng.standard_normal((2, 3, 5, 2)), rng.standard_normal((3, taps))
    expected = np.zeros_like(v)
    for b, h, i, t in np.ndindex(2, 3, 5, taps):
        j = i + t - taps // 2
        if 0 <= j < 5:
            expected[b, h, i] += conv[h, t] * v[b, h, j]
    same(depthwise.forward(v, conv)[0], expected)
    same(depthwise.matrix(conv, 5) @ v, expected)


def test_one_weight_in_the_middle_is_a_multiple(rng):
    v = rng.standard_normal((3, 6, 2))
    conv = np.zeros((3, 5))
    conv[:, 2] = 1, 2, 3
    np.testing.assert_array_equal(depthwise.forward(v, conv)[0], conv[:, 2, None, None] * v)


def test_it_is_a_correlation(rng):
    """The last weight meets what comes later."""
    v = rng.standard_normal((1, 4, 1))
    same(depthwise.forward(v, np.array([[0.0, 0.0, 1.0]]))[0][0, :, 0], [*v[0, 1:, 0], 0])


@pytest.mark.parametrize("shape", [(5, 2), (3, 5, 2), (2, 3, 4, 2)], ids=str)
@pytest.mark.parametrize("taps", [1, 3, 9])
def test_gradients(rng, shape, taps):
    v, conv = rng.standard_normal(shape), rng.standard_normal((*shape[-3:-2], taps))
    gradcheck.check_elementwise(depthwise.forward, depthwise.backward, v, conv, rng=rng).assert_ok()


def test_without_leading_axes_there_is_one_head(rng):
    v, conv, d_y = rng.standard_normal((5, 2)), rng.standard_normal(3), rng.standard_normal((5, 2))
    y, saved = depthwise.forward(v, conv)
    of_row, saved_row = depthwise.forward(v, conv[None])
    same(of_row, y)
    d_v, d_conv = depthwise.backward(d_y, saved_row)
    assert d_conv.shape == (1, 3)
    for x, expected in zip((d_v, d_conv[0]), depthwise.backward(d_y, saved), strict=True):
        same(x, expected)


@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (3,), (2, 3, 3), (3, 4), (3, 0)], ids=str)
def test_shapes_that_are_refused(rng, shape):
    with pytest.raises(ValueError, match=r"^conv: "):
        depthwise.forward(rng.standard_normal((2, 3, 5, 2)), np.ones(shape))


def test_other_input_that_is_refused(rng):
    v = rng.standard_normal((3, 5, 2))
    with pytest.raises(ValueError, match=r"^conv: expected an odd number of weights K, got 4"):
        depthwise.forward(v, np.ones((3, 4)))
    with pytest.raises(TypeError, match=r"^conv: expected float64 like the other arrays, got float32"):
        depthwise.forward(v, np.ones((3, 3), np.float32))
    _, saved = depthwise.forward(v, np.ones((3, 3)))
    with pytest.raises(ValueError, match=r"^d_y: expected shape .* = \(3, 5, 2\), got \(2, 5, 2\)"):
        depthwise.backward(v[:2], saved)


def test_an_even_number_of_weights_has_no_matrix():
    with pytest.raises(ValueError, match=r"^conv: expected an odd number of weights K, got 4"):
        depthwise.matrix(np.ones(4), 5)
