"""Lines of medians with a band: what is drawn from where to where, and which names stand beside it."""

import numpy as np
import pytest

from linattn_ref.experiments.measuring import heads
from linattn_ref.experiments.publishing import bands, style


@pytest.fixture
def axes():
    with style.use("paper"):
        yield style.figure()[1]


def found(sizes):
    """Errors of ``sizes`` sizes, eleven heads: 1 to 11 tenths, times 1, 2, 3, ... ."""
    errors = np.arange(1, 12) / 10 * np.arange(1, sizes + 1)[:, None]
    return heads.spread(errors[:, None, None])


def test_a_band_lies_from_a_tenth_to_nine_tenths_about_the_median(axes):
    line = bands.band(axes, [8, 16], found(2), colour=style.BLUE)
    np.testing.assert_allclose(line.get_ydata(), [0.6, 1.2])
    (band,) = axes.collections
    (path,) = band.get_paths()
    for x, low, high in ((8, 0.2, 1.0), (16, 0.4, 2.0)):
        at_x = path.vertices[path.vertices[:, 0] == x, 1]
        assert (at_x.min(), at_x.max()) == pytest.approx((low, high))


def test_at_one_place_it_is_a_bar(axes):
    bands.band(axes, [8], found(1), colour=style.BLUE)
    (bar,) = axes.collections
    np.testing.assert_allclose(bar.get_segments(), [[[8, 0.2], [8, 1.0]]])


def test_over_reduced_draws_the_ways_that_it_is_given_and_names_them(axes):
    errors = {"mean": found(2), "svd": found(2), "left out": found(2)}
    ways = {"mean": ("mean pooling", style.SKY), "svd": ("truncated SVD: needs P", style.BLACK)}
    bands.over_reduced(axes, (8, 16), errors, ways, level=(1.0, "answer: 0"))
    assert len(axes.collections) == 2
    assert len(axes.lines) == 3
    assert [text.get_text() for text in axes.texts] == ["mean pooling", "truncated SVD:\nneeds P", "answer: 0"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16"]
