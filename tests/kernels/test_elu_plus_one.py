"""The feature map elu + 1 by the jit backend: the map of `attention.feature_maps`, whatever the shape and layout."""

import causal_page
import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.attention import feature_maps, linear
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit.loops.linear.elu_plus_one import BLOCK
from linattn_ref.kernels.jit.loops.simd.vector import lanes

WIDTH = lanes(np.empty(0, np.float32))
SHAPES = [(1,), (WIDTH - 1,), (WIDTH,), (2, WIDTH + 1), (3, 1, 5), (BLOCK + WIDTH + 3,), (2, BLOCK)]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@each_compiled_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_map_and_its_gradient(dtype, shape, rng):
    x, d_phi = 3 * rng.standard_normal((2, *shape)).astype(dtype)
    expected, _ = feature_maps.elu_plus_one.forward(x)
    phi, saved = jit.loops.linear.elu_plus_one.forward(x)
    assert phi.dtype == dtype
    np.testing.assert_allclose(phi, expected, rtol=4 * np.finfo(dtype).eps)  # exp() is within 3 ulp in NumPy, 1 here
    gradient = feature_maps.elu_plus_one.backward(d_phi, phi)
    result = jit.loops.linear.elu_plus_one.backward(d_phi, saved)
    np.testing.assert_array_equal(result, gradient)
    assert np.shares_memory(result, d_phi)


def test_its_ends():
    x = np.array([-np.inf, -1000.0, -0.0, 0.0, 1000.0, np.inf, np.nan])
    phi, saved = jit.loops.linear.elu_plus_one.forward(x)
    np.testing.assert_array_equal(phi, [0, 0, 1, 1, 1001, np.inf, np.nan])
    np.testing.assert_array_equal(jit.loops.linear.elu_plus_one.backward(np.ones(7), saved), [0, 0, 1, 1, 1, 1, np.nan])


LAYOUTS = {
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "every second row": lambda x: np.repeat(x, 2, axis=-2)[..., ::2, :],
    "read-only": lambda x: np.broadcast_to(x, x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout, rng):
    x, d_phi = rng.standard_normal((2, 3, 7, 9))
    phi, saved = jit.loops.linear.elu_plus_one.forward(LAYOUTS[layout](x))
    np.testing.assert_allclose(phi, feature_maps.elu_plus_one.forward(x)[0], rtol=1e-15)
    gradient = feature_maps.elu_plus_one.backward(d_phi, phi)
    if layout != "read-only":
        np.testing.assert_array_equal(jit.loops.linear.elu_plus_one.backward(LAYOUTS[layout](d_phi), saved), gradient)


@each_compiled_dtype
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize(("d", "m"), [(1, 1), (5, WIDTH + 1), (WIDTH, 3), (2 * WIDTH + 1, WIDTH)])
def test_a_step_is_that_of_the_features(dtype, leading, d, m, rng):
    q, k = rng.standard_normal((2, *leading, d)).astype(dtype)
    v, s = rng.standard_normal((*leading, m)).astype(dtype), rng.random((*leading, d, m)).astype(dtype)
    z = rng.random((*leading, d)).astype(dtype)
    phi_q, phi_k = (feature_maps.elu_plus_one.forward(x)[0] for x in (q, k))
    expected_s, expected_z = s.copy(), z.copy()
    expected = causal_page.step(phi_q, phi_k, v, expected_s, expected_z, 1e-6)
    out = jit.loops.linear.elu_plus_one.step(q, k, v, s, z, 1e-6)
    assert out.dtype == dtype
    tolerance = 32 * np.finfo(dtype).eps  # sums of d terms of size 1
    for got, want in ((out, expected), (s, expected_s), (z, expected_z)):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1, abs(want).max()))


def test_linear_attention_asks_the_backend(rng):
    """Not the map's own functions, forward, backward and in a step."""

    def no(*_):
        raise AssertionError("the map's own function was called")

    class Unused(type(feature_maps.elu_plus_one)):
        forward = backward = no

    feature_map = Unused()
    q, k, v = rng.standard_normal((3, 2, 7, 4))
    options = {"feature_map": feature_map, "kernels": jit}
    out, saved = linear.forward(q, k, v, causal=True, **options)
    linear.backward(out, saved)
    linear.step(q[:, 0], k[:, 0], v[:, 0], saved.state, **options)
    with pytest.raises(AssertionError):
        linear.forward(q, k, v, feature_map=feature_map._replace(kernel=None), kernels=jit)
