"""Lines of medians with a bar: what is drawn from where to where, and which names stand beside it."""

import numpy as np
import pytest

from linattn_ref.experiments.measuring import heads
from linattn_ref.experiments.publishing import labels, style


@pytest.fixture
def axes():
    with style.use("paper"):
        yield style.figure()[1]


def found(sizes):
    """Errors of ``sizes`` sizes, eleven heads: 1 to 11 tenths, times 1, 2, 3, ... ."""
    errors = np.arange(1, 12) / 10 * np.arange(1, sizes + 1)[:, None]
    return heads.spread(errors[:, None, None])


def test_a_bar_lies_from_a_tenth_to_nine_tenths_at_the_last_place_or_beside_it(axes):
    line = labels.with_range(axes, [8, 16], found(2), colour=style.BLUE)
    np.testing.assert_allclose(line.get_ydata(), [0.6, 1.2])
    labels.with_range(axes, [8, 16], found(2), colour=style.BLUE, at=20)
    for bar, place in zip(axes.collections, (16, 20), strict=True):
        np.testing.assert_allclose(bar.get_segments(), [[[place, 0.4], [place, 2.0]]])


def test_over_reduced_draws_the_ways_that_it_is_given_and_names_them(axes):
    errors = {"mean": found(2), "svd": found(2), "left out": found(2)}
    ways = {"mean": ("mean pooling", style.SKY), "svd": ("truncated SVD of the matrix", style.BLACK)}
    labels.over_reduced(axes, (8, 16), errors, ways, level=(1.0, "answer: 0"))
    assert len(axes.collections) == 2
    assert len(axes.lines) == 3
    assert [text.get_text() for text in axes.texts] == ["mean pooling", "truncated SVD of\nthe matrix", "answer: 0"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16"]
