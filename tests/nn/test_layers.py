"""What every layer and loss promises: its formula, its gradient, data; what it starts from."""

import math
import pickle
from functools import wraps

import numpy as np
import pytest
from layer_cases import LAYERS

from linattn_ref.gradcheck import check_elementwise
from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.kernels import jit, reference
from linattn_ref.nested import map_arrays
from linattn_ref.nn import (
    affine,
    dropout,
    embedding,
    feed_forward,
    gelu,
    gelu_tanh,
    layer_norm,
    lstm,
    multi_head,
    pooling,
    positions,
)
from linattn_ref.op.backends import pages_of

layers = pytest.mark.parametrize("layer", LAYERS, ids=str)
rooms = pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])


def drawn(layer, dtype=np.float64, seed=0):
    return layer.draw(np.random.default_rng(seed), dtype)


def d_of(y):
    """A gradient for the output, the same numbers for the same shape."""
    return np.random.default_rng(1).standard_normal(np.shape(y)).astype(np.asarray(y).dtype)[()]


def arrays_of(*results):
    return [array for _, array in float_arrays("", results)]


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


@layers
def test_saved_is_data(layer):
    y, saved = layer.forward(*drawn(layer))
    again = pickle.loads(pickle.dumps(saved))
    for a, b in zip(*(arrays_of(layer.module.backward(d_of(y), x)) for x in (saved, again)), strict=True):
        np.testing.assert_array_equal(a, b)


@layers
@rooms
def test_what_is_saved_is_not_handed_out(layer, room):
    """A caller who works in a gradient spoils no second backward pass, whatever number it was multiplied by."""
    args = drawn(layer)
    more = {"kernels": room} if room is reference or has_page(layer.module, room) else {}
    y, saved = layer.forward(*args, **more)
    first = layer.module.backward(np.ones_like(y)[()], saved)
    expected = map_arrays(np.copy, first)
    for x in arrays_of(first):
        x[...] = np.nan
    for a, b in zip(*map(arrays_of, (layer.module.backward(np.ones_like(y)[()], saved), expected)), strict=True):
        np.testing.assert_array_equal(a, b)


@layers
def test_jit_gives_the_same(layer):
    """Where it has the layer, or a part of it; where it has none, it is refused."""
    args, results = drawn(layer), []
    if not has_page(layer.module, jit):
        with pytest.raises(TypeError, match="kernels: expected a backend with the page"):
            layer.forward(*args, kernels=jit)
        return
    for room in (reference, jit):
        y, saved = layer.forward(*args, kernels=room)
        results.append(arrays_of(np.asarray(y), layer.module.backward(d_of(y), saved)))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def has_page(module, backend):
    return any(hasattr(backend, page) for page in pages_of(module.__name__))


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
    first = layer.module.forward.page.__code__.co_varnames[0]
    args = drawn(layer)
    with pytest.raises(TypeError, match=f"^{first}: expected"):
        layer.forward(args[0].astype(np.complex128), *args[1:])
    y, saved = layer.forward(*args)
    d_y = layer.module.backward.page.__code__.co_varnames[0]
    longer = [[n + (i == axis) for i, n in enumerate(np.shape(y))] for axis in range(np.ndim(y))]
    for shape in ((*np.shape(y), 2), *longer):
        with pytest.raises(ValueError, match=f"^{d_y}: expected"):
            layer.module.backward(np.zeros(shape), saved)


@rooms
def test_layer_norm_of_numbers_that_are_far_from_0(room):
    """A variance by squares less the square of the mean would lose all its digits; every number here is exact."""
    x = np.array([[3.0, -5, 1, 7, -2, 0, -6, 2], [1, -1, 1, -1, 1, -1, 1, -1]])
    params = layer_norm.Params(np.arange(1.0, 9.0), np.ones(8))
    expected, saved = layer_norm.forward(x, params, kernels=room)
    far, saved_far = layer_norm.forward(x + 1e9, params, kernels=room)
    np.testing.assert_allclose(far, expected, rtol=1e-14)
    np.testing.assert_array_equal(saved_far.s, saved.s)


def uniform(w, limit):
    """Whether many numbers may be drawn evenly from ``-limit`` to ``limit``: ends, mean and variance."""
    np.testing.assert_allclose([w.min(), w.max()], [-limit, limit], rtol=0.01)
    np.testing.assert_allclose([w.mean() / limit, w.std() / limit], [0, 3**-0.5], atol=0.02)


