"""An array for the output is refused where two of its elements share memory, and only there; ``like`` is an array."""

import itertools

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from linattn_ref.attention import softmax
from linattn_ref.op import extras

X = np.random.default_rng(0).standard_normal((3, 2))


def places_of(x):
    """Where each element begins, in bytes."""
    for index in itertools.product(*map(range, x.shape)):
        yield sum(i * stride for i, stride in zip(index, x.strides, strict=True))


def test_it_is_said_of_every_layout_whether_two_elements_share_memory():
    rng, memory, found = np.random.default_rng(0), np.empty(400), []
    for axes in np.repeat([1, 2, 3], 300):
        strides = rng.choice([4, 8], axes) * rng.integers(-7, 8, axes)
        x = as_strided(memory[200:], tuple(rng.integers(1, 5, axes)), tuple(strides))
        places = sorted(places_of(x))
        found.append(any(b - a < x.itemsize for a, b in itertools.pairwise(places)))
        assert extras._overlaps_itself(x) == found[-1], (x.shape, x.strides)
    assert 100 < sum(found) < 800


def test_rows_between_one_another_are_taken():
    out = as_strided(np.empty(8), (3, 2), (16, 24))  # at 0, 24, 16, 40, 32, 56
    got, _ = softmax.forward(X, X, X, out=out)
    assert got is out
    np.testing.assert_array_equal(out, softmax.forward(X, X, X)[0])


@pytest.mark.parametrize("wrong", [[1.0], 3, "gpu"], ids=repr)
def test_a_state_is_where_an_array_is(wrong):
    assert isinstance(softmax.init_state((2,), 3, 4, like=X).k, np.ndarray)
    with pytest.raises(TypeError, match=rf"^like: expected an array, got {type(wrong).__name__}"):
        softmax.init_state((2,), 3, 4, like=wrong)


def test_more_elements_than_memory_are_not_counted():
    with pytest.raises(ValueError, match=r"^out: expected axes that do not overlap"):
        extras.check_out(
            as_strided(np.empty(2), (10**6, 10**6, 2), (0, 8, 0)), {"...": (10**6,), "N": 10**6, "M": 2, "dtype": float}
        )
