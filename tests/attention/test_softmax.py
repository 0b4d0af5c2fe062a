"""Softmax attention beyond the contract: what it says of a matrix, and the cache that grows."""

import copy
import pickle

import numpy as np
import pytest

from linattn_ref.attention import linear, softmax
from linattn_ref.kernels import jit, reference

X = np.random.default_rng(0).standard_normal((2, 5, 4))
BACKENDS = pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])


@pytest.mark.parametrize(
    ("state", "got"),
    [(linear.init_state((2,), 4, 4), r"sums\.State"), ((X, X, None), "tuple"), (X, r"numpy\.ndarray")],
)
def test_a_state_of_another_mechanism_is_told_from_its_own(state, got):
    """Several are called ``State``."""
    with pytest.raises(TypeError, match=rf"^state: expected softmax\.State, got {got}$"):
        softmax.forward(X, X, X, causal=True, state=state)
    with pytest.raises(TypeError, match=rf"^state: expected softmax\.State, got {got}$"):
        softmax.step(X[:, 0], X[:, 0], X[:, 0], state)


def test_a_matrix_is_no_array():
    """Its ``*`` is the product of matrices. It has two axes, so that the contract, with more of them, cannot ask."""
    for wrong, name in enumerate("qkv"):
        arrays = [x.view(np.matrix) if i == wrong else x for i, x in enumerate([X[0]] * 3)]
        with pytest.raises(TypeError, match=rf"^{name}: expected a numpy\.ndarray, got matrix$"):
            softmax.forward(*arrays)


# --- The cache ------------------------------------------------------------------------------------------------------


def cache_of(length, kernels, capacity=None):
    """A cache of the first ``length`` tokens of ``X``."""
    state = softmax.init_state((2,), 4, 4, capacity=capacity, kernels=kernels)
    if not length:
        return state
    rows = X[:, :length]
    return softmax.forward(rows, rows, rows, causal=True, state=state, kernels=kernels)[1].state


def token(t, state, kernels):
    return softmax.step(X[:, t], X[:, t], X[:, t], state, kernels=kernels)


def assert_is(out, tokens):
    """The output of the last of these tokens of ``X``, in float64 and of numbers of size 1."""
    q, kv = X[:, tokens[-1:]], X[:, tokens]
    np.testing.assert_allclose(out, softmax.forward(q, kv, kv, causal=True)[0][:, 0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("capacity", [None, 1, 5, np.int8(100)])
@BACKENDS
def test_capacity_changes_no_number(kernels, capacity):
    """Neither where it is too small nor where there is none: a cache grows."""
    state = softmax.init_state((2,), 4, 4, capacity=capacity, kernels=kernels)
    assert state.k.shape == (2, 0, 4)
    for t in range(5):
        out, state = token(t, state, kernels)
        assert_is(out, [*range(t + 1)])
        np.testing.assert_array_equal((state.k, state.v), (X[:, : t + 1],) * 2)


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, "5"])
@BACKENDS
def test_a_capacity_that_is_no_count(kernels, capacity):
    with pytest.raises(ValueError, match=rf"^capacity: expected an integer of at least 1, got {capacity!r}"):
        softmax.init_state((2,), 4, 4, capacity=capacity, kernels=kernels)


@pytest.mark.parametrize(("first", "second"), [(jit, reference), (reference, jit)], ids=["from jit", "to jit"])
def test_one_backend_continues_from_a_state_of_another(first, second):
    out, after = token(3, cache_of(3, first), second)
    assert_is(out, [0, 1, 2, 3])
    assert_is(token(4, after, first)[0], [0, 1, 2, 3, 4])


def test_jit_appends_in_shared_memory():
    """Rows that are written never change, so that a state and the one after it share them."""
    state = cache_of(2, jit, capacity=5)
    _, after = token(2, state, jit)
    _, last = token(3, after, jit)
    assert np.shares_memory(last.k, state.k)
    assert np.shares_memory(last.v, state.v)
    assert [x.k.shape[-2] for x in (state, after, last)] == [2, 3, 4]


