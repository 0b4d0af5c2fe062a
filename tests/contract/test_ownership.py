"""Who owns a state: from one state several things may go on, and none of them is ever given a wrong number.

The truth is always what the same call gives from a deep copy that nobody else has. A step from a state that another
step has taken over must give that, or an error that says what happened.
"""

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from case import Call, Sizes, assert_close, normal_like
from cases import each_setting

from linattn_ref.gradcheck.inputs import float_arrays

RECURRENT = each_setting(lambda s: s.case.recurrent and not s.masked)
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda state: pickle.loads(pickle.dumps(state))}


def after_prefill(setting):
    """A call of nine tokens, and the state after the first five."""
    call = setting.call(Sizes(9, 9))
    _, saved = call.block(0, 5).forward(state=call.init_state())
    return call, saved.state


class Branch(NamedTuple):
    """A block that continued from a state; its backward pass comes later, after whatever else goes on from that."""

    call: Call
    out: Any
    saved: Any

    def numbers(self):
        """Its output and all gradients, by name."""
        gradients = self.call.case.backward(normal_like(self.out), self.saved)
        return {"out": self.out, **dict(float_arrays("gradient", gradients))}


def branch_from(state, call):
    return Branch(call, *call.forward(state=state))


def alone(state, call):
    """The numbers of a branch from a copy of the state."""
    return branch_from(copy.deepcopy(state), call).numbers()


def assert_right(branch, expected):
    found = branch.numbers()
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(found[name], x, branch.call.case, name)


def assert_refused(error):
    assert str(error).startswith("state: expected a state that no step has continued from")


def right_or_refused(call, t, state, truth):
    """Token ``t``: the right number, or the error that says who has the state now. The state after it, or None."""
    expected, _ = call.step(t, truth)
    try:
        out, state = call.step(t, state)
    except ValueError as error:
        assert_refused(error)
        return None
    assert_close(out, expected, call.case)
    return state


@RECURRENT
def test_two_blocks_continue_from_one_state(setting):
    call, state = after_prefill(setting)
    blocks = [call.block(5, 8), call.block(6, 9)]
    expected = [alone(state, block) for block in blocks]
    branches = [branch_from(state, block) for block in blocks]
    for branch, numbers in zip(branches, expected, strict=True):
        assert_right(branch, numbers)


@RECURRENT
def test_the_same_block_twice_the_same_bits(setting):
    call, state = after_prefill(setting)
    block = call.block(5, 9)
    (out, saved), (again, saved_again) = (block.forward(state=state) for _ in range(2))
    np.testing.assert_array_equal(again, out)
    for first, second in zip(saved.state, saved_again.state, strict=True):
        if isinstance(first, np.ndarray) and first.dtype.kind == "f":
            np.testing.assert_array_equal(second, first)


@RECURRENT
def test_two_steps_from_one_state(setting):
    call, state = after_prefill(setting)
    truths = [copy.deepcopy(state) for _ in range(4)]
    taken = right_or_refused(call, 5, state, truths[0])
    assert taken is not None, "nobody else had it"
    right_or_refused(call, 6, state, truths[1])
    _, truth = call.step(5, truths[2])
    assert right_or_refused(call, 7, taken, truth) is not None


@RECURRENT
def test_a_block_after_a_step_from_the_same_state(setting):
    call, state = after_prefill(setting)
    expected = alone(state, block := call.block(6, 9))
    call.step(5, state)
    try:
        branch = branch_from(state, block)
    except ValueError as error:
        assert_refused(error)
    else:
        assert_right(branch, expected)


@RECURRENT
def test_steps_do_not_disturb_a_block_before_its_backward_pass(setting):
    """Neither one from the state that it continued from, nor one from the state after it."""
    call, state = after_prefill(setting)
    block, truth = call.block(5, 8), copy.deepcopy(state)
    expected = alone(state, block)
    branch = branch_from(state, block)
    assert right_or_refused(call, 6, state, truth) is not None, "a block leaves its state alone"
    call.step(8, branch.saved.state)
    assert_right(branch, expected)


@RECURRENT
def test_what_was_saved_is_not_written_over(setting):
    """Not a bit of it, whoever goes on."""
    call, state = after_prefill(setting)
    _, saved = call.block(5, 7).forward(state=state)
    kept = {name: x.copy() for name, x in float_arrays("saved", saved._replace(state=None))}
    call.block(0, 4).forward(state=state)  # other tokens than before
    call.step(0, state)
    call.step(0, saved.state)
    for name, x in float_arrays("saved", saved._replace(state=None)):
        np.testing.assert_array_equal(x, kept[name], err_msg=name)


@pytest.mark.parametrize("how", COPIES)
@RECURRENT
def test_a_copy_is_a_state_of_its_own(setting, how):
    call, state = after_prefill(setting)
    truths = [copy.deepcopy(state) for _ in range(3)]
    other = COPIES[how](state)
    assert right_or_refused(call, 5, other, truths[0]) is not None
    assert right_or_refused(call, 6, state, truths[1]) is not None


@pytest.mark.parametrize("how", COPIES)
@RECURRENT
def test_two_that_shared_share_in_a_copy_too(setting, how):
    call, state = after_prefill(setting)
    truths = [copy.deepcopy(state) for _ in range(3)]
    _, saved = call.block(5, 7).forward(state=state)
    first, second = COPIES[how]((state, saved.state))
    right_or_refused(call, 5, first, truths[0])
    _, after = call.block(5, 7).forward(state=truths[1])
    right_or_refused(call, 7, second, after.state)
    right_or_refused(call, 6, first, truths[2])
