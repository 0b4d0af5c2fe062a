"""How many of this package's functions stand between a call and the loops that compute it: few enough to be read."""

import sys

import numpy as np
import pytest

from linattn_ref.attention import linear
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit.loops.linear import causal_scan, elu_plus_one

LOOPS = causal_scan.scan, elu_plus_one.write_phi, elu_plus_one.multiply_by_slope


def calls(function):
    """The file and the name of each function of the package that is called, in order, up to the compiled loops."""
    compiled, found = [loop.threaded.py_func.__code__ for loop in LOOPS], []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and "linattn_ref" in code.co_filename and code not in compiled:
            found.append((code.co_filename, code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize(("passes", "most"), [("forward", 25), ("backward", 30)])
def test_from_causal_linear_attention_to_its_loops(passes, most):
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 3, 16, 8))

    def forward():
        return linear.forward(q, k, v, causal=True, kernels=jit)

    def backward():
        return linear.backward(out, saved)

    for _ in range(2):  # warm in the second round
        out, saved = forward()
        found = calls({"forward": forward, "backward": backward}[passes])
    assert ("normalised_" + passes) in {name for _, name in found}  # it does see calls
    assert len(found) <= most, found
    assert len({file for file, _ in found}) <= 6, found
