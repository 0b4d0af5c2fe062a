"""The kernels for bfloat16 and float16; ``test_simulator.py`` runs it in the simulator."""

import numpy as np
import pytest
from kernels.cuda.half_cases import (
    UNIT,
    as_float64,
    check,
    check_causal_product,
    check_instruction,
    check_softmax,
    rounded,
)

from linattn_ref.kernels import cuda
from linattn_ref.kernels.cuda.loops import simulated_warp, tensor_cores

FORMATS = pytest.mark.parametrize("numbers", ["bfloat16", "float16"])
SLOW = pytest.mark.slow


def cases(fast, slow):
    return [*fast, *(pytest.param(*case, marks=SLOW) for case in slow)]


@FORMATS
def test_the_instruction_is_a_matrix_product(numbers):
    check_instruction(numbers)


def test_rounding_is_to_the_nearest_and_to_even_in_the_middle():
    x = np.float32([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.0e38, 1e-40, np.inf, -np.inf])
    wanted = [1, 1, 1 + 2**-6, 1 + 2**-7, -3.0e38, 1e-40, np.inf, -np.inf]
    got = simulated_warp.numbers(simulated_warp.words(x, tensor_cores.BFLOAT16))
    np.testing.assert_allclose(got, np.float32(wanted), rtol=2.0**-8, atol=2.0**-134)  # half the spacing
    np.testing.assert_array_equal(got[:4], np.float32(wanted[:4]))
    assert np.isnan(simulated_warp.low(simulated_warp.pack(np.float32(np.nan), np.float32(0), tensor_cores.BFLOAT16)))
    x = np.float32([1 + 2**-11, 1 + 3 * 2**-11, 70000.0, -1e-9])
    got = simulated_warp.numbers(simulated_warp.words(x, tensor_cores.FLOAT16))
    np.testing.assert_array_equal(got, np.float32([1, 1 + 2**-9, np.inf, 0]))


ONE, SEVERAL, DEEP = ((), 1, 2, 1, 1), ((1,), 18, 35, 5, 34), ((1,), 35, 40, 35, 4)


@pytest.mark.parametrize(
    ("numbers", "sizes", "causal", "masked"),
    cases(
        [("bfloat16", SEVERAL, True, True), ("float16", ONE, True, False)],
        [
            ("float16", SEVERAL, False, True),
            *((numbers, DEEP, causal, not causal) for numbers in ("bfloat16", "float16") for causal in (False, True)),
        ],
    ),
    ids=str,
)
def test_softmax(numbers, sizes, causal, masked):
    check_softmax(numbers, sizes, causal=causal, masked=masked)


@FORMATS
def test_equal_scores_share_however_large(numbers):
    """Scores of 4 million, whose neighbours in float32 are 1/2 apart, so that ``m + log s`` is off by a tenth."""
    (x, _), rng = rounded(np.full((1, 18, 1), 2048.0), numbers), np.random.default_rng(0)
    (v, _), (d_out, exact) = (rounded(rng.standard_normal((1, 18, 2)), numbers) for _ in range(2))
    out, *rows = cuda.loops.softmax.softmax.forward(x, x, v, None, False, 1.0)
    *_, d_v = cuda.loops.softmax.softmax.backward(d_out, x, x, v, out, *rows, None, False, 1.0)
    check(d_v, np.broadcast_to(exact.mean(axis=1, keepdims=True), d_v.shape), numbers, d_out)


ONE, SEVERAL, DEEP = ((), 1, 1, 1), ((1,), 35, 7, 18), ((1,), 33, 35, 34)


@pytest.mark.parametrize(
    ("numbers", "sizes", "normalised", "continued"),
    cases(
        [("bfloat16", SEVERAL, True, True), ("float16", ONE, True, False)],
        [
            ("float16", SEVERAL, False, False),
            *((numbers, DEEP, on, not on) for numbers in ("bfloat16", "float16") for on in (False, True)),
        ],
    ),
    ids=str,
)
def test_causal_product(numbers, sizes, normalised, continued):
    check_causal_product(numbers, sizes, normalised=normalised, continued=continued)


