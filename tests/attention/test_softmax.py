"""Softmax attention beyond the contract: what it says of a matrix, and of a cache that is none."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest

from linattn_ref.attention import linear, softmax
from linattn_ref.kernels import jit, reference

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


# --- A bound step ---------------------------------------------------------------------------------------------------

ROOMS = pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])


def bound_to(state, kernels, **more):
    """A step bound to the state and to arrays of its own; a function that makes token ``t`` by it."""
    arrays = tuple(np.zeros((2, 4)) for _ in range(3))
    bound = softmax.bind_step(*arrays, state, kernels=kernels, **more)
    return bound, partial(make, bound, arrays)


def make(bound, arrays, t):
    for x in arrays:
        x[...] = X[:, t]
    bound.run()
    return bound.out_t.copy()


def expected_of(tokens, scale=None):
    """The output of the last of these tokens of ``X``."""
    q, kv = X[:, tokens[-1:]], X[:, tokens]
    return softmax.forward(q, kv, kv, causal=True, scale=scale)[0][:, 0]


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-14)  # float64, numbers of size 1


@pytest.mark.parametrize("scale", [None, 2.0])
@pytest.mark.parametrize("start", [0, 2])
@ROOMS
def test_a_bound_step_is_the_step(kernels, start, scale):
    bound, token = bound_to(cache_of(start), kernels, scale=scale)
    for t in range(start, 5):
        close(token(t), expected_of([*range(t + 1)], scale))
        assert bound.state.length == t + 1
    np.testing.assert_array_equal(bound.state.k, X)
    np.testing.assert_array_equal(bound.state.v, X)


@pytest.mark.slow
@ROOMS
def test_a_bound_step_in_float32(kernels):
    """A kernel of its own in ``jit``; some ten roundings of numbers of size 1."""
    token = [X[:, 0].astype(np.float32) for _ in range(3)]
    state = softmax.init_state((2,), 4, 4, capacity=5, dtype=np.float32)
    bound = softmax.bind_step(*token, state, kernels=kernels)
    for t in range(5):
        for x in token:
            x[...] = X[:, t]
        bound.run()
        assert bound.out_t.dtype == np.float32
        np.testing.assert_allclose(bound.out_t, expected_of([*range(t + 1)]), rtol=0, atol=2e-6)


@ROOMS
def test_a_bound_step_appends_in_place(kernels):
    state = cache_of(2)
    bound, token = bound_to(state, kernels)
    token(2)
    assert bound.state.k is state.k
    assert bound.state.v is state.v


@ROOMS
def test_others_of_a_bound_cache_go_on_from_copies(kernels):
    """The state that was bound, and one that the bound step left behind, while it goes on."""
    state = cache_of(2)
    bound, token = bound_to(state, kernels)
    token(2)
    then = bound.state
    token(3)
    close(softmax.step(X[:, 4], X[:, 4], X[:, 4], state)[0], expected_of([0, 1, 4]))
    close(softmax.step(X[:, 0], X[:, 0], X[:, 0], then)[0], expected_of([0, 1, 2, 0]))
    close(token(4), expected_of([0, 1, 2, 3, 4]))


@ROOMS
def test_a_bound_step_whose_next_row_is_taken_says_so(kernels):
    bound, token = bound_to(cache_of(2), kernels)
    token(2)
    _, after = softmax.step(X[:, 3], X[:, 3], X[:, 3], bound.state)
    with pytest.raises(ValueError, match=r"^state: another step has continued from the state of this bound step"):
        token(4)
    close(softmax.step(X[:, 4], X[:, 4], X[:, 4], after)[0], expected_of([0, 1, 2, 3, 4]))
    _, again = bound_to(bound.state, kernels)  # a branch: a copy
    close(again(4), expected_of([0, 1, 2, 4]))


@ROOMS
def test_two_steps_bound_to_one_state(kernels):
    state = cache_of(2)
    (_, first), (_, second) = bound_to(state, kernels), bound_to(state, kernels)
    close(first(3), expected_of([0, 1, 3]))
    with pytest.raises(ValueError, match=r"^state: another step has continued from the state of this bound step"):
        second(4)
    close(first(4), expected_of([0, 1, 3, 4]))


@ROOMS
def test_a_bound_step_to_a_branch_has_a_copy(kernels):
    state = cache_of(2)
    softmax.step(X[:, 2], X[:, 2], X[:, 2], state)
    bound, token = bound_to(state, kernels)
    assert not np.shares_memory(bound.state.k, state.k)
    close(token(4), expected_of([0, 1, 4]))


@ROOMS
def test_a_bound_step_without_room(kernels):
    with pytest.raises(ValueError, match=r"^state: no room, 1 more tokens after 5"):
        bound_to(cache_of(5), kernels)
    bound, token = bound_to(cache_of(4), kernels)
    token(4)
    with pytest.raises(ValueError, match=r"^state: no room for one more token"):
        token(4)
    assert bound.state.length == 5


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
@ROOMS
def test_a_copy_of_a_bound_step_has_a_cache_of_its_own(kernels, how):
    arrays = tuple(np.zeros((2, 4)) for _ in range(3))
    bound = softmax.bind_step(*arrays, cache_of(2), kernels=kernels)
    make(bound, arrays, 2)
    other, theirs = how((bound, arrays))
    close(make(other, theirs, 3), expected_of([0, 1, 2, 3]))
    close(make(bound, arrays, 4), expected_of([0, 1, 2, 4]))
    assert other.state.length == bound.state.length == 4


def test_a_bound_step_needs_arrays_without_gaps():
    gaps, plain = np.zeros((4, 2)).T, np.zeros((2, 4))
    for i, name in enumerate(("q_t", "k_t", "v_t")):
        arrays = [gaps if i == j else plain.copy() for j in range(3)]
        with pytest.raises(ValueError, match=rf"^{name}: expected a C-contiguous array, got strides \(8, 16\)"):
            softmax.bind_step(*arrays, cache_of(2))
