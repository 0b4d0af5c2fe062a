"""The figures of the theorems: quick runs hold the facts they show, can be saved as JSON and drawn in both styles."""

import importlib

import numpy as np
import pytest
from quick import quick

from linattn_ref.experiments.publishing import chapter, style

NAMES = ("johnson_lindenstrauss", "low_rank", "linear_self_attention", "eckart_young")


def module(name):
    return importlib.import_module(f"linattn_ref.experiments.rank.{name}")


@pytest.fixture(scope="module")
def results():
    return {name: quick(name) for name in NAMES}


def test_johnson_lindenstrauss(results):
    got = results["johnson_lindenstrauss"]
    for counted in (*got.norms.values(), got.pairs):
        for row in counted:
            for each in row:
                assert each.low <= each.measured <= each.high
                assert each.low <= each.stated  # the bound holds, as far as the count can tell
    exact = np.array([got.norms_exact[:, list(got.grid).index(k)] for k in (8, 128)]).T
    for row, truth in zip(got.norms["gaussian"], exact, strict=True):
        ends = row[got.dimensions.index(8)], row[got.dimensions.index(128)]
        assert all(abs(each.measured - p) < 0.15 for each, p in zip(ends, truth, strict=True))  # 4 of 200 trials' sigma
    assert (got.inner_by_norms <= got.inner_bound).all()
    assert (got.inner_as_printed[-1] > 0.9).all()


def test_low_rank(results):
    got = results["low_rank"]
    for row in got.failures:
        rates = [each.measured for each in row]
        assert rates == sorted(rates, reverse=True)
        assert all(each.low <= each.stated for each in row)
    entries, vector, mean_one, mean_zero = got.growth
    assert entries.measured_slope < entries.stated_slope
    assert all(a.measured < b.measured for a, b in zip(vector.needed, entries.needed, strict=True))
    assert all(each.measured > n for each, n in zip(mean_zero.needed, mean_zero.lengths, strict=True))
    assert all(each.measured < each.stated for each in mean_one.needed)


def test_linear_self_attention(results):
    got = results["linear_self_attention"]
    with_mean, without = got.curves
    # At the largest k the construction's error is that of answering 0, give or take the noise |V| / k.
    np.testing.assert_allclose(with_mean.linformer[:, -1], with_mean.zero, rtol=0.15)
    assert with_mean.low_rank[-1] < with_mean.zero / 2
    assert without.zero < got.eps < with_mean.zero
    for values in got.dependence.values():
        assert values[0] > 1
        assert values[-1] == 0


def test_what_is_written_among_the_weights_is_above_the_axis():
    """The lower name lay on the numbers along it."""
    with style.use():
        figure = module("linear_self_attention").draw(chapter.results("linear_self_attention"))
        figure.draw_without_rendering()
    weights = figure.axes[2]
    assert len(weights.texts) == 2
    assert all(text.get_window_extent().y0 > weights.get_window_extent().y0 for text in weights.texts)


def test_eckart_young_takes_any_matrix():
    matrix = np.random.default_rng(2).standard_normal((6, 9)).astype(np.float32)
    got = module("eckart_young").compute(matrix=matrix, draws=1)
    assert [each.rank for each in got.errors] == [1, 2, 4]
    for each in got.errors:
        assert each.measured_frobenius == pytest.approx(each.stated_frobenius, rel=1e-5)
        assert each.measured_frobenius < min(each.competitors_frobenius.values())
    with pytest.raises(ValueError, match="matrix: expected one that is not 0 everywhere"):
        module("eckart_young").compute(matrix=0 * matrix, draws=1)
