import numpy as np
import pytest

from linattn_ref.attention import softmax
from linattn_ref.experiments.measuring import heads
from linattn_ref.experiments.measuring.heads import heads_of, read_heads, relative_error
from linattn_ref.experiments.measuring.pretrained import read
from linattn_ref.models import bert


def test_reading_heads_of_a_model(tiny_model, tiny_text):
    """The model has 2 layers and 3 heads of width 4."""
    which = {"sentences": 2, "length": 20, "seed": 0}
    got, sources = read_heads(tiny_model, tiny_text, every=2, **which)
    model, tokens, of_both = read(tiny_model, tiny_text, **which)
    assert sources == {**of_both, "every": 2}
    assert sources["model"] == "tiny"
    assert got.q.shape == got.out.shape == (2, 2, 2, 20, 4)
    assert all(x.dtype == np.float32 for x in got)
    for s, ids in enumerate(tokens):
        for t, layer in enumerate(bert.layers(model, ids)):
            for letter in "qkv":
                np.testing.assert_array_equal(getattr(got, letter)[s, t], getattr(layer, letter)[::2])
            np.testing.assert_allclose(got.out[s, t], (layer.p @ layer.v)[::2], rtol=1e-4, atol=1e-4)


def test_heads_need_five_axes():
    with pytest.raises(ValueError, match="q: expected at least 5 axes"):
        heads_of(*np.zeros((3, 2, 4, 5)))


def test_relative_error():
    exact = np.array([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 0.0]]])
    approximate = np.array([[[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [0.0, 0.0]]])
    np.testing.assert_allclose(relative_error(approximate, exact), [1, 2], rtol=1e-15)


def test_each_error_is_of_one_sentence_and_head():
    made = heads.random_heads(np.random.default_rng(3), sentences=3, layers=2, heads=4, length=9, width=5)
    output, matrix = heads.each_error(
        made, (0, 2), lambda q, k, v: 0 * v, lambda q, k: np.eye(9, dtype=q.dtype)[None, None]
    )
    assert output.shape == matrix.shape == (2, 2, 4)
    np.testing.assert_allclose(output, 1, rtol=1e-6)  # the answer 0
    p = softmax.matrix(made.q[2, 1, 3], made.k[2, 1, 3])
    np.testing.assert_allclose(matrix[1, 1, 3], np.linalg.norm(np.eye(9) - p) / np.linalg.norm(p), rtol=1e-5)
    _, none = heads.each_error(made, (0, 2), lambda q, k, v: v)
    assert none.size == 0


def test_spread_has_means_by_layer_and_by_sentence_and_the_middle_eight_tenths():
    errors = np.arange(11 * 2 * 5, dtype=float).reshape(11, 2, 5)  # sentences, layers, heads
    found = heads.spread(errors)
    assert found.by_layer.shape == (2,)
    assert found.by_sentence.shape == (11,)
    np.testing.assert_allclose(found.by_layer, errors.mean(axis=(0, 2)))
    np.testing.assert_allclose(found.by_sentence, errors.mean(axis=(1, 2)))
    np.testing.assert_allclose((found.low, found.median, found.high), (10.9, 54.5, 98.1))  # of 0 ... 109
    assert heads.spread(np.stack([errors, errors])).low.shape == (2,)
