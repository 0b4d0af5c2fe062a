"""Linformer's error against k: the figure on random heads and a tiny model, and the fit that it rests on."""

import numpy as np
import pytest
from quick import drawn, quick

from linattn_ref import gradcheck
from linattn_ref.attention import softmax
from linattn_ref.experiments.fewer_keys import linformer
from linattn_ref.experiments.measuring import heads as heads_module
from linattn_ref.experiments.measuring import linformer_fit
from linattn_ref.experiments.rank import eckart_young

WAYS_WITH_MATRIX = {"gaussian", "mean", "fitted", "one_sentence", "theorem_1", "svd"}


@pytest.fixture(scope="module")
def heads():
    """Three sentences, two layers, two heads, N = 24, width 4."""
    rng = np.random.default_rng(1)
    return heads_module.random_heads(rng, sentences=3, layers=2, heads=2, length=24, width=4)


@pytest.fixture(scope="module")
def results():
    return quick("linformer")


# --- The figure -----------------------------------------------------------------------------------------------------


def test_drawing(results):
    usable, not_usable, matrix, sharing = drawn("linformer").axes
    names = [{text.get_text().replace("\n", " ") for text in axes.texts} for axes in (usable, not_usable, matrix)]
    assert names[0] | names[1] == {label for label, _ in linformer.WAYS.values()} | {"mean of all values"}
    assert len(usable.lines) == len(usable.texts) == len(linformer.USABLE) + 1
    assert all(len(each) <= 6 for each in names)
    assert [label.get_text() for label in sharing.get_yticklabels()] == [
        "mean pooling\nno parameters",
        "each its own\n8k parameters",
        "headwise\n4k parameters",
        "key-value\n2k parameters",
        "layerwise\n1k parameters",
    ]


def test_the_same_projection_has_the_same_name_and_colour_in_two_figures():
    """It was called "R random" here."""
    assert linformer.WAYS["theorem_1"] == eckart_young.LOOKS["johnson_lindenstrauss"]


def test_nothing_of_rank_k_is_nearer_to_the_matrix_than_the_truncated_svd(results):
    assert set(results.matrix) == WAYS_WITH_MATRIX
    assert set(results.output) == set(linformer.WAYS)
    for way, errors in results.matrix.items():
        assert errors.by_layer.shape == (2, 2)
        assert (errors.low <= errors.median).all()
        assert (errors.median <= errors.high).all()
        if way != "one_sentence":  # measured on one of the sentences
            assert (errors.by_layer >= results.matrix["svd"].by_layer).all(), way
            assert (errors.median >= results.matrix["svd"].median).all(), way


def test_at_full_length_pooling_and_the_svd_are_exact(heads):
    got = linformer.compute(heads=heads, reduced=(1, 24, 25), unseen=1, epochs=1, steps_one=1)
    assert got.reduced == (1, 24)
    assert got.sharing_reduced == 24
    for way in ("mean", "max", "svd"):
        assert got.output[way].by_layer[1].max() < 1e-5, way  # float32, 24 keys
    # One mixed key: every query gets the mean of the values.
    np.testing.assert_allclose(got.output["mean"].by_layer[0], got.mean_of_values.by_layer, rtol=1e-5)


def test_theorem_1_errs_as_its_variance_says():
    """E |P R^T R V - P V|^2 = (|P V|^2 + |P|^2 |V|^2) / k, summed over 16 layers and 40 draws of R."""
    rng = np.random.default_rng(2)
    many = heads_module.random_heads(rng, sentences=1, layers=16, heads=1, length=24, width=4)
    draws = [linformer.ways_at(8, many, range(1), [0], 1, rng)["theorem_1"][0][0, :, 0] for _ in range(40)]  # (40, 16)
    p = softmax.matrix(many.q[0], many.k[0])
    out, p, v = (np.square(x).sum(axis=(1, 2, 3)) for x in (many.out[0], p, many.v[0]))  # (16,) each
    ratios = np.square(draws) @ out / np.sum((out + p * v) / 8)  # (40,), a standard deviation of about 0.4
    assert abs(ratios.mean() - 1) < 4 * 0.4 / np.sqrt(40)


