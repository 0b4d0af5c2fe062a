"""Results in the memory of an argument: every option that allows it gives what a plain call gives, in each backend."""

import inspect
from itertools import product

import numpy as np
import pytest
from layer_cases import LAYERS

from linattn_ref import nn
from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.kernels import jit, reference
from linattn_ref.nested import map_arrays
from linattn_ref.nn.buffers import Arena

ROOMS = {"reference": reference, "jit": jit}
rooms = pytest.mark.parametrize("room", ROOMS.values(), ids=list(ROOMS))
layers = pytest.mark.parametrize("layer", LAYERS, ids=str)
BEFORE, AFTER = object(), object()  # of layer norm's backward pass: in the memory of d_y, or of past
# What the options that spend memory may be; `into` and `work` have tests of their own.
SPENDING = {"spend": (False, True), "out": (None, np.empty_like, BEFORE, AFTER)}
OPTIONAL = {"bias", "added", "past"}  # arrays that a layer can do without


def parameters(function):
    return inspect.signature(function).parameters


def variants(function, like, more=None):
    """Every set of options: with and without each optional array, which fits ``like``, and whatever is spent."""
    rng, known, choices = np.random.default_rng(7), parameters(function), {}
    for name in sorted(name for name in OPTIONAL & set(known) if known[name].default is None):
        choices[name] = (None, rng.standard_normal(like.shape[-1:] if name == "bias" else like.shape))
    choices |= {name: values for name, values in SPENDING.items() if name in known}
    if "recompute" in known:
        choices["recompute"] = (False, True)
    for values in product(*choices.values()):
        yield dict(zip(choices, values, strict=True)) | (more or {})


def copy(x):
    return map_arrays(np.copy, x)


def run(layer, args, forward_options, d_y, backward_options):
    """Copies of everything go in, since some of it is spent; what comes out, with the gradients."""
    forward_options = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in forward_options.items()}
    y, saved = layer.forward(*copy(args), **forward_options)
    d_y, past, options = np.copy(d_y)[()], backward_options.get("past"), dict(backward_options)
    kept = np.copy(y)
    if past is not None:
        options["past"] = past = past.copy()
    if "out" in options:
        places = {BEFORE: d_y, AFTER: past, np.empty_like: np.empty_like(d_y), None: None}
        options["out"] = places[options["out"]]
    grads = layer.module.backward(d_y, saved, **options)
    return [kept, *(x for _, x in float_arrays("", grads))]


def plain(options):
    return {name: x for name, x in options.items() if name not in SPENDING}


@layers
@rooms
def test_what_is_spent_changes_no_number(layer, room):
    args = layer.draw(np.random.default_rng(0), np.float64)
    at = layer.module
    more = {"kernels": room} if "kernels" in parameters(at.forward) else {}
    d_y = np.random.default_rng(1).standard_normal(np.shape(layer.forward(*args)[0]))
    for forward in variants(at.forward, args[0], more):
        for backward in variants(at.backward, d_y):
            if backward.get("out") is AFTER and backward["past"] is None:
                continue
            got = run(layer, args, forward, d_y, backward)
            expected = run(layer, args, plain(forward), d_y, plain(backward))
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15, err_msg=f"{forward}, {backward}")


@layers
@rooms
def test_memory_that_holds_anything_changes_no_bit(layer, room):
    """Arrays full of NaN, and an arena in its second step, where another forward pass has been in between."""
    at, args = layer.module, layer.draw(np.random.default_rng(0), np.float64)
    more = {"kernels": room} if "kernels" in parameters(at.forward) else {}
    y, saved = layer.forward(*args, **more)
    d_y = np.random.default_rng(1).standard_normal(np.shape(y))[()]
    expected = [np.copy(y), *(x for _, x in float_arrays("", at.backward(d_y, saved)))]
    arena = Arena()
    for work in (lambda shape, dtype: np.full(shape, np.nan, dtype), arena, arena):
        of_forward, of_backward = ({"work": work} if "work" in parameters(f) else {} for f in (at.forward, at.backward))
        y, saved = layer.forward(*args, **more, **of_forward)
        layer.forward(*layer.draw(np.random.default_rng(5), np.float64), **more, **of_forward)
        got = [np.copy(y), *(x for _, x in float_arrays("", at.backward(d_y, saved, **of_backward)))]
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@layers
def test_what_is_saved_is_not_handed_out(layer):
    """A caller who works in a gradient spoils no second backward pass, whatever number it was multiplied by."""
    args = layer.draw(np.random.default_rng(0), np.float64)
    y, saved = layer.forward(*args)
    d_y = np.ones_like(y)[()]
    first = layer.module.backward(np.copy(d_y)[()], saved)
    expected = copy(first)
    for _, x in float_arrays("", first):
        x[...] = np.nan
    for (name, a), (_, b) in zip(
        *(float_arrays("", g) for g in (layer.module.backward(d_y, saved), expected)), strict=True
    ):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_every_option_that_spends_memory_is_among_the_cases():
    """One that is added to any layer of `linattn_ref.nn` is added here as well."""
    tested = {layer.module for layer in LAYERS}
    for name in nn.__all__:
        for function in (getattr(getattr(nn, name), word, None) for word in ("forward", "backward")):
            if function is not None and set(parameters(function)) & (set(SPENDING) | {"into"}):
                inside_blocks = name in ("multi_head", "pre_norm", "post_norm", "no_norm")  # test_multi_head.py
                assert getattr(nn, name) in tested or inside_blocks, name
