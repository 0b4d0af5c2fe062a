"""Backends of one's own: whatever has pages by their names will do, be it a module, a namespace or an object."""

import sys
from collections import Counter
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from linattn_ref.attention import (
    delta,
    delta_rule,
    gated_linear,
    linear,
    linformer,
    local,
    longformer,
    nystromformer,
    pattern_softmax,
    reformer,
    rfa,
    softmax,
)

FUNCTIONS = "forward", "backward", "step"


@pytest.fixture
def page_of(monkeypatch):
    """Makes a page of a backend, a module of its own with the page's functions; each call is noted."""

    def make(page, calls):
        own = ModuleType(f"my_{page.__name__.rpartition('.')[2]}")
        monkeypatch.setitem(sys.modules, own.__name__, own)
        own.Saved = type("Saved", (page.Saved,), {"__module__": own.__name__})

        def note(function, *args, **options):
            calls[function] += 1
            result = getattr(page, function).page(*args, **options)
            return (result[0], own.Saved(*result[1])) if function == "forward" else result

        for function in FUNCTIONS:
            setattr(own, function, partial(note, function))
        return own

    return make


def as_module(**pages):
    module = ModuleType("mykernels")
    vars(module).update(pages)
    return module


def as_object(**pages):
    return type("MyKernels", (), pages)()


rng = np.random.default_rng(0)
Q, K, V = (rng.standard_normal((2, 9, 4)) for _ in range(3))
OMEGA, GATE, BETA = rng.standard_normal((5, 4)), rng.random((2, 9)), rng.random((2, 9))
E = rng.standard_normal((3, 9))
ROTATIONS = reformer.draw_rotations(2, 4, 4, rng)
# A mechanism, the page that it is made of, and how often it calls that, forward and backward.
FORWARDS = {
    "softmax": (softmax, partial(softmax.forward, Q, K, V), softmax, 1, 1),
    "linformer": (linformer, partial(linformer.forward, Q, K, V, E, E), softmax, 1, 1),
    "linear": (linear, partial(linear.forward, Q, K, V, causal=True), linear, 1, 1),
    "rfa": (rfa, partial(rfa.forward, Q, K, V, OMEGA), linear, 1, 1),
    "rfa gated": (rfa, partial(rfa.forward, Q, K, V, OMEGA, GATE, causal=True), delta_rule, 1, 1),
    "gated linear": (gated_linear, partial(gated_linear.forward, Q, K, V, -GATE), delta_rule, 1, 1),
    "delta": (delta, partial(delta.forward, Q, K, V, BETA), delta_rule, 1, 1),
    "local": (local, partial(local.forward, Q, K, V, window=2), pattern_softmax, 1, 1),
    "longformer": (
        longformer,
        partial(longformer.forward, *(Q, K, V) * 2, window=2, global_tokens=[]),
        pattern_softmax,
        1,
        1,
    ),
    "reformer": (reformer, partial(reformer.forward, Q, V, rotations=ROTATIONS, chunk=3), reformer, 1, 1),
    "nystromformer": (nystromformer, partial(nystromformer.forward, Q, K, V, landmarks=3), softmax, 3, 2),
}


@pytest.mark.parametrize("room", [SimpleNamespace, as_module, as_object])
@pytest.mark.parametrize("mechanism", FORWARDS)
def test_both_passes_run_in_it(mechanism, room, page_of):
    """It has the one page that the mechanism is made of; of others that a backend may have, none is missed."""
    module, forward, page, *times = FORWARDS[mechanism]
    (expected, expected_saved), calls = forward(), Counter()
    out, saved = forward(kernels=room(**{page.__name__.rpartition(".")[2]: page_of(page, calls)}))
    assert calls == {"forward": times[0]}
    gradients = module.backward(out, saved)
    assert calls == {"forward": times[0], "backward": times[1]}
    np.testing.assert_array_equal(out, expected)
    for x, y in zip(gradients, module.backward(expected, expected_saved), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("module", "page", "others"),
    [(softmax, softmax, ()), (linear, linear, ()), (rfa, linear, (OMEGA,)), (delta, delta_rule, (BETA[:, 0],))],
)
def test_steps_run_in_it(module, page, others, page_of):
    """In its step where it has that of the mechanism, else in its forward pass of one row."""
    calls, token = Counter(), [x[:, 0] for x in (Q, K, V)]
    state = module.init_state((2,), 4, 4, *(x for x in others if x is OMEGA))
    arguments = (*token, state, *others)
    own = SimpleNamespace(**{page.__name__.rpartition(".")[2]: page_of(page, calls)})
    (expected, after), (out, own_after) = module.step(*arguments), module.step(*arguments, kernels=own)
    np.testing.assert_array_equal(out, expected)
    for x, y in zip(own_after, after, strict=True):
        np.testing.assert_array_equal(x, y)
    assert calls["step" if module is page else "forward"] == 1


def test_a_page_in_which_no_mechanism_is_made_is_told():
    told = (
        r"^kernels: expected a backend with the page 'linformer' or 'softmax' \(linattn_ref\.kernels\.reference, .*, or"
    )
    with pytest.raises(TypeError, match=told + r" your own\), got namespace\(linear="):
        linformer.forward(Q, K, V, E, E, kernels=SimpleNamespace(linear=linear))


def test_a_function_in_place_of_a_page_is_none():
    """As `scipy.special.softmax` or `torch.softmax`."""
    with pytest.raises(TypeError, match=r"^kernels: expected a backend with the page 'softmax' "):
        softmax.forward(Q, K, V, kernels=SimpleNamespace(softmax=np.exp))
