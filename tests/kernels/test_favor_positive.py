"""The compiled step of the Performer: what the same step gives in NumPy, whatever the scale has to do."""

import copy

import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.attention import feature_maps, feature_maps_favor, linear
from linattn_ref.attention.linear import State
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit.loops.simd.vector import lanes

WIDTH = lanes(np.empty(0, np.float32))
SIZES = [((), 1, 1, 1), ((2,), 3, 5, 2), ((9,), 4, WIDTH + 3, WIDTH + 1), ((2, 1, 3), WIDTH + 2, 7, 3)]
SHAPES = pytest.mark.parametrize(("leading", "d", "c", "m"), SIZES, ids=str)
# Of keys along the first direction, whose exponent is largest, 72, at 1: ordinary ones, some by which the scale has to
# rise in the features near that direction, ordinary ones again.
ALONG = 0.0, 0.1, 0.1, 1.0, 0.9, 0.0, 1.0, 0.1


def draw(leading, d, c, m, dtype, scale=1.0):
    """Queries, keys and values, a token after the other, and the directions."""
    rng = np.random.default_rng(0)
    omega = 6 * rng.standard_normal((c, d)) / np.sqrt(d)
    omega[0] *= 12 / np.linalg.norm(omega[0])
    q, k = (rng.standard_normal((len(ALONG), *leading, d)) / np.sqrt(d) for _ in range(2))
    k = (np.reshape(ALONG, (-1, *(1 for _ in leading), 1)) * omega[0] + 0.1 * k) / scale
    v = rng.standard_normal((len(ALONG), *leading, m))
    return [x.astype(dtype) for x in (q, k, v, omega)]


def assert_same(result, expected, dtype):
    """An output and a state, both of numbers that come of exponents of size 100; the page's scale is the maximum."""
    (out, state), (expected_out, expected_state) = result, expected
    rounding = {"rtol": 1000 * np.finfo(dtype).eps, "atol": 1000 * np.finfo(dtype).eps}
    np.testing.assert_allclose(out, expected_out, **rounding)
    factor = np.exp(state.log_scale - expected_state.log_scale)
    np.testing.assert_allclose(factor[..., None] * state.s, expected_state.s, **rounding)
    np.testing.assert_allclose(factor * state.z, expected_state.z, **rounding)
    assert out.dtype == state.s.dtype == state.z.dtype == state.log_scale.dtype == dtype


@each_compiled_dtype
@SHAPES
def test_steps_are_those_of_numpy(leading, d, c, m, dtype):
    q, k, v, omega = draw(leading, d, c, m, dtype, scale=0.7)
    phi = feature_maps.favor_positive(omega, 0.7)
    states = [linear.init_state(leading, d, m, feature_map=phi, dtype=dtype)] * 2
    states[1] = copy.deepcopy(states[0])
    scales = []
    for token in zip(q, k, v, strict=True):
        rooms = zip(states, (jit, reference), strict=True)
        both = [linear.step(*token, state, feature_map=phi, eps=0.0, kernels=room) for state, room in rooms]
        assert_same(*both, dtype)
        states = [state for _, state in both]
        scales.append(float(states[0].log_scale.max()))
    assert len(ALONG) > len(set(scales)) > 1  # it has risen after the first key too, and not with each


@each_compiled_dtype
def test_a_scale_for_all_features_of_a_state_before_it_and_of_its_own(dtype):
    """``(..., 1)``, from ``-inf`` in some heads, beside ``(..., C)``; the given arrays stay."""
    q, k, v, omega = draw((3,), 4, 5, 2, dtype)
    phi, rng = feature_maps.favor_positive(omega), np.random.default_rng(1)
    s, z = rng.random((3, 5, 2)).astype(dtype), rng.random((3, 5)).astype(dtype)
    s[0], z[0] = 0, 0
    for r in (np.array([[-np.inf], [2.0], [-90.0]]), np.array([[-np.inf], [2.0], [-90.0]]) + rng.random(5)):
        given = State(s.copy(), z.copy(), r.astype(dtype))
        kept = copy.deepcopy(given)
        results = [
            linear.step(q[0], k[0], v[0], given, feature_map=phi, eps=0.0, kernels=room) for room in (jit, reference)
        ]
        assert_same(*results, dtype)
        for x, y in zip(given[:3], kept[:3], strict=True):
            np.testing.assert_array_equal(x, y)


