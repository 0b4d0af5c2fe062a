"""Kernels of one's own: whatever has the functions will do for a room, be it a module, a namespace or an object."""

import re
from collections import Counter
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from linattn_ref.attention import linear, local, nystromformer, reformer, rfa, softmax
from linattn_ref.attention.rooms import CALLED, CALLED_OF
from linattn_ref.kernels import reference

NAMES = ("causal_product", "lsh", "pattern_softmax", "softmax")


def counted(name, calls):
    """The functions of a kernel of the reference that mechanisms call, and no other; each call is noted."""

    def note(function, *args, **keywords):
        calls[f"{name}.{function}"] += 1
        return getattr(getattr(reference, name), function)(*args, **keywords)

    return SimpleNamespace(**{function: partial(note, function) for function in CALLED_OF.get(name, CALLED)})


def as_module(**kernels):
    module = ModuleType("mykernels")
    vars(module).update(kernels)
    return module


def as_object(**kernels):
    return type("MyKernels", (), kernels)()


rng = np.random.default_rng(0)
Q, K, V = (rng.standard_normal((2, 9, 4)) for _ in range(3))
OMEGA, GATE = rng.standard_normal((5, 4)), rng.random((2, 9))
FORWARDS = {
    "softmax": (softmax, partial(softmax.forward, Q, K, V), NAMES[3], CALLED),
    "nystromformer": (nystromformer, partial(nystromformer.forward, Q, K, V, landmarks=3), NAMES[3], CALLED),
    "linear": (linear, partial(linear.forward, Q, K, V, causal=True), NAMES[0], CALLED_OF[NAMES[0]][:2]),
    "rfa": (rfa, partial(rfa.forward, Q, K, V, OMEGA, GATE, causal=True), NAMES[0], CALLED_OF[NAMES[0]][:2]),
    "local": (local, partial(local.forward, Q, K, V, window=2), NAMES[2], CALLED),
    "reformer": (
        reformer,
        partial(reformer.forward, Q, V, rotations=reformer.draw_rotations(2, 4, 4, rng), chunk=3),
        NAMES[1],
        CALLED,
    ),
}


@pytest.mark.parametrize("room", [SimpleNamespace, as_module, as_object])
@pytest.mark.parametrize("mechanism", FORWARDS)
def test_both_passes_run_in_it(mechanism, room):
    """It has the one kernel that the mechanism calls; of other kernels a room may have, none is missed."""
    module, forward, name, functions = FORWARDS[mechanism]
    (expected, expected_saved), calls = forward(), Counter()
    out, saved = forward(kernels=room(**{name: counted(name, calls)}))
    gradients = module.backward(out, saved)
    times = 2 if mechanism == "nystromformer" else 1
    assert calls == dict.fromkeys([f"{name}.{function}" for function in functions], times)
    np.testing.assert_array_equal(out, expected)
    for x, y in zip(gradients, module.backward(expected, expected_saved), strict=True):
        np.testing.assert_array_equal(x, y)


def test_steps_run_in_it():
    calls = Counter()
    room = SimpleNamespace(causal_product=counted("causal_product", calls), softmax=counted("softmax", calls))
    token = [x[:, 0] for x in (Q, K, V)]
    cases = [
        (linear, partial(linear.init_state, (2,), 4, 4), ()),
        (rfa, partial(rfa.init_state, (2,), 4, 4, OMEGA), (OMEGA, GATE[:, 0])),
        (softmax, partial(softmax.init_state, (2,), 4, 4, capacity=1), ()),
    ]
    for module, init_state, others in cases:
        expected, _ = module.step(*token, init_state(), *others)
        np.testing.assert_array_equal(module.step(*token, init_state(), *others, kernels=room)[0], expected)
    assert calls == {"causal_product.step": 2, "softmax.forward": 1}
    bound = linear.bind_step(*(x.copy() for x in token), linear.init_state((2,), 4, 4), kernels=room)
    bound.run()
    np.testing.assert_array_equal(bound.out_t, linear.step(*token, linear.init_state((2,), 4, 4))[0])
    assert calls["causal_product.step"] == 3


@pytest.mark.parametrize(
    ("mechanism", "lacking"), [(m, f) for m, (*_, name, _) in FORWARDS.items() for f in CALLED_OF.get(name, CALLED)]
)
def test_one_that_lacks_a_function_is_told_which(mechanism, lacking):
    _, forward, name, _ = FORWARDS[mechanism]
    kernel = counted(name, Counter())
    delattr(kernel, lacking)
    needed = ", ".join(CALLED_OF.get(name, CALLED))
    told = re.escape(f"or your own with {needed}), got ") + rf".*, whose '{name}' lacks {lacking}$"
    with pytest.raises(TypeError, match=rf"^kernels: expected a module with a '{name}' kernel \(.*{told}"):
        forward(kernels=SimpleNamespace(**{name: kernel}))


def test_a_function_in_place_of_a_kernel_is_none():
    """As `scipy.special.softmax` or `torch.softmax`."""
    with pytest.raises(TypeError, match=r"^kernels: .*, whose 'softmax' lacks forward$"):
        softmax.forward(Q, K, V, kernels=SimpleNamespace(softmax=np.exp))