def test_a_query_that_sees_nothing():
    rng = np.random.default_rng(0)
    q, k, v, g = (rounded(rng.standard_normal((1, 3, 2)), "bfloat16")[0] for _ in range(4))
    mask = np.array([[False, True, True]])
    out, *rows = cuda.loops.softmax.softmax.forward(q, k, v, mask, True, 1.0)
    gradients = cuda.loops.softmax.softmax.backward(g, q, k, v, out, *rows, mask, True, 1.0)
    assert rows[1][0, 0] == 0
    for x in (out, gradients[0]):
        assert (x.view(np.int16)[0, 0] == 0).all()
        assert (x.view(np.int16)[0, 1:] != 0).any()


@FORMATS
def test_what_is_masked_may_be_none(numbers):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 3, 2)) for _ in range(4)]
    mask, results = np.array([[True, False, True]]), []
    for none in (0, np.inf, np.nan):
        for x in arrays[1:3]:
            x[:, 1] = none
        q, k, v, g = (rounded(x, numbers)[0] for x in arrays)
        out, *rows = cuda.loops.softmax.softmax.forward(q, k, v, mask, True, 1.0)
        gradients = cuda.loops.softmax.softmax.backward(g, q, k, v, out, *rows, mask, True, 1.0)
        results.append((*rows, *(x.view(np.int16) for x in (out, *gradients))))
    for expected, *others in zip(*results, strict=True):
        for x in others:
            np.testing.assert_array_equal(x, expected)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@FORMATS
def test_d_v_takes_nothing_of_a_denominators_state(numbers):
    """In which a later value that is none would be."""
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.uniform(size=(1, 40, width)) for width in (2, 2, 3, 3))
    v[:, 35, 1] = np.inf
    q, k, v, g = (rounded(x, numbers)[0] for x in (q, k, v, g))
    inputs, product = (q, k, v, None, None), cuda.loops.linear.causal_product
    out, denominator, *_ = product.normalised_forward(*inputs, 1e-6)
    _, _, d_v, *_ = product.normalised_backward(g, None, None, *inputs, out, denominator)
    assert np.isfinite(as_float64(d_v)).all()


@FORMATS
def test_the_unit_is_the_largest_error_of_a_rounding(numbers):
    x = np.linspace(1, 2, 2**14 + 1)
    error = abs(rounded(x, numbers)[1] / x - 1).max()
    assert 0.99 * UNIT[numbers] < error <= UNIT[numbers]


def test_later_keys_do_not_move_earlier_outputs():
    rng = np.random.default_rng(0)
    q, k, v = (rounded(rng.uniform(size=(1, 18, 3)), "float16")[0] for _ in range(3))
    first = (
        cuda.loops.softmax.softmax.forward(q, k, v, None, True, 1.0)[0],
        cuda.loops.linear.causal_product.forward(q, k, v, None)[0],
    )
    k[:, 17], v[:, 17] = 60000, -60000
    second = (
        cuda.loops.softmax.softmax.forward(q, k, v, None, True, 1.0)[0],
        cuda.loops.linear.causal_product.forward(q, k, v, None)[0],
    )
    for x, y in zip(first, second, strict=True):
        np.testing.assert_array_equal(x[:, :17], y[:, :17])
        assert (x[:, 17] != y[:, 17]).any()


def test_errors_name_the_argument():
    x, y = np.ones((1, 2, 2), np.float16), np.ones((1, 2, 2), np.float32)
    product = cuda.causal_product
    with pytest.raises(TypeError, match=r"^k: expected float16 like q, got float32"):
        cuda.loops.softmax.softmax.forward(x, y, x, None, False, 1.0)
    with pytest.raises(TypeError, match=r"^m: expected float32 beside 16-bit arrays, got float16"):
        cuda.loops.softmax.softmax.backward(x, x, x, x, x, x[..., 0], x[..., 0], None, False, 1.0)
    with pytest.raises(TypeError, match=r"^s: expected float32 beside 16-bit arrays, got float16"):
        product.forward(x, x, x, x)
