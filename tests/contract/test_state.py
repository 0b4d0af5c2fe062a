"""The recurrent form: token by token, in blocks or all at once, the numbers are the same."""

from functools import wraps
from itertools import pairwise

import numpy as np
import pytest
from case import Sizes, assert_close
from cases import each_setting, each_setting_and_dtype

from linattn_ref.gradcheck import check_elementwise
from linattn_ref.gradcheck.inputs import float_arrays

RECURRENT_IN_EACH_DTYPE = each_setting_and_dtype(lambda s: s.case.recurrent and not s.masked)
RECURRENT = each_setting(lambda s: s.case.recurrent and not s.masked)
LENGTH = 13


def assert_same_state(actual, expected, case):
    """Every number in it, however it is written down."""
    actual, expected = (dict(float_arrays("state", state)) for state in (actual, expected))
    assert actual.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(actual[name], x, case, name)


@pytest.mark.parametrize("prefill", [0, 1, 6, 12])
@RECURRENT_IN_EACH_DTYPE
def test_prefill_and_steps_are_one_pass(setting, dtypes, prefill):
    for dtype in dtypes:
        prefill_and_step(setting, prefill, dtype)


def prefill_and_step(setting, prefill, dtype):
    call = setting.call(Sizes(LENGTH, LENGTH), dtype=dtype)
    full = call.run()
    state, outs = call.init_state(), []
    if prefill:
        out, saved = call.block(0, prefill).forward(state=state)
        outs, state = [out[..., t, :] for t in range(prefill)], saved.state
    for t in range(prefill, LENGTH):
        out_t, state = call.step(t, state)
        assert out_t.dtype == dtype
        outs.append(out_t)
    assert_close(np.stack(outs, axis=-2), full.out, call.case)
    _, whole = call.forward(state=call.init_state())
    assert_same_state(state, whole.state, call.case)


@pytest.mark.parametrize("cuts", [[0, 1, 13], [0, 5, 6, 13], [0, 12, 13]])
@RECURRENT_IN_EACH_DTYPE
def test_blocks_are_one_pass(setting, dtypes, cuts):
    for dtype in dtypes:
        call = setting.call(Sizes(LENGTH, LENGTH), dtype=dtype)
        state, outs = call.init_state(), []
        for start, stop in pairwise(cuts):
            out, saved = call.block(start, stop).forward(state=state)
            outs.append(out)
            state = saved.state
        assert_close(np.concatenate(outs, axis=-2), call.run().out, call.case)


@RECURRENT
def test_steps_without_leading_axes_and_with_three(setting):
    for leading in ((), (2, 1, 3)):
        call = setting.call(Sizes(4, 4, leading=leading))
        state, outs = call.init_state(), []
        for t in range(4):
            out_t, state = call.step(t, state)
            outs.append(out_t)
        assert_close(np.stack(outs, axis=-2), call.run().out, call.case)


@RECURRENT
def test_gradients_of_a_block_that_continues(setting):
    """Those of its own tokens, with what came before held fixed."""
    call = setting.call(Sizes(7, 7, 3, 2, (2,)))
    _, before = call.block(0, 4).forward(state=call.init_state())
    last = call.block(4, 7)

    @wraps(last.case.forward)
    def forward(*arrays):
        return last.function()(*arrays, state=before.state)

    def backward(d_out, saved):
        gradients = last.case.backward(d_out, saved)
        return gradients._replace(state=None) if "state" in gradients._fields else gradients

    check_elementwise(forward, backward, *last.arrays.values(), rng=np.random.default_rng(0)).assert_ok()


@each_setting(lambda s: s.case.recurrent and not s.masked and s.case.takes("causal"))
def test_a_state_needs_causal(setting):
    call = setting.call()
    with pytest.raises(ValueError, match=r"^state: .*causal=True"):
        call.change(causal=False).forward(state=call.init_state())


@RECURRENT
def test_a_state_of_other_arrays_is_refused(setting):
    call = setting.call(Sizes(4, 4))
    for other in (Sizes(4, 4, m=9), Sizes(4, 4, leading=(3,))):
        with pytest.raises(ValueError, match=r"^state"):
            call.forward(state=setting.call(other).init_state())
    with pytest.raises(TypeError, match=r"^state"):
        call.forward(state=setting.call(Sizes(4, 4), dtype=np.float32).init_state())


@RECURRENT
def test_what_is_no_state_is_refused(setting):
    call = setting.call(Sizes(4, 4))
    for wrong in (tuple(call.init_state()), np.zeros(3), "state"):
        with pytest.raises(TypeError, match=r"^state: expected .*State, got "):
            call.forward(state=wrong)
    for wrong in (None, tuple(call.init_state()), "state"):
        with pytest.raises(TypeError, match=r"^state: expected .*State, got "):
            call.step(0, wrong)


@RECURRENT
def test_leading_axes_and_dtype_of_a_state(setting):
    call = setting.call()
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match=rf"^leading\[1\]: expected an integer of at least 1, got {wrong}"):
            call.change(sizes=call.sizes._replace(leading=(2, wrong))).init_state()
    module, options = call.case.module, call.change(capacity=4).accepted_by(call.case.module.init_state)
    constants = call.constants()
    with pytest.raises(TypeError, match=r"^leading: expected a tuple of integers, got 2"):
        module.init_state(2, call.sizes.d, call.sizes.m, *constants, **options)
    for dtype in (int, np.complex128, "nonsense"):
        with pytest.raises(TypeError, match=r"^dtype: expected float32 or float64, got "):
            module.init_state((2,), call.sizes.d, call.sizes.m, *constants, **{**options, "dtype": dtype})


@pytest.mark.parametrize("width", [0, -1, True, 2.0, "2"])
@RECURRENT
def test_widths_of_a_state_are_counts(setting, width):
    call = setting.call()
    for size, name in (("d", "key_width"), ("m", "value_width")):
        wrong = call.change(sizes=call.sizes._replace(**{size: width}))
        with pytest.raises(ValueError, match=rf"^{name}: expected an integer of at least 1, got {width!r}"):
            wrong.init_state()
