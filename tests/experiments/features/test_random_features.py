"""The figures of random features: quick runs hold the facts they show, can be saved as JSON, drawn in both styles."""

import numpy as np
import pytest
from quick import quick

from linattn_ref.attention import feature_maps, performer
from linattn_ref.experiments.features import random_features, random_features_attention
from linattn_ref.experiments.measuring.heads import random_heads
from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.publishing.restore import Results

FIGURES = {"kernels": "random_features", "attention": "random_features_attention"}


@pytest.fixture(scope="module")
def results():
    return {name: quick(figure) for name, figure in FIGURES.items()}


# --- Kernels --------------------------------------------------------------------------------------------------------


def test_points_lie_on_their_lines(results):
    """Where tails are light: at angles above 60 degrees and lengths below 1. 200 trials, 5 standard errors."""
    got = results["kernels"]
    for curves, grid, points in (
        (got.by_angle, got.angles, got.points_angle),
        (got.by_length, got.lengths, got.points_length),
    ):
        light = points > 60 if points[-1] == 180 else points < 1
        for curve in curves.values():
            for i in np.flatnonzero(light):
                measured, stated = curve.measured[i], np.interp(points[i], grid, curve.stated)
                half = (measured.high - measured.low) / 2
                # the grid's lines between two points bend by a few percent
                assert abs(measured.mean - stated) <= 2.6 * half + 0.05 * stated + 1e-12


def test_which_kind_is_best_where(results):
    got = results["kernels"]
    trig, positive, hyperbolic = (got.by_angle[kind].stated for kind in ("trig", "positive", "hyperbolic"))
    assert (np.diff(trig) > 0).all()
    assert (np.diff(positive) < 0).all()
    assert (hyperbolic <= positive).all()
    assert trig[0] < positive[0]
    assert trig[-1] > 0.1 > positive[-1]


def test_gain_of_orthogonal_directions(results):
    for kind in ("positive", "hyperbolic"):
        for ratio in results["kernels"].gain[kind]:
            assert (ratio < 1 + 1e-12).all()
    narrow, _, wide = (ratio.min() for ratio in results["kernels"].gain["positive"])
    assert 0.88 < narrow < 0.9
    assert wide < narrow
    near_zero = [ratio[0] for ratio in results["kernels"].gain["trig"]]  # 1 - (m-1) / m * D / (D+2)
    np.testing.assert_allclose(near_zero, [1 - (d - 1) / (d + 2) for d in (4, 16, 64)], rtol=1e-3)


@pytest.mark.parametrize("name", ["gaussian", "laplacian", "cauchy", "sinc"])
def test_error_falls_as_one_over_m(results, name):
    assert random_features.slope(results["kernels"], name) == pytest.approx(-1, abs=0.25)  # 50 trials a point


def test_pairs_have_the_length_and_angle():
    x, y = random_features.pairs(np.array([0.5, 2.0]), 60.0, 5)
    np.testing.assert_allclose([np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1)], [[0.5, 2], [0.5, 2]])
    np.testing.assert_allclose((x * y).sum(axis=-1), [0.125, 2])


# --- Attention ------------------------------------------------------------------------------------------------------


def test_the_matrix_is_what_the_identity_becomes():
    heads = random_heads(np.random.default_rng(0), sentences=1, layers=1, heads=2, length=9, width=4)
    q, k, v, _ = heads.sentence(0)
    omega = feature_maps.gaussian(6, 4, np.random.default_rng(1), dtype=np.float32)
    for kind in performer.KINDS:
        out, p = random_features_attention.estimate(q, k, v, omega, kind)
        expected = performer.matrix(q, k, omega, kind=kind)
        # near a denominator of 0 trig features lose digits
        rows = abs(expected).sum(axis=-1) < 10
        np.testing.assert_allclose(p[rows], expected[rows], atol=1e-4)
        np.testing.assert_allclose(out[rows], (expected @ v)[rows], atol=1e-4)


def test_errors_fall_where_scores_are_small(results):
    short = results["attention"].panels["short"]
    for way in random_features_attention.WAYS:
        errors = short.matrix[", ".join(way)]
        assert errors.shape == (len(results["attention"].directions),)
        assert errors[-1] < errors[0]
    long = results["attention"].panels["pretrained"]  # here: random numbers four times as large
    assert long.score_deviation > 10 * short.score_deviation
    assert long.matrix["trig, orthogonal"][-1] > 10 * short.matrix["trig, orthogonal"][-1]


def test_what_is_off_the_scale_is_written_in_its_own_colour():
    """It was written in that of trig."""
    errors = {", ".join(way): np.full(2, 0.5) for way in random_features_attention.WAYS}
    errors["relu, orthogonal"] = np.array([3.0, 4.0])
    panel = Results(output=errors, matrix=errors, mean_of_values=1, score_deviation=1)
    with style.use():
        figure = random_features_attention.draw(Results(directions=(4, 8), panels={"short": panel, "network": panel}))
    (text,) = (text for text in figure.axes[0].texts if "off the scale" in text.get_text())
    assert (text.get_text(), text.get_color()) == ("↑ ReLU: 3 to 4, off the scale", style.FEATURES["relu"])


def test_heads_may_be_ones_own():
    heads = random_heads(np.random.default_rng(2), sentences=1, layers=1, heads=1, length=12, width=4)
    got = random_features_attention.compute(heads=heads, directions=(4, 8), draws=1)
    assert got.shape == (1, 12, 4)
    assert got.directions == (4, 8)
