import numpy as np
import pytest

from linattn_ref.experiments.measuring.heads import heads_of, read_heads, relative_error
from linattn_ref.experiments.measuring.pretrained import read
from linattn_ref.models import bert


def test_reading_heads_of_a_model(tiny_model, tiny_text):
    """The model has 2 layers and 3 heads of width 4."""
    which = {"sentences": 2, "length": 20, "seed": 0}
    got, sources = read_heads(tiny_model, tiny_text, every=2, **which)
    model, tokens, name, of_both = read(tiny_model, tiny_text, **which)
    assert sources == {**of_both, "every": 2}
    assert name == sources["model"] == "tiny"
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
