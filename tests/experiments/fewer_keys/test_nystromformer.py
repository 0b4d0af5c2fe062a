"""Nyström attention's error against landmarks: the figure on random heads and a tiny model, the fitted convolution."""

from pathlib import Path

import numpy as np
import pytest
from quick import drawn, quick

from linattn_ref import gradcheck
from linattn_ref.attention import nystromformer, softmax
from linattn_ref.attention.parts import depthwise
from linattn_ref.experiments.fewer_keys import nystromformer as figure
from linattn_ref.experiments.measuring import heads as heads_module

FIGURES = Path(__file__).parents[3] / "figures"


@pytest.fixture(scope="module")
def heads():
    """Three sentences, two layers, two heads, N = 24, width 4."""
    return heads_module.random_heads(np.random.default_rng(1), sentences=3, layers=2, heads=2, length=24, width=4)


@pytest.fixture(scope="module")
def results():
    return quick("nystromformer")


def test_drawing(results):
    left, right, matrix, iterations = drawn("nystromformer").axes
    for axes, names in ((left, figure.BESIDE_LINFORMER), (right, figure.PSEUDO_INVERSES), (matrix, figure.OF_MATRIX)):
        assert len(axes.collections) == len(names)  # a bar each
        assert len(axes.lines) == len(axes.texts) == len(names) + 1  # and the answer 0
    assert {*figure.BESIDE_LINFORMER, *figure.PSEUDO_INVERSES, *figure.OF_MATRIX} == set(figure.WAYS)
    shown = len(results.reduced[::2])
    assert len(iterations.collections) == len(iterations.texts) == shown
    assert len(iterations.lines) == shown + 1  # and six iterations


def test_nothing_of_rank_r_is_nearer_to_the_matrix_than_the_truncated_svd(results):
    assert set(results.output) == set(results.matrix) == set(figure.WAYS)
    for way in set(figure.WAYS) - {"convolution"}:  # that one adds a matrix of full rank
        for of_way, of_svd in zip(results.matrix[way], results.matrix["svd"], strict=True):
            assert (of_way >= of_svd).all(), way


def test_six_iterations_are_the_same_in_both_panels(results):
    for of_iteration, of_way in zip(results.by_iteration, results.output["nystrom"], strict=True):
        np.testing.assert_allclose(of_iteration[:, 6], of_way, rtol=1e-4)  # float32


def test_as_many_landmarks_as_tokens(heads):
    """Every token is a landmark: with the exact pseudo-inverse nothing is left over, nor with P's own."""
    got = figure.compute(heads=heads, reduced=(24, 25), most_iterations=30, taps=3, unseen=1, epochs=1)
    assert got.reduced == (24,)
    for way in ("mean", "exact", "svd"):
        assert got.output[way].by_layer.max() < 0.01, way  # float32, times condition numbers of up to 1e4
    assert got.by_iteration.high[0, -1] < got.by_iteration.median[0, 6] < got.by_iteration.low[0, 0]


@pytest.mark.parametrize("unseen", [0, 3])
def test_sentences_are_needed_for_both(heads, unseen):
    with pytest.raises(ValueError, match=f"unseen: expected 1 to 2 of 3 sentences, got {unseen}"):
        figure.compute(heads=heads, unseen=unseen)


def test_the_whole_figure_from_a_model_and_a_text(tiny_model, tiny_text):
    got = figure.compute(
        heads=heads_module.Source(5, 20, 2, tiny_model, tiny_text), unseen=2, reduced=(5,), taps=3, epochs=1
    )
    assert got.shape == (2, 20, 4)
    assert got.output["convolution"].by_layer.shape == got.output["svd"].by_sentence.shape == (1, 2)
    assert {"model": "tiny", "every": 2, "sentences": 3, "taps": 3}.items() <= got.settings.items()


# --- The convolution ------------------------------------------------------------------------------------------------


def loss(heads, conv):
    """The squared relative errors with a convolution ``(T, H, K)``, over the last two sentences."""
    total = 0.0
    for s in (1, 2):
        q, k, v, exact = heads.sentence(s)
        out = nystromformer.forward(q, k, v, landmarks=6)[0] + figure.convolved(v, conv)
        total += np.square(heads_module.relative_error(out, exact)).sum()
    return float(total)


def test_the_fitted_convolution_is_the_best(heads):
    """At a minimum the slope is 0, and every step leads up."""
    exact = heads_module.Heads(*(x.astype(np.float64) for x in heads))
    conv = figure.fit_convolution(6, exact, (1, 2), figure.shifted_products(exact, (1, 2), 5))
    assert conv.shape == (2, 2, 5)
    least, rng = loss(exact, conv), np.random.default_rng(0)
    assert least < loss(exact, 0 * conv)
    for _ in range(10):
        step = 1e-3 * rng.standard_normal(conv.shape)
        up, down = loss(exact, conv + step), loss(exact, conv - step)
        assert min(up, down) > least
        assert abs(up - down) < 1e-6 * (up + down - 2 * least)  # quadratic: the two sides are equal


def test_convolved_is_the_convolution_of_each_layer(heads):
    conv = np.random.default_rng(0).standard_normal((2, 2, 5)).astype(np.float32)
    v = heads.v[0]
    expected = np.stack([depthwise.forward(v[t], conv[t])[0] for t in range(2)])
    np.testing.assert_array_equal(figure.convolved(v, conv), expected)


# --- The other ways -------------------------------------------------------------------------------------------------


def test_cut_leaves_out_small_singular_values(heads, monkeypatch):
    q, k, _, _ = heads.sentence(0)
    monkeypatch.setattr(figure, "CUT", 0.0)
    np.testing.assert_allclose(
        figure.cut(q, k, 4), nystromformer.matrix(q, k, landmarks=4, pinv="exact"), rtol=0, atol=1e-4
    )
    monkeypatch.setattr(figure, "CUT", 0.999)
    assert (np.linalg.matrix_rank(figure.cut(q, k, 4), tol=1e-5) == 1).all()


def test_of_p_is_exact_for_a_matrix_of_rank_r(monkeypatch):
    """What the Nyström method is for: rank 2 from 2 columns and rows."""
    rng = np.random.default_rng(0)
    p = rng.random((8, 2)) @ rng.random((2, 8))
    monkeypatch.setattr(softmax, "matrix", lambda q, k: p)
    monkeypatch.setattr(figure, "ITERATIONS", 30)
    np.testing.assert_allclose(figure.of_p(None, None, 2), p, rtol=0, atol=1e-9)


def test_gradcheck_of_what_the_fit_uses(heads):
    """The slope at 0 is the convolution's own gradient."""
    exact = heads_module.Heads(*(x.astype(np.float64) for x in heads))
    products = figure.shifted_products(exact, (1, 2), 3)
    conv = figure.fit_convolution(6, exact, (1, 2), products)
    slope = (products @ conv[..., None])[..., 0]  # what was solved for

    def forward(conv):
        return loss(exact, conv), None

    def backward(d_loss, saved):
        return d_loss * -2 * slope

    gradcheck.check_elementwise(forward, backward, np.zeros_like(conv), rng=np.random.default_rng(0)).assert_ok()
