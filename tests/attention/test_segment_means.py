"""Segment means of any length, with and without a mask, both passes."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from linattn_ref import gradcheck
from linattn_ref.attention.parts import segment_means

same = partial(np.testing.assert_allclose, rtol=0, atol=1e-14)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("length", [1, 2, 5, 12, 13])
def test_segments_are_those_of_array_split(rng, length):
    x = rng.standard_normal((2, length, 3))
    for r in range(1, length + 1):
        expected = np.stack([part.mean(axis=-2) for part in np.array_split(x, r, axis=-2)], axis=-2)
        same(segment_means.forward(x, r)[0], expected)


def test_masked_rows_take_no_part(rng):
    x, mask = rng.standard_normal((2, 11, 3)), rng.random((2, 11)) < 0.5
    mask[0, :3] = False  # the whole first segment
    means, _ = segment_means.forward(x, 4, key_mask=mask)
    found = segment_means.occupied(mask, 4)
    for b in range(2):
        for r, rows in enumerate(np.array_split(np.arange(11), 4)):
            rows = rows[mask[b, rows]]
            assert found[b, r] == (len(rows) > 0)
            same(means[b, r], x[b, rows].mean(axis=0) if len(rows) else np.zeros(3))
    assert not found.all()


@pytest.mark.parametrize("masked", [False, True])
def test_gradient(rng, masked):
    x = rng.standard_normal((2, 11, 3))
    mask = rng.random((2, 11)) < 0.5 if masked else None
    forward = partial(segment_means.forward, landmarks=4, key_mask=mask)
    gradcheck.check_elementwise(forward, segment_means.backward, x, rng=rng).assert_ok()


def test_float32_stays(rng):
    x, mask = rng.standard_normal((2, 11, 3)).astype(np.float32), rng.random((2, 11)) < 0.5
    for key_mask in (None, mask):
        means, segments = segment_means.forward(x, 4, key_mask=key_mask)
        assert means.dtype == segments.counts.dtype == np.float32
        assert segment_means.backward(means, segments).x.dtype == np.float32


def test_what_is_refused(rng):
    x = rng.standard_normal((2, 11, 3))
    _, segments = segment_means.forward(x, 4)
    with pytest.raises(ValueError, match=r"^d_means: expected shape \(\.\.\., R, W\)"):
        segment_means.backward(x, segments)
    _, masked = segment_means.forward(x, 4, key_mask=np.ones((2, 11), bool))
    for wrong in ((1, 4, 3), (3, 2, 4, 3), (2, 4, 1)):  # which would broadcast
        for each in (segments, masked):
            with pytest.raises(ValueError, match=r"^d_means: expected shape \(\.\.\., R, W\) = \(2, 4, 3\)"):
                segment_means.backward(np.ones(wrong), each)
    with pytest.raises(TypeError, match=r"^d_means: expected float64"):
        segment_means.backward(np.ones((2, 4, 3), np.float32), segments)
    for call, given in ((segment_means.forward, x), (segment_means.occupied, np.ones(11, bool))):
        with pytest.raises(ValueError, match=r"^landmarks: expected an integer with 1 <= R <= L = 11, got 12"):
            call(given, 12)
    with pytest.raises(TypeError, match=r"'out'"):  # its output is shaped otherwise than an attention's
        segment_means.forward(x, 4, out=np.empty((2, 4, 3)))
    with pytest.raises(TypeError, match=r"'kernels'"):
        segment_means.forward(x, 4, kernels=SimpleNamespace())
