import numpy as np
import pytest

from linattn_ref.experiments.publishing import labels, style


@pytest.mark.parametrize("seed", range(20))
def test_names_are_apart_in_order_and_no_farther_than_they_must(seed):
    rng = np.random.default_rng(seed)
    wanted, heights = rng.random(6), rng.choice([0.1, 0.2], 6)
    placed = np.array(labels.spread(wanted, heights))
    order = np.argsort(wanted)
    below, above = heights[order][:-1], heights[order][1:]
    assert (np.diff(placed[order]) > (below + above) / 2 - 1e-9).all()
    assert abs(placed - wanted).max() < heights.sum()
    assert labels.spread([0.1, 0.9, 0.5], [0.1, 0.1, 0.1]) == pytest.approx([0.1, 0.9, 0.5])


def test_a_name_stands_where_its_line_ends():
    with style.use("paper"):
        _, axes = style.figure()
        lines = [axes.plot([0, 1], [1, end], color=style.BLUE)[0] for end in (10, 1000)]
        axes.set(yscale="log", ylim=(1, 10000))
        labels.at_ends(axes, lines, ["low", "high"])
        low, high = axes.texts
    assert (low.get_text(), high.get_text()) == ("low", "high")
    assert (low.xy[1], high.xy[1]) == pytest.approx((0.25, 0.75))


def test_a_line_without_a_number_has_no_name():
    with style.use("paper"):
        _, axes = style.figure()
        axes.plot([0, 1], [np.nan, np.nan], label="diverged")
        axes.plot([0, 1], [1, 2], label="learned")
        labels.at_ends(axes)
    assert [text.get_text() for text in axes.texts] == ["learned"]


def test_pale_colours_are_darker_as_text():
    assert labels.readable("#000000") == (0, 0, 0)
    assert max(labels.readable("#F0E442")) < 0.6
