"""Shapes, masks and scales that hypothesis draws: the output is that of loops, the gradient that of the output."""

import numpy as np
import pytest
from case import Sizes, assert_close
from cases import each_setting
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as boolean_arrays
from hypothesis.internal.conjecture import providers

from linattn_ref.gradcheck import check_directions

# Hypothesis also tries constants of imported modules. Workers import different ones: their examples would differ.
providers._get_local_constants = lambda: providers._local_constants
# The same examples in every run; no deadline, since the first call of a Numba kernel compiles it.
repeatable = settings(derandomize=True, deadline=None, database=None)
# Once a room: masks are drawn.
EACH_ROOM = each_setting(lambda s: s.case.any_scale and s.masked)


@st.composite
def calls(draw, setting):
    """Any small shape, any mask or none; a scale of either sign, and numbers from small to large."""
    n, n_keys, d, m = (draw(st.integers(1, 9)) for _ in range(4))
    leading = draw(st.sampled_from([(), (1,), (3,), (2, 1, 2)]))
    call = setting.call(Sizes(n, n_keys, d, m, leading), seed=draw(st.integers(0, 99)))
    options = {"key_mask": draw(st.none() | boolean_arrays(bool, (*leading, call.sizes.n_keys)))}
    if setting.case.takes("scale"):
        options["scale"] = draw(st.floats(-2, 2))
    return call.change(**options)


@EACH_ROOM
@settings(repeatable, max_examples=4)
@given(data=st.data())
def test_output_is_that_of_plain_loops(setting, data):
    check_output(data.draw(calls(setting)), data)


@EACH_ROOM
@settings(repeatable, max_examples=3)
@given(data=st.data())
def test_gradient_is_that_of_the_output(setting, data):
    check_gradient(data.draw(calls(setting)))


@pytest.mark.slow
@EACH_ROOM
@settings(repeatable, max_examples=40)
@given(data=st.data())
def test_more_shapes(setting, data):
    call = data.draw(calls(setting))
    check_output(call, data)
    check_gradient(call)


def check_output(call, data):
    q = call.arrays[call.first] * data.draw(st.sampled_from([1e-3, 1.0, 10.0]))
    call = call.change(arrays={call.first: q})
    assert_close(call.forward()[0], call.expected(), call.case)


def check_gradient(call):
    check_directions(
        call.function(), call.case.backward, *call.arrays.values(), rng=np.random.default_rng(0), directions=1
    ).assert_ok()
