"""What is saved is data: another process gets the same gradients from it, and so does whoever copies it."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from case import Sizes, normal_like
from cases import each_setting

from linattn_ref.gradcheck.inputs import float_arrays

ELSEWHERE = """
import importlib, pickle, sys
calls = pickle.load(open(sys.argv[1], "rb"))
gradients = {}
for name, (module, pickled) in calls.items():
    d_out, saved = pickle.loads(pickled)
    gradients[name] = importlib.import_module(module).backward(d_out, saved)
pickle.dump(gradients, open(sys.argv[2], "wb"))
"""


def forward(setting):
    """The gradient of the output, and what was saved; a state before it, if there can be one."""
    call = setting.call(Sizes(6, 9))
    if setting.case.recurrent and not setting.masked:
        call = setting.call(Sizes(6, 6))
        out, saved = call.forward(state=call.init_state())
    else:
        out, saved = call.forward()
    return normal_like(out), saved


def assert_same_bits(gradients, expected):
    assert type(gradients) is type(expected)
    found = dict(float_arrays("gradient", gradients))
    for name, x in float_arrays("gradient", expected):
        np.testing.assert_array_equal(found.pop(name), x, err_msg=name)
    assert not found


@pytest.fixture(scope="module")
def from_elsewhere(tmp_path_factory, request):
    """The gradients of every setting here that is run and whose ``saved`` can be pickled, from another process."""
    there, back = (tmp_path_factory.mktemp("saved") / name for name in ("calls", "gradients"))
    calls = {}
    here = [item for item in request.session.items if item.path == request.path]
    for setting in {item.callspec.id: item.callspec.params["setting"] for item in here}.values():
        try:
            pickled = pickle.dumps(forward(setting))
        except (TypeError, AttributeError, pickle.PicklingError):
            continue  # its own test will say so
        calls[str(setting)] = setting.case.module.__name__, pickled
    there.write_bytes(pickle.dumps(calls))
    subprocess.run([sys.executable, "-c", ELSEWHERE, there, back], check=True)
    return pickle.loads(back.read_bytes())


@each_setting()
def test_another_process_gets_the_same_gradients(setting, from_elsewhere):
    d_out, saved = forward(setting)
    pickle.dumps(saved)
    assert_same_bits(from_elsewhere[str(setting)], setting.case.backward(d_out, saved))


@each_setting()
def test_a_copy_gives_the_same_gradients(setting):
    d_out, saved = forward(setting)
    copied = copy.deepcopy(saved)
    assert_same_bits(setting.case.backward(d_out, copied), setting.case.backward(d_out, saved))
