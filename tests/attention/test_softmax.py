"""Softmax attention beyond the contract: what it says of a matrix, and of a cache that is none."""

import numpy as np
import pytest

from linattn_ref.attention import linear, softmax

X = np.random.default_rng(0).standard_normal((2, 5, 4))


@pytest.mark.parametrize(
    ("state", "got"),
    [(linear.init_state((2,), 4, 4), r"linear_recurrent\.State"), ((X, X, 5), "tuple"), (X, r"numpy\.ndarray")],
)
def test_a_state_of_another_mechanism_is_told_from_its_own(state, got):
    """Several are called ``State``."""
    with pytest.raises(TypeError, match=rf"^state: expected a softmax\.State, got a {got}$"):
        softmax.forward(X, X, X, causal=True, state=state)
    with pytest.raises(TypeError, match=rf"^state: expected a softmax\.State, got a {got}$"):
        softmax.step(X[:, 0], X[:, 0], X[:, 0], state)


def test_a_matrix_is_no_array():
    """Its ``*`` is the product of matrices. It has two axes, so that the contract, with more of them, cannot ask."""
    for wrong, name in enumerate("qkv"):
        arrays = [x.view(np.matrix) if i == wrong else x for i, x in enumerate([X[0]] * 3)]
        with pytest.raises(TypeError, match=rf"^{name}: expected a numpy\.ndarray, got matrix$"):
            softmax.forward(*arrays)
