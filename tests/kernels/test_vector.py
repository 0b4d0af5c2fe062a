"""Every operation of the vector layer against NumPy, lane by lane."""

import itertools
import os
import subprocess
import sys
from fractions import Fraction

import numba
import numpy as np
import pytest
from numba import njit

from linattn_ref.kernels.jit.loops.simd import vector, vector_exp, vector_part, vector_trig

DTYPES = (np.float32, np.float64)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@njit
def arithmetic(x, out):
    a, b, c = vector.load(x, 0), vector.load(x, 1), vector.load(x, 2)
    vector.store(out, 0, a + b)
    vector.store(out, 1, a - b)
    vector.store(out, 2, a * b)
    vector.store(out, 3, vector.fma(a, b, c))
    vector.store(out, 4, vector.maximum(a, b))
    vector.store(out, 5, vector.broadcast(x[1, 2]))


@njit
def copy_row(x, source, target):
    vector.store(x, target, vector.load(x, source))


@njit
def exponential(x, out):
    for i in range(x.shape[0]):
        vector.store(out, i, vector_exp.exp(vector.load(x, i)))


@njit
def exponential_less_1(x, out):
    for i in range(x.shape[0]):
        vector.store(out, i, vector_exp.exp_less_1(vector.load(x, i)))


@njit
def sine_and_cosine(x, out):
    for i in range(x.shape[0]):
        sine, cosine = vector_trig.sine_cosine(vector.load(x, i))
        vector.store(out[0], i, sine)
        vector.store(out[1], i, cosine)


@njit
def keep(x, first, stop, fill, out):
    vector.store(out, 0, vector.keep(vector.load(x, 0), first, stop, fill))


@njit
def choose(a, b, x, other, out):
    vector.store(out, 0, vector.where_greater(vector.load(a, 0), vector.load(b, 0), vector.load(x, 0), other))
    vector.store(
        out, 1, vector.where_greater(vector.load(a, 0), vector.load(b, 0), vector.load(x, 0), vector.load(b, 0))
    )


@njit
def first_lanes(x, count, out):
    vector_part.store_first(out, 0, vector_part.load_first(x, 0, count) + vector.broadcast(x.dtype.type(1)), count + 1)


@njit
def spread_and_total(x, row, column, out):
    vector.prefetch(x, row + 10**9, -column)  # any address
    vector.prefetch_early(x, row + 10**9, -column)
    vector.store(out, 0, vector.spread(x, row, column))
    return vector.total(vector.load(x, row))


@njit
def lanes_when_compiled(x):
    return vector.lanes(x)


@dtypes
def test_lanes(dtype):
    x = np.empty((2, 3), dtype)
    assert vector.lanes(x) * x.itemsize == vector.VECTOR_BYTES
    assert lanes_when_compiled(x) == vector.lanes(x)


@dtypes
def test_arithmetic_is_numpys_to_the_bit(rng, dtype, numbers):
    x, out = numbers(rng, 3, dtype), numbers(rng, 6, dtype)
    arithmetic(x, out)
    a, b, c = x
    np.testing.assert_array_equal(out[0], a + b)
    np.testing.assert_array_equal(out[1], a - b)
    np.testing.assert_array_equal(out[2], a * b)
    np.testing.assert_array_equal(out[4], np.maximum(a, b))
    np.testing.assert_array_equal(out[5], np.full_like(a, b[2]))
    for got, a_i, b_i, c_i in zip(out[3], a, b, c, strict=True):
        exact = Fraction(float(a_i)) * Fraction(float(b_i)) + Fraction(float(c_i))
        # Rounded once means: no other number of the dtype is nearer to the exact result.
        assert abs(Fraction(float(got)) - exact) <= Fraction(float(np.spacing(abs(got)))) / 2


@dtypes
def test_fma_does_not_round_the_product(rng, dtype, numbers):
    eps = np.finfo(dtype).eps
    x, out = numbers(rng, 3, dtype), numbers(rng, 6, dtype)
    x[0], x[1], x[2] = 1 + eps, 1 - eps, -1  # (1 + eps)(1 - eps) - 1 = -eps^2; rounded in between it would be 0
    arithmetic(x, out)
    np.testing.assert_array_equal(out[3], np.full_like(out[3], -eps * eps))