@pytest.mark.parametrize("layer", [gelu, gelu_tanh])
def test_far_from_0_the_slope_is_0_or_1(layer):
    """Without a warning."""
    x = np.array([-np.inf, -1e20, -1e10, 1e10, 1e20, np.inf], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        _, saved = layer.forward(x)
    np.testing.assert_array_equal(layer.backward(np.ones_like(x), saved).x, [0, 0, 0, 1, 1, 1])


@rooms
def test_gelu_keeps_its_digits_far_below_0(room):
    """Phi(-10) = 7.62e-24, beside which 1 + erf rounds to 0."""
    y, _ = gelu.forward(np.array([-10.0]), kernels=room)
    assert y[0] == pytest.approx(-10 * 7.619853024160527e-24, rel=1e-12, abs=0)


def test_the_first_row_is_taken_whatever_the_mask():
    """A mean needs a row that counts."""
    x, mask = np.arange(12.0).reshape(2, 3, 2), np.array([[True, True, True], [False, False, False]])
    np.testing.assert_array_equal(pooling.forward(x, pool="first", key_mask=mask)[0], x[:, 0])
    with pytest.raises(ValueError, match=r"^key_mask: sequence 1 has no token"):
        pooling.forward(x, key_mask=mask)


def test_a_mean_takes_nothing_from_what_pads():
    x, mask = np.array([[[1.0], [3.0], [np.nan]], [[np.inf], [5.0], [2.0]]]), np.ones((2, 3), bool)
    mask[[0, 1], [2, 0]] = False
    np.testing.assert_array_equal(pooling.forward(x, key_mask=mask)[0], [[2.0], [3.5]])
    np.testing.assert_array_equal(pooling.forward(x[:1], pool="first")[0], [[1.0]])


def test_an_activation_is_a_pair():
    params = feed_forward.draw(4, 6, np.random.default_rng(0))
    with pytest.raises(TypeError, match=r"^activation: expected a module with forward and backward, such as gelu, got"):
        feed_forward.forward(np.ones((2, 4)), params, activation="relu")


class Largest(np.random.Generator):
    """Draws the largest number below 1."""

    def random(self, size, dtype):
        return np.full(size, np.nextafter(dtype(1), dtype(0)))


def test_dropout_of_nearly_all():
    """A probability that is 1 in float32 still keeps some."""
    y, _ = dropout.forward(np.ones(3), p=1 - 1e-9, rng=Largest(np.random.PCG64()))
    np.testing.assert_allclose(y, 1e9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_a_layer_starts_from(dtype):
    """Glorot's scale, PyTorch's of an LSTM, normal numbers of a given one."""
    rng = np.random.default_rng(0)
    w, b = affine.draw(40, 120, rng, dtype=dtype)
    uniform(w, math.sqrt(6 / 160))
    assert not b.any()
    inner = multi_head.draw(40, rng, dtype=dtype).inner
    uniform(inner.w, math.sqrt(6 / 80))  # three matrices side by side, each 40 by 40
    recurrent = lstm.draw(30, 50, rng, dtype=dtype)
    for direction in recurrent:
        uniform(direction.w, 50**-0.5)
        uniform(direction.u, 50**-0.5)
        assert 0.9 * 50**-0.5 < abs(direction.b).max() <= 50**-0.5
    for table, scale in (
        (embedding.draw(90, 60, rng, dtype=dtype).table, 0.02),
        (positions.draw(90, 60, rng, dtype=dtype).table, 0.02),
        (embedding.draw(90, 60, rng, scale=3.0, dtype=dtype).table, 3.0),
        (positions.draw(90, 60, rng, scale=3.0, dtype=dtype).table, 3.0),
    ):
        np.testing.assert_allclose([table.mean() / scale, table.std() / scale], [0, 1], atol=0.05)
        assert 3 < abs(table).max() / scale < 6
    gain, bias = layer_norm.draw(5, dtype=dtype)
    np.testing.assert_array_equal([gain, bias], [[1] * 5, [0] * 5])
    for x in arrays_of(w, b, inner, recurrent, table, gain, bias):
        assert x.dtype == dtype


def test_positions_begin_at_the_first_that_is_given():
    """Also where that is 0, as at the beginning of a text."""
    table = np.arange(12.0).reshape(6, 2)
    for first in (0, np.int64(1), 2):
        y, _ = positions.forward(np.ones((4, 2)), positions.Params(table), first=first)
        np.testing.assert_array_equal(y, 1 + table[first : first + 4])
    with pytest.raises(ValueError, match="first: expected an integer of at least 0, got -1"):
        positions.forward(np.ones((4, 2)), positions.Params(table), first=-1)


@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_sinusoids_are_vaswanis(width):
    """(3), number by number; each wave is as long in its sine as in its cosine."""
    found = positions.sinusoidal(300, width)
    for p in (0, 1, 9, 299):
        for column in range(width):
            angle = p / 10000 ** (2 * (column // 2) / width)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert found[p, column] == pytest.approx(expected, abs=1e-13)
