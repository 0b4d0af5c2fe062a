"""A state is a value: whatever goes on from it, the state stays as it was, and each who goes on gets the right numbers.

What is right is what the same call gives from a deep copy that nobody else has.
"""

import contextlib
import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from case import Sizes, assert_close, normal_like
from cases import each_setting, each_setting_and_dtype

from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.kernels.common import softmax

RECURRENT = each_setting(lambda s: s.case.recurrent and not s.masked)
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda state: pickle.loads(pickle.dumps(state))}


def after_prefill(setting, dtype=np.float64):
    """A call of nine tokens, and the state after the first five."""
    call = setting.call(Sizes(9, 9), dtype=dtype)
    _, saved = call.block(0, 5).forward(state=call.init_state())
    return call, saved.state


def kept(x):
    """The name and a copy of every array in it."""
    return {name: array.copy() for name, array in float_arrays("kept", x)}


def assert_is_what_it_was(x, before):
    assert before, "nothing is looked at"
    for name, array in float_arrays("kept", x):
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def numbers(call, state):
    """The output of a block from a state, and all its gradients, by name."""
    out, saved = call.forward(state=state)
    return {"out": out, **dict(float_arrays("gradient", call.case.backward(normal_like(out), saved)))}


def assert_right(found, expected, case):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(found[name], x, case, name)


@RECURRENT
def test_a_step_and_a_block_leave_their_state_alone(setting):
    """And so does whoever goes on from what came of them."""
    call, state = after_prefill(setting)
    before = kept(state)
    _, after = call.step(5, state)
    _, saved = call.block(5, 8).forward(state=state)
    assert_is_what_it_was(state, before)
    before_after, before_saved = kept(after), kept(saved)
    call.step(6, after)
    call.step(8, saved.state)
    call.block(6, 9).forward(state=after)
    assert_is_what_it_was(state, before)
    assert_is_what_it_was(after, before_after)
    assert_is_what_it_was(saved, before_saved)


@RECURRENT
def test_two_steps_continue_from_one_state(setting):
    call, state = after_prefill(setting)
    expected, after_expected = zip(*(call.step(t, copy.deepcopy(state)) for t in (5, 6)), strict=True)
    found, after = zip(*(call.step(t, state) for t in (5, 6)), strict=True)
    for i in range(2):
        assert_close(found[i], expected[i], call.case)
        last, truth = call.step(7, after[i]), call.step(7, copy.deepcopy(after_expected[i]))
        assert_close(last[0], truth[0], call.case)


@RECURRENT
def test_two_blocks_and_a_step_continue_from_one_state(setting):
    """Backward passes come later, after whatever else went on."""
    call, state = after_prefill(setting)
    blocks = [call.block(5, 8), call.block(6, 9)]
    expected = [numbers(block, copy.deepcopy(state)) for block in blocks]
    forwards = [block.forward(state=state) for block in blocks]
    call.step(8, state)
    for block, (out, saved), truth in zip(blocks, forwards, expected, strict=True):
        call.step(8, saved.state)
        gradients = call.case.backward(normal_like(out), saved)
        assert_right({"out": out, **dict(float_arrays("gradient", gradients))}, truth, block.case)


@RECURRENT
def test_the_same_block_twice_the_same_bits(setting):
    call, state = after_prefill(setting)
    first, second = (numbers(call.block(5, 9), state) for _ in range(2))
    for name, x in first.items():
        np.testing.assert_array_equal(second[name], x, err_msg=name)


@each_setting_and_dtype(lambda s: s.case.recurrent and not s.masked)
def test_a_state_that_may_be_overwritten_gives_the_same_numbers(setting, dtypes):
    """Token by token, each in the arrays of the one before; what was given away may be anything afterwards."""
    for dtype in dtypes:
        call, state = after_prefill(setting, dtype)
        mine = copy.deepcopy(state)
        for t in range(5, 9):
            expected, state = call.step(t, state)
            out, mine = call.step(t, mine, overwrite_state=True)
            np.testing.assert_array_equal(out, expected)
            assert type(mine) is type(state)
            assert_is_what_it_was(mine, kept(state))


@RECURRENT
def test_a_step_that_overwrites_leaves_the_backward_pass_its_numbers(setting):
    """What a forward pass saved is not the state that it hands on."""
    call = setting.call(Sizes(9, 9))
    block = call.block(0, 5)
    passes = [block.forward(state=call.init_state())]
    if "causal" in call.options and "gate" not in call.arrays:  # which needs it
        passes.append(block.change(causal=False).forward())
    for out, saved in passes:
        expected = dict(float_arrays("gradient", call.case.backward(normal_like(out), saved)))
        if saved.state is not None:
            call.step(5, saved.state, overwrite_state=True)
        assert_right(dict(float_arrays("gradient", call.case.backward(normal_like(out), saved))), expected, call.case)


@RECURRENT
def test_what_cannot_be_written_to_is_not_overwritten(setting):
    """Rows that share memory, as one state for all heads: a backend may work in the arrays, and must not in these."""
    call, state = after_prefill(setting)

    def alike(x):
        return np.broadcast_to(x[:1], x.shape)

    shared = type(state)(*(x if x is None else alike(x) for x in state))
    before = kept(shared)
    expected, after = call.step(5, type(state)(*(x if x is None else x.copy() for x in shared)))
    out, mine = call.step(5, shared, overwrite_state=True)
    assert_close(out, expected, call.case)
    assert_is_what_it_was(shared, before)
    for (name, x), (_, y) in zip(float_arrays("state", mine), float_arrays("state", after), strict=True):
        assert_close(x, y, call.case, name)


@pytest.mark.parametrize("how", COPIES)
@RECURRENT
def test_a_copy_is_a_state_of_its_own(setting, how):
    """Also of two that share memory."""
    call, state = after_prefill(setting)
    _, after = call.step(5, state)
    expected, expected_after = call.step(7, copy.deepcopy(state))[0], call.step(7, copy.deepcopy(after))[0]
    first, second = COPIES[how]((state, after))
    call.step(6, state)
    call.step(6, after)
    assert_close(call.step(7, first)[0], expected, call.case)
    assert_close(call.step(7, second)[0], expected_after, call.case)
    for x, y in ((first, state), (second, after)):
        assert type(x) is type(y)
        assert_is_what_it_was(x, kept(y))


class Rows(softmax.Rows):
    """How many are written is read by two threads at once, unless one has to wait for the other."""

    both = threading.Barrier(2)

    @property
    def written(self):
        count = self.count
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(timeout=0.1)
        return count

    @written.setter
    def written(self, count):
        self.count = count


def test_threads_continue_from_one_cache():
    """The one gets the next row, and the other a copy."""
    state, value = softmax.init_state((), 4, 4, capacity=5), np.ones((1, 4))
    state.rows = Rows(state.rows.k, state.rows.v, 0)
    with ThreadPoolExecutor(2) as threads:
        after = threads.map(lambda number: softmax.append(state, number * value, value, None), (1, 2))
    assert [one.k.tolist() for one in after] == [[[1] * 4], [[2] * 4]]
