"""Softmax attention beyond the contract: what it says of a matrix, and of a cache that is none."""

import numpy as np
import pytest

from linattn_ref.attention import linear, softmax

X = np.random.default_rng(0).standard_normal((2, 5, 4))


@pytest.mark.parametrize(
    ("state", "got"),
    [(linear.init_state((2,), 4, 4), r"linear_state\.State"), ((X, X, 5), "tuple"), (X, r"numpy\.ndarray")],
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


# --- The cache ------------------------------------------------------------------------------------------------------


def cache_of(length, **more):
    """A cache of ``length`` of the tokens of ``X``, with room for as many as there are."""
    state = softmax.init_state((2,), 4, 4, capacity=5, **more)
    return softmax.append(X[:, :length], X[:, :length], state) if length else state


def test_a_cache_without_a_count_is_copied():
    """One that was put together by hand: whose arrays these are nobody knows."""
    state = cache_of(3)
    by_hand = softmax.State(state.k, state.v, 3)
    before = state.k.copy(), state.v.copy()
    out, after = softmax.step(X[:, 3], X[:, 3], X[:, 3], by_hand)
    np.testing.assert_array_equal(out, softmax.step(X[:, 3], X[:, 3], X[:, 3], state)[0])
    assert not np.shares_memory(after.k, state.k)
    assert after.rows is not None
    np.testing.assert_array_equal((by_hand.k[:, :3], by_hand.v[:, :3]), (before[0][:, :3], before[1][:, :3]))


def test_who_is_alone_appends_in_place():
    state = cache_of(3)
    _, saved = softmax.forward(X[:, 3:4], X[:, 3:4], X[:, 3:4], causal=True, state=state)
    _, after = softmax.step(X[:, 4], X[:, 4], X[:, 4], saved.state)
    assert after.k is saved.state.k is state.k
    assert after.v is saved.state.v is state.v


@pytest.mark.parametrize("length", [-1, 4, 2.5, "3", None])
def test_a_length_that_the_cache_has_not(length):
    with pytest.raises((TypeError, ValueError), match=r"^state\.length: expected an integer from 0 to 3"):
        softmax.step(X[:, 3], X[:, 3], X[:, 3], cache_of(3)._replace(length=length))


def test_a_cache_that_is_full():
    with pytest.raises(ValueError, match=r"^state: no room, 1 more tokens after 5 need a capacity of 6, got 5$"):
        softmax.step(X[:, 3], X[:, 3], X[:, 3], cache_of(5))


def test_a_cache_that_cannot_be_written_to():
    state = cache_of(3)
    for x in (state.k, state.v):
        x.flags.writeable = False
        with pytest.raises(ValueError, match=r"^state\.[kv]: expected an array that can be written to"):
            softmax.step(X[:, 3], X[:, 3], X[:, 3], state)
        x.flags.writeable = True