def test_a_second_continuation_of_jit_copies():
    state = cache_of(2, jit, capacity=5)
    (_, first), (out, second) = token(2, state, jit), token(3, state, jit)
    assert_is(out, [0, 1, 3])
    assert np.shares_memory(first.k, state.k)
    assert not np.shares_memory(second.k, state.k)
    np.testing.assert_array_equal(first.k, X[:, :3])
    np.testing.assert_array_equal(second.k, X[:, [0, 1, 3]])
    assert_is(token(4, first, jit)[0], [0, 1, 2, 4])
    assert_is(token(4, second, jit)[0], [0, 1, 3, 4])


def test_a_cache_of_jit_doubles_where_it_has_no_room():
    state = cache_of(4, jit, capacity=4)
    _, after = token(4, state, jit)
    assert not np.shares_memory(after.k, state.k)
    assert after.k.base.shape[-2] == 10


@BACKENDS
def test_a_state_put_together_by_hand(kernels):
    """Whose arrays these are nobody knows: they are copied, also from a state's field replaced."""
    state = cache_of(3, kernels, capacity=5)
    for by_hand in (softmax.State(state.k, state.v), state._replace(k=-state.k, v=state.v.copy())):
        kept = by_hand.k.copy(), by_hand.v.copy()
        expected, _ = softmax.forward(
            X[:, 3:4], *(np.concatenate([x, X[:, 3:4]], axis=1) for x in kept), causal=True, kernels=reference
        )
        out, after = token(3, by_hand, kernels)
        np.testing.assert_allclose(out, expected[:, 0], rtol=0, atol=1e-14)
        assert not np.shares_memory(after.k, by_hand.k)
        np.testing.assert_array_equal((by_hand.k, by_hand.v), kept)


@BACKENDS
def test_a_cache_that_cannot_be_written_to(kernels):
    """Nobody has to write to it."""
    state = softmax.State(X[:, :3].copy(), X[:, :3].copy())
    for x in state[:2]:
        x.flags.writeable = False
    assert_is(token(3, state, kernels)[0], [0, 1, 2, 3])


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
@BACKENDS
def test_a_copy_has_a_cache_of_its_own(kernels, how):
    state = cache_of(2, kernels, capacity=5)
    other = how(state)
    assert type(other) is type(state)
    (out, first), (other_out, second) = token(2, state, kernels), token(3, other, kernels)
    assert_is(out, [0, 1, 2])
    assert_is(other_out, [0, 1, 3])
    assert not np.shares_memory(first.k, second.k)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_is_of_the_rows_that_are_written(how):
    """Not of a cache's free ones, in which anything may stand."""
    state = cache_of(2, jit, capacity=1000)
    other = how(state)
    assert len(pickle.dumps(state)) < 1000
    np.testing.assert_array_equal(token(2, other, jit)[0], token(2, state, jit)[0])


@BACKENDS
def test_steps_after_masked_keys(kernels):
    """A state remembers which of its keys may be seen; the tokens of steps may all be."""
    key_mask = np.array([[True, False, True], [False, True, True]])
    rows, state = X[:, :3], softmax.init_state((2,), 4, 4, kernels=kernels)
    state = softmax.forward(rows, rows, rows, causal=True, key_mask=key_mask, state=state, kernels=kernels)[1].state
    np.testing.assert_array_equal(state.key_mask, key_mask)
    for t in (3, 4):
        out, state = token(t, state, kernels)
        for head in range(2):
            tokens = [*np.flatnonzero(key_mask[head]), *range(3, t + 1)]
            kv = X[head, tokens]
            expected, _ = softmax.forward(X[head, t : t + 1], kv, kv)
            np.testing.assert_allclose(out[head], expected[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("key_mask", "error", "match"),
    [
        (np.ones((2, 2)), TypeError, r"^state\.key_mask: expected an array of bool, got float64"),
        (np.ones((2, 4), bool), ValueError, r"^state\.key_mask: expected shape \(\.\.\., t\) = \(2, 3\), got \(2, 4\)"),
    ],
)
def test_a_state_whose_mask_does_not_fit(key_mask, error, match):
    state = cache_of(3, reference)._replace(key_mask=key_mask)
    with pytest.raises(error, match=match):
        token(3, state, reference)