@dtypes
def test_infinities_and_nan(rng, dtype, numbers):
    values = np.array([-np.inf, -1, 0, 1, np.inf, np.nan], dtype)
    pairs = np.array(list(itertools.product(values, values)), dtype).T  # (2, 36)
    width = vector.lanes(pairs)
    for start in range(0, pairs.shape[1], width):
        chunk = pairs[:, start : start + width]
        x, out = np.zeros((3, width), dtype), numbers(rng, 6, dtype)
        x[:2, : chunk.shape[1]] = chunk
        arithmetic(x, out)
        a, b, c = x
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(out[:4], [a + b, a - b, a * b, a * b + c])
        np.testing.assert_array_equal(out[4], np.where(a > b, a, b))


@dtypes
def test_load_and_store_touch_their_row_alone(rng, dtype):
    """At any address: the panel may be a part of a wider array."""
    width = vector.lanes(np.empty(0, dtype))
    wide = rng.standard_normal((4, width + 9)).astype(dtype)
    expected = wide.copy()
    expected[1, 5 : 5 + width] = expected[3, 5 : 5 + width]
    copy_row(wide[:, 5 : 5 + width], 3, 1)
    np.testing.assert_array_equal(wide, expected)


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.float32, -87.6, 88.3), (np.float64, -708.6, 709.4)])
def test_exp_is_within_one_ulp(dtype, low, high):
    """Densely over the whole range of normal results, and once more where a softmax has most of its arguments."""
    x = np.concatenate([np.linspace(low, high, 160_000), np.linspace(-20, 0, 96_000)])
    x = x.astype(dtype).reshape(-1, vector.lanes(np.empty(0, dtype)))
    out = np.empty_like(x)
    exponential(x, out)
    exact = np.exp(x.astype(np.longdouble))
    tiny = np.finfo(dtype).tiny  # below it an ulp is a larger part of the number, yet never less than this
    ulp = np.spacing(np.maximum(exact, tiny).astype(dtype)).astype(np.longdouble)
    # Where a long double is no wider than a double, "exact" is itself half an ulp off.
    wider = np.finfo(np.longdouble).eps < np.finfo(dtype).eps
    assert (abs(out - exact) / ulp).max() < (1 if wider else 1.5)


