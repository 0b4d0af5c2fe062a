"""What every layer and loss promises: its formula, its gradient, buffers of any kind, sums of gradients, data."""

import pickle
from functools import wraps

import numpy as np
import pytest
from layer_cases import LAYERS

from linattn_ref.gradcheck import check_elementwise
from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.nested import map_arrays
from linattn_ref.nn import gelu, gelu_tanh, layer_norm, relu
from linattn_ref.nn.buffers import Arena

layers = pytest.mark.parametrize("layer", LAYERS, ids=str)
with_buffers = pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.takes("work")], ids=str)
with_parameters = pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.takes("into")], ids=str)


def drawn(layer, dtype=np.float64, seed=0):
    return layer.draw(np.random.default_rng(seed), dtype)


def d_of(y):
    """A gradient for the output, the same numbers for the same shape."""
    return np.random.default_rng(1).standard_normal(np.shape(y)).astype(np.asarray(y).dtype)[()]


def arrays_of(*results):
    return [array for _, array in float_arrays("", results)]


def poisoned(shape, dtype):
    return np.full(shape, np.nan, dtype)


@layers
def test_forward_is_the_formula(layer):
    args = drawn(layer)
    np.testing.assert_allclose(layer.forward(*args)[0], layer.expected(*args), rtol=1e-12, atol=1e-13)


@layers
def test_every_gradient_by_finite_differences(layer):
    @wraps(layer.module.forward)
    def forward(*args):
        return layer.forward(*args)  # the same random numbers each time

    check_elementwise(forward, layer.module.backward, *drawn(layer), rng=0).assert_ok()


@layers
def test_float32_stays_and_is_near_float64(layer):
    args = drawn(layer, np.float32)
    wide = map_arrays(lambda x: x.astype(np.float64) if x.dtype.kind == "f" else x, args)
    results = []
    for these in (args, wide):
        y, saved = layer.forward(*these)
        results.append(arrays_of(np.asarray(y), layer.module.backward(d_of(y).astype(np.asarray(y).dtype), saved)))
    for narrow, exact in zip(*results, strict=True):
        assert narrow.dtype == np.float32
        # Some tens of roundings of the largest number.
        np.testing.assert_allclose(narrow, exact, rtol=0, atol=64 * np.finfo(np.float32).eps * max(1, abs(exact).max()))


@with_buffers
def test_any_buffers_give_the_same_bits(layer):
    """New arrays, poisoned ones, and an arena, also in its second step; a second forward pass spoils no first."""
    args, other = drawn(layer), drawn(layer, seed=5)
    y, saved = layer.forward(*args)
    expected = arrays_of(np.asarray(y), layer.module.backward(d_of(y), saved))
    arena = Arena()
    for work in (poisoned, arena, arena):
        y, saved = layer.forward(*args, work=work)
        layer.forward(*other, work=work)
        got = arrays_of(np.asarray(y), layer.module.backward(d_of(y), saved, work=work))
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


@with_parameters
def test_into_adds(layer):
    y, saved = layer.forward(*drawn(layer))
    alone = layer.module.backward(d_of(y), saved).params
    total = map_arrays(np.copy, alone)
    grads = layer.module.backward(d_of(y), saved, into=total)
    assert all(a is b for a, b in zip(arrays_of(grads.params), arrays_of(total), strict=True))
    for twice, once in zip(arrays_of(total), arrays_of(alone), strict=True):
        np.testing.assert_allclose(twice, 2 * once, rtol=1e-12)


@layers
def test_saved_is_data(layer):
    y, saved = layer.forward(*drawn(layer))
    again = pickle.loads(pickle.dumps(saved))
    for a, b in zip(*(arrays_of(layer.module.backward(d_of(y), x)) for x in (saved, again)), strict=True):
        np.testing.assert_array_equal(a, b)


@layers
def test_inputs_are_left_alone(layer):
    args = drawn(layer)
    for x in arrays_of(args):
        x.setflags(write=False)
    y, saved = layer.forward(*args)
    d_y = np.asarray(d_of(y))
    d_y.setflags(write=False)
    layer.module.backward(d_y[()] if d_y.ndim == 0 else d_y, saved)


@layers
def test_a_wrong_argument_is_named(layer):
    first = layer.module.forward.unchecked.__code__.co_varnames[0]
    args = drawn(layer)
    with pytest.raises(TypeError, match=f"^{first}: expected"):
        layer.forward(args[0].astype(np.complex128), *args[1:])
    y, saved = layer.forward(*args)
    d_y = layer.module.backward.unchecked.__code__.co_varnames[0]
    with pytest.raises(ValueError, match=f"^{d_y}: expected"):
        layer.module.backward(np.zeros((*np.shape(y), 2)), saved)


@pytest.mark.parametrize("activation", [gelu, gelu_tanh, relu], ids=lambda module: module.__name__.rpartition(".")[2])
def test_an_activation_adds_a_bias_and_takes_memory_that_is_not_needed(activation):
    x, d_y = np.random.default_rng(0).standard_normal((2, 3, 4))
    bias = np.arange(4.0)
    expected, saved = activation.forward(x + bias)
    d_x = activation.backward(d_y, saved).x
    for spend in (False, True):
        of_x, of_d_y = x.copy(), d_y.copy()
        y, saved = activation.forward(of_x, bias=bias, spend=spend)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(activation.backward(of_d_y, saved, spend=spend).x, d_x)
        assert np.array_equal(of_d_y, d_y) != spend
    y, saved = activation.forward(x, bias=bias, keep=False)
    np.testing.assert_array_equal(y, expected)
    assert saved is None


def test_a_layer_norm_of_a_sum_is_that_of_the_sum():
    """And its gradient that of both terms, with one that reaches the sum otherwise."""
    x, added, d_y, past = np.random.default_rng(0).standard_normal((4, 2, 3, 5))
    params = layer_norm.Params(np.arange(1.0, 6.0), np.ones(5))
    expected, saved = layer_norm.forward(x + added, params)
    grads = layer_norm.backward(d_y, saved)
    for spend in (False, True):
        y, saved = layer_norm.forward(x, params, added=added.copy(), spend=spend)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(saved.total, x + added)
        out = np.empty_like(x)
        got = layer_norm.backward(d_y, saved, past=past, out=out)
        assert got.x is out
        np.testing.assert_allclose(out, grads.x + past, rtol=1e-13)
        np.testing.assert_array_equal(got.params.gain, grads.params.gain)
    with pytest.raises(ValueError, match="added: expected shape of x"):
        layer_norm.forward(x, params, added=added[:1])


def test_memory_of_an_arena_is_handed_out_again_when_nobody_has_it():
    arena = Arena()
    first = arena((1000,), np.float64)
    first[:] = 1
    part = first[10:20]
    del first
    second = arena((1000,), np.float64)  # a view of the first is still there
    second[:] = 2
    assert (part == 1).all()
    address, kept = second.ctypes.data, arena.nbytes
    del second
    assert arena((500, 2), np.float64).ctypes.data == address  # another shape of the same size
    assert arena((950,), np.float64).ctypes.data == address  # or a bit less
    assert arena((100,), np.float64).ctypes.data != address  # not a tenth
    arena((1100,), np.float64)  # a bit more takes its place
    assert arena.nbytes == kept + 8 * 100 + 8 * 100 + 64
