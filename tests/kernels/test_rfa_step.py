"""The compiled step of random feature attention: what the same step gives in NumPy."""

import itertools

import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.attention import feature_maps_random, rfa
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit.loops.simd.vector import lanes

WIDTH = lanes(np.empty(0, np.float32))
SIZES = [((), 1, 1, 1), ((2,), 3, 5, 2), ((9,), WIDTH + 2, WIDTH + 3, WIDTH + 1), ((2, 1, 3), 4, WIDTH, 3)]  # D, m, M
KINDS_AND_GATES = list(itertools.product(rfa.KINDS, (True, False)))


def draw(leading, d, m, width, dtype):
    """Four tokens, of which some queries and keys are 0, tiny or huge; directions; gates."""
    rng = np.random.default_rng(0)
    sizes = np.array([1, 0, 1e-30, 1e30]).reshape(4, *(1 for _ in leading), 1)
    q, k = sizes * rng.standard_normal((4, *leading, d)), sizes[::-1] * rng.standard_normal((4, *leading, d))
    v, omega = rng.standard_normal((4, *leading, width)), abs(rng.standard_normal((m, d)))
    omega /= np.linalg.norm(omega, axis=-1, keepdims=True)  # short: cosines stay positive, denominators away from 0
    return [np.asarray(x, dtype) for x in (abs(q), abs(k), v, omega, rng.uniform(0.1, 0.9, (4, *leading)))]


def assert_same(result, expected, dtype):
    """Some ten roundings of features below 1, in sums over them and over the denominator's, which is not near 0."""
    (out, state), (expected_out, expected_state) = result, expected
    for x, y in ((out, expected_out), (state.s, expected_state.s), (state.z, expected_state.z)):
        np.testing.assert_allclose(x, y, rtol=0, atol=200 * np.finfo(dtype).eps)
        assert x.dtype == dtype


@each_compiled_dtype
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_steps_are_those_of_numpy(sizes, dtype):
    leading, d, _, width = sizes
    q, k, v, omega, gates = draw(*sizes, dtype)
    for (kind, gated), overwrite_state in itertools.product(KINDS_AND_GATES, (False, True)):
        start = rfa.init_state(leading, d, width, omega, kind=kind, dtype=dtype)
        states = [start] * 2
        options = {"kind": kind, "eps": 0.1}
        for t in range(4):
            rows, more = [x[t] for x in (q, k, v)], [gates[t]] if gated else []
            ours, theirs = states
            options["overwrite_state"] = overwrite_state and t > 0
            got = rfa.step(*rows, ours, omega, *more, kernels=jit, **options)
            expected = rfa.step(*rows, theirs, omega, *more, **options)
            assert_same(got, expected, dtype)
            assert (got[1].s is ours.s) == options["overwrite_state"]
            states = got[1], expected[1]
        assert not start.s.any()
        assert not start.z.any()


def test_nan_and_inf_stay_in_their_head():
    q, k, v, omega, _ = draw((2,), 3, 5, 2, np.float64)
    for bad, i in itertools.product((np.nan, np.inf), range(2)):
        token = [row[0].copy() for row in (q, k, v)]
        token[i][0, 1] = bad
        out, _ = rfa.step(*token, rfa.init_state((2,), 3, 2, omega), omega, kernels=jit)
        assert np.isnan(out[0]).all()
        assert np.isfinite(out[1]).all()


def test_any_layout_and_dtype_of_omega_and_a_gate_in_every_second_place():
    q, k, v, omega, gates = draw((2,), 3, 5, 4, np.float64)
    omega = omega.astype(np.float32).astype(float)  # the same numbers in both
    token, gate = [x[0] for x in (q, k, v)], gates[0]
    gaps = [np.repeat(x, 2, axis=-1)[..., ::2] for x in (*token, gate)]
    start = rfa.init_state((2,), 3, 4, omega)
    apart = start._replace(s=np.repeat(start.s, 2, axis=-1)[..., ::2])
    expected = rfa.step(*token, start, omega, gate, kernels=reference)
    other = np.asfortranarray(omega.astype(np.float32))
    for overwrite_state in (False, True):
        got = rfa.step(*gaps[:3], apart, other, gaps[3], overwrite_state=overwrite_state, kernels=jit)
        assert_same(got, expected, np.float64)


def test_a_step_takes_it(monkeypatch):
    def in_numpy(self, x):
        raise AssertionError("in NumPy")

    q, k, v, omega, _ = draw((2,), 3, 5, 2, np.float64)
    token = q[0], k[0], v[0]
    monkeypatch.setattr(feature_maps_random.RfaGaussian, "forward", in_numpy)
    rfa.step(*token, rfa.init_state((2,), 3, 2, omega), omega, kernels=jit)
    with pytest.raises(AssertionError, match="in NumPy"):
        rfa.step(*token, rfa.init_state((2,), 3, 2, omega), omega)