@dtypes
def test_exp_at_the_ends(dtype):
    info = np.finfo(dtype)
    smallest, largest = np.log(info.tiny), np.log(info.max)
    x = np.array(
        [-np.inf, info.min, 1.5 * smallest, smallest - 1, -0.0, 0.0, largest + 0.1, 2 * largest, info.max, np.inf],
        dtype,
    )
    expected = np.array([0, 0, 0, 0, 1, 1, np.inf, np.inf, np.inf, np.inf], dtype)
    panel_of = np.full((-(-x.size // vector.lanes(x)), vector.lanes(x)), np.nan, dtype)
    panel_of.ravel()[: x.size] = x
    out = np.zeros_like(panel_of)
    exponential(panel_of, out)
    np.testing.assert_array_equal(out.ravel()[: x.size], expected)
    assert np.isnan(out.ravel()[x.size :]).all()


@dtypes
def test_exp_less_1_has_all_digits_near_0(dtype):
    x = np.concatenate([-np.logspace(-30, 2, 124), [-np.inf, -0.0, 0.0, np.nan]])
    x = x.astype(dtype).reshape(-1, vector.lanes(np.empty(0, dtype)))
    out = np.empty_like(x)
    exponential_less_1(x, out)
    np.testing.assert_allclose(out, np.expm1(x.astype(np.longdouble)), rtol=2 * np.finfo(dtype).eps)


def sines_and_cosines(x):
    """Of any number of angles, in a Vector after the other, the last one filled up with zeros."""
    angles = np.zeros((-(-x.size // vector.lanes(x)), vector.lanes(x)), x.dtype)
    angles.ravel()[: x.size] = x
    out = np.empty((2, *angles.shape), x.dtype)
    sine_and_cosine(angles, out)
    return out.reshape(2, -1)[:, : x.size]


@pytest.mark.parametrize(("dtype", "farthest"), [(np.float32, 1e5), (np.float64, 1e9)])
def test_sine_and_cosine_are_within_one_and_a_half_ulp(rng, dtype, farthest):
    """Also next to multiples of a quarter turn, where nearly all its digits cancel; and beyond ``farthest``."""
    assert vector_trig.TRIG[numba.from_dtype(np.dtype(dtype))].farthest == farthest
    spread = [rng.uniform(-size, size, 20_000) for size in (1, 20, farthest)]
    quarters = np.unique(np.rint(np.geomspace(1, farthest, 20_000))) * (np.pi / 2)
    small, far = 10.0 ** rng.uniform(-37, 0, 5_000), 10.0 ** rng.uniform(np.log10(farthest), 38, 1_000)
    x = np.concatenate([*spread, quarters, np.nextafter(quarters.astype(dtype), 0), small, far]).astype(dtype)
    wide = x.astype(np.longdouble)
    wider = np.finfo(np.longdouble).eps < np.finfo(dtype).eps  # else "exact" is itself half an ulp off
    for got, exact in zip(sines_and_cosines(x), (np.sin(wide), np.cos(wide)), strict=True):
        ulp = np.spacing(np.maximum(abs(exact), np.finfo(dtype).tiny).astype(dtype)).astype(np.longdouble)
        assert (abs(got - exact) / ulp).max() < (1.5 if wider else 2)


@dtypes
def test_sine_and_cosine_of_what_has_none(dtype):
    """Beside ordinary angles in the same Vector, which keep theirs."""
    x = np.array([0.0, np.inf, -np.inf, np.nan, -0.0, 1.0, np.finfo(dtype).max, 2.0], dtype)
    with np.errstate(invalid="ignore"):
        expected = np.sin(x), np.cos(x)
    for got, ours in zip(sines_and_cosines(x), expected, strict=True):
        np.testing.assert_allclose(got, ours, rtol=2 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(sines_and_cosines(x[:1]), [[0], [1]])


@dtypes
def test_keep(rng, dtype, numbers):
    x, out = numbers(rng, 1, dtype), numbers(rng, 1, dtype)
    width = vector.lanes(x)
    lane = np.arange(width)
    for first, stop in itertools.product((-(2**40), -1, 0, 1, width - 1, width, 2**40), repeat=2):
        keep(x, first, stop, -np.inf, out)
        np.testing.assert_array_equal(out[0], np.where((first <= lane) & (lane < stop), x[0], -np.inf))


@dtypes
def test_where_greater(rng, dtype, numbers):
    """Equal numbers are not greater, nor is anything that is no number; the others are a number or a Vector."""
    x, out = numbers(rng, 1, dtype), numbers(rng, 2, dtype)
    a, b = rng.integers(0, 3, (2, 1, vector.lanes(x))).astype(dtype)
    a[0, 3] = b[0, 4] = np.nan
    choose(a, b, x, -np.inf, out)
    np.testing.assert_array_equal(out, np.where(a > b, x, [np.full_like(b[0], -np.inf), b[0]]))


@dtypes
def test_first_lanes(rng, dtype, numbers):
    """Nothing beyond is read, and nothing beyond is written: the row has ``count`` numbers and no more."""
    for count in range(vector.lanes(np.empty(0, dtype))):
        x, out = rng.standard_normal((1, count)).astype(dtype), numbers(rng, 1, dtype)
        beyond = out[0, count + 1 :].copy()
        first_lanes(x, count, out)
        np.testing.assert_array_equal(out[0, :count], x[0] + 1)
        assert out[0, count] == 1  # load_first left a 0 there
        np.testing.assert_array_equal(out[0, count + 1 :], beyond)


@dtypes
def test_spread_and_total(rng, dtype, numbers):
    x, out = np.rint(8 * numbers(rng, 3, dtype)), numbers(rng, 1, dtype)
    for column in (0, 3, vector.lanes(x) - 1):
        assert spread_and_total(x, 2, column, out) == x[2].sum()  # whole numbers: exact in any order
        np.testing.assert_array_equal(out[0], np.full_like(out[0], x[2, column]))


# --- Which processor ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({"NUMBA_CPU_NAME": "haswell"}, 64),
        ({"NUMBA_CPU_FEATURES": "+avx2,+fma"}, 64),
        ({"NUMBA_CPU_NAME": "skylake-avx512", "NUMBA_CPU_FEATURES": "+avx512f"}, 128),
    ],
)
def test_a_vector_is_as_wide_as_the_processor_asked_for(asked, size):
    others = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU")}
    command = [
        sys.executable,
        "-c",
        "from linattn_ref.kernels.jit.loops.simd.vector import VECTOR_BYTES; print(VECTOR_BYTES)",
    ]
    done = subprocess.run(command, env={**others, **asked}, capture_output=True, text=True, check=True)
    assert int(done.stdout) == size