def test_fits_beat_their_start_on_the_text_of_the_fit(heads):
    got = linformer.compute(heads=heads, reduced=(6,), sharing_reduced=6, unseen=1, epochs=40, steps_one=80)
    start = got.sharing["mean_pooling"].seen.by_layer.mean()
    seen = [got.sharing[mode].seen.by_layer.mean() for mode in ("none", "headwise", "key_value", "layerwise")]
    assert all(error < start for error in seen)
    assert seen == sorted(seen)  # the more is shared, the less can be fitted
    assert got.output["one_sentence"].by_layer[0].mean() < got.output["mean"].by_layer[0].mean()
    counts = [got.sharing[mode].parameters for mode in got.sharing]
    assert counts == [0, 2 * 2 * 2 * 6 * 24, 2 * 2 * 6 * 24, 2 * 6 * 24, 6 * 24]


def test_what_sharing_gives_back(results):
    pooled, own, shared = (results.sharing[mode].output.by_sentence for mode in ("mean_pooling", "none", "layerwise"))
    np.testing.assert_allclose(own + linformer.returned(results.sharing, "layerwise") * (pooled - own), shared)
    assert (linformer.returned(results.sharing, "none") == 0).all()


def test_seen_and_unseen_sentences_are_kept_apart(heads, monkeypatch):
    orders, real = [], linformer.fit
    monkeypatch.setattr(
        linformer, "fit", lambda *args, **options: orders.append(list(args[3])) or real(*args, **options)
    )
    linformer.compute(heads=heads, reduced=(6,), sharing_reduced=6, unseen=1, epochs=2, steps_one=3)
    assert orders.count([0, 0, 0]) == 1  # the fit to one sentence
    others = [order for order in orders if order != [0, 0, 0]]
    assert len(others) == 6
    assert all(sorted(order) == [1, 1, 2, 2] for order in others)


@pytest.mark.parametrize("unseen", [0, 3])
def test_sentences_are_needed_for_both(heads, unseen):
    with pytest.raises(ValueError, match=f"unseen: expected 1 to 2 of 3 sentences, got {unseen}"):
        linformer.compute(heads=heads, unseen=unseen)


def test_the_whole_figure_from_a_model_and_a_text(tiny_model, tiny_text):
    got = linformer.compute(
        heads=heads_module.Source(5, 20, 2, tiny_model, tiny_text), unseen=2, reduced=(5,), epochs=1, steps_one=2
    )
    assert got.shape == (2, 20, 4)
    assert got.output["fitted"].by_layer.shape == (1, 2)
    assert got.output["fitted"].by_sentence.shape == (1, 2)
    wanted = {"model": "tiny", "every": 2, "sentences": 3, "unseen": 2, "epochs": 1, "steps": 2, "seed": 0}
    assert wanted.items() <= got.settings.items()
    assert {"model_sha256", "text_sha256"} <= got.settings.keys()


# --- The fit --------------------------------------------------------------------------------------------------------


def to_64(heads):
    return linformer_fit.Heads(*(x.astype(np.float64) for x in heads))


@pytest.mark.parametrize(
    ("mixing", "shapes"),
    [
        (linformer_fit.MATRICES, ((2, 2, 3, 24), (2, 1, 3, 24))),
        (linformer_fit.MATRIX, ((1, 1, 3, 24),)),
        (linformer_fit.CONVOLUTIONS, ((2, 2, 7, 4, 4), (2, 2, 7, 4, 4))),
    ],
    ids=["matrices", "matrix", "convolutions"],
)
def test_gradients_of_the_loss(heads, mixing, shapes):
    rng = np.random.default_rng(3)
    exact = to_64(heads)
    parameters = tuple(0.3 * rng.standard_normal(shape) for shape in shapes)

    def loss(*parameters):
        errors = heads_module.relative_error(mixing.applied(parameters)(*exact.sentence(1)[:3]), exact.out[1])
        return float(np.square(errors).sum()), parameters

    def gradients(d_loss, parameters):
        return tuple(d_loss * g for g in linformer_fit.loss_gradients(mixing, parameters, exact, 1))

    gradcheck.check_directions(loss, gradients, *parameters, rng=rng).assert_ok()


def test_the_first_step_moves_every_entry_by_the_rate(heads):
    start = (np.full((1, 1, 3, 24), 0.1, np.float32),)
    (moved,) = linformer_fit.fit(linformer_fit.MATRIX, start, heads, [0], rate=0.01)
    (gradient,) = linformer_fit.loss_gradients(linformer_fit.MATRIX, start, heads, 0)
    assert (gradient != 0).all()
    np.testing.assert_allclose(moved - start[0], -0.01 * np.sign(gradient), rtol=1e-4)  # float32 around 0.1
    assert moved.dtype == np.float32
    assert (start[0] == np.float32(0.1)).all()