@each_compiled_dtype
def test_the_scale_that_a_pass_has_saved_stays(dtype):
    """Also when the step may work in the arrays of ``saved.state``, whose scale is that of what is saved, too."""
    q, k, v, omega = (x if i == 3 else np.moveaxis(x, 0, -2) for i, x in enumerate(draw((2,), 4, 5, 2, dtype)))
    phi = feature_maps.favor_positive(omega)
    _, saved = linear.forward(q, 0.1 * k, v, feature_map=phi, causal=True, eps=0.0, kernels=jit)
    before = saved.phi.log_scale.copy()
    token = (x[..., ALONG.index(1), :].copy() for x in (q, k, v))
    _, state = linear.step(*token, saved.state, feature_map=phi, eps=0.0, overwrite_state=True, kernels=jit)
    assert (state.log_scale > before).any()
    np.testing.assert_array_equal(saved.phi.log_scale, before)


def test_a_key_beyond_the_range():
    """Its exponents count as the lowest number, which is the scale from before any key, and its features are 1."""
    omega = np.ones((3, 2))
    phi = feature_maps.favor_positive(omega)
    q, k, v = np.ones((1, 2)), np.full((1, 2), 1e200), np.ones((1, 2))
    for room in (jit, reference):
        state = linear.init_state((1,), 2, 2, feature_map=phi)
        with np.errstate(over="ignore"):
            out, state = linear.step(q, k, v, state, feature_map=phi, eps=0.0, kernels=room)
        for x in (out, state.s, state.z):
            np.testing.assert_array_equal(x, 1)
        assert (state.log_scale == np.finfo(float).min).all()


def test_nan_comes_out():
    q, k, v, omega = draw((2,), 3, 5, 2, np.float64)
    phi = feature_maps.favor_positive(omega)
    for x in (q, k):
        token = [row[0].copy() for row in (q, k, v)]
        token[0 if x is q else 1][0, 1] = np.nan
        state = linear.init_state((2,), 3, 2, feature_map=phi)
        out, _ = linear.step(*token, state, feature_map=phi, eps=0.0, kernels=jit)
        assert np.isnan(out[0]).all()
        assert np.isfinite(out[1]).all()


def test_a_step_takes_it():
    class Unused(feature_maps_favor.FavorPositive):
        def split(self, x):
            raise AssertionError("in NumPy")

    q, k, v, omega = draw((2,), 3, 5, 2, np.float64)
    token, options = (q[0], k[0], v[0]), {"feature_map": Unused(omega, 1.0), "eps": 0.0}
    state = linear.init_state((2,), 3, 2, feature_map=options["feature_map"])
    linear.step(*token, state, kernels=jit, **options)
    with pytest.raises(AssertionError, match="in NumPy"):
        linear.step(*token, linear.init_state((2,), 3, 2, feature_map=options["feature_map"]), **options)


@pytest.mark.slow
def test_any_layout_and_dtype_of_omega():
    q, k, v, omega = draw((2,), 3, 5, 4, np.float32)
    other = np.asfortranarray(omega.astype(np.float64))
    rows = [np.repeat(x[0], 2, axis=-1)[..., ::2] for x in (q, k, v)]
    expected = None
    for directions in (omega, other):
        phi = feature_maps.favor_positive(directions)
        state = linear.init_state((2,), 3, 4, feature_map=phi, dtype=np.float32)
        gaps = State(*(np.repeat(x, 2, axis=-1)[..., ::2] for x in state))
        result = linear.step(*rows, gaps, feature_map=phi, eps=0.0, kernels=jit)
        expected = expected or linear.step(*rows, state, feature_map=phi, eps=0.0, kernels=reference)
        assert_same(result, expected, np.float32)
