"""The door of a function: what it names, and what it leads to."""

import numpy as np
import pytest

from linattn_ref.attention import linear, performer, softmax

X = np.ones((3, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: performer.forward(X, X, X), r"^forward\(\) missing 1 required positional argument: 'omega'"),
        (lambda: linear.forward(X, X, X, scale=1.0), r"^forward\(\) got an unexpected keyword argument 'scale'"),
        (lambda: softmax.backward(X), r"^backward\(\) missing 1 required positional argument: 'saved'"),
        (lambda: softmax.forward(X, X, 3), r"^v: expected a numpy\.ndarray, got int"),
    ],
)
def test_a_wrong_call_names_the_function_and_not_its_check(call, message):
    with pytest.raises(TypeError, match=message) as told:
        call()
    assert told.value.__context__ is None


def test_behind_it_nothing_is_checked():
    """And nothing else is different."""
    out, _ = softmax.forward(X, X, X)
    np.testing.assert_array_equal(softmax.forward.unchecked(X, X, X)[0], out)
    half = X.astype(np.float16)
    with pytest.raises(TypeError, match=r"^q: expected float32 or float64, got float16"):
        softmax.forward(half, half, half)
    assert softmax.forward.unchecked(half, half, half)[0].dtype == np.float16
