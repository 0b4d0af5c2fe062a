"""Checks of the kernels for bfloat16 and float16, in the simulator and on a GPU.

What is compared with is a page in float64 with the very inputs that the kernels got, so that only roundings
inside count: of scores, weights and states before they go into another product, and of the results.
"""

import causal_page
import numpy as np
import softmax_page

from linattn_ref.kernels.cuda.loops import tensor_cores
from linattn_ref.kernels.cuda.loops.device import cuda as gpu
from linattn_ref.kernels.cuda.loops.device import kernel
from linattn_ref.kernels.cuda.loops.linear import causal_product
from linattn_ref.kernels.cuda.loops.simulated_warp import numbers as numbers_of
from linattn_ref.kernels.cuda.loops.simulated_warp import words as words_of
from linattn_ref.kernels.cuda.loops.softmax import softmax

WORD = {"bfloat16": np.dtype(tensor_cores.BFLOAT16), "float16": np.dtype(tensor_cores.FLOAT16)}
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # the largest relative error of a rounding, half of the spacing
ROUNDINGS = 4  # of a number as large as any: three or four on the way to each, and sums of numbers of both signs


def rounded(x, numbers):
    """``x`` in 16 bits, bfloat16 as its bits in ``V2``; and the same numbers as float64."""
    bits = words_of(np.append(x.ravel(), np.zeros(x.size % 2)), WORD[numbers])
    exact = numbers_of(bits)[: x.size].reshape(x.shape).astype(float)
    return bits.view(np.float16 if numbers == "float16" else "V2")[: x.size].reshape(x.shape), exact


def as_float64(x):
    """The numbers of a NumPy array of any dtype here."""
    if x.dtype.kind == "f":
        return x.astype(float)
    return (np.ascontiguousarray(x).view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(float)


def check(got, want, numbers, like=None):
    """``got`` has the dtype of ``like``, float32 without one, and is close."""
    assert got.dtype == (np.float32 if like is None else like.dtype)
    assert got.shape == want.shape
    got = as_float64(got)
    assert (np.isneginf(got) == np.isneginf(want)).all()
    finite = np.isfinite(want)
    error = abs(np.where(finite, got, 0) - np.where(finite, want, 0)).max(initial=0)
    largest = abs(np.where(finite, want, 0)).max(initial=0)
    assert error <= ROUNDINGS * UNIT[numbers] * max(1, largest), (error / largest / UNIT[numbers], largest)


def same(x):
    return x


# --- The instruction ------------------------------------------------------------------------------------------------


@kernel
def one_product(a, b, c, d):
    """A row of ``a (32, 4)``, ``b (32, 2)`` and ``c (32, 4)`` a lane, and of ``d``."""
    i = gpu.threadIdx.x
    d[i, 0], d[i, 1], d[i, 2], d[i, 3] = tensor_cores.multiply_add(
        c[i, 0], c[i, 1], c[i, 2], c[i, 3], a[i, 0], a[i, 1], a[i, 2], a[i, 3], b[i, 0], b[i, 1]
    )


def check_instruction(numbers):
    """Lanes and registers as in the table of `tensor_cores`, written down here a second time."""
    rng = np.random.default_rng(0)
    a, b, c = (rounded(rng.standard_normal(shape), numbers)[1] for shape in ((16, 16), (16, 8), (16, 8)))
    lanes = [divmod(lane, 4) for lane in range(32)]
    pairs_a = [[a[i, k : k + 2] for k in (2 * t, 2 * t + 8) for i in (g, g + 8)] for g, t in lanes]
    pairs_b = [[b[k : k + 2, g] for k in (2 * t, 2 * t + 8)] for g, t in lanes]
    dealt_a, dealt_b = (words_of(x, WORD[numbers])[..., 0] for x in (pairs_a, pairs_b))

    def four(x):
        return np.array([[*x[g, 2 * t : 2 * t + 2], *x[g + 8, 2 * t : 2 * t + 2]] for g, t in lanes], np.float32)

    d = gpu.to_device(np.zeros((32, 4), np.float32))
    one_product[1, 32](*(gpu.to_device(np.ascontiguousarray(x)) for x in (dealt_a, dealt_b, four(c))), d)
    np.testing.assert_allclose(d.copy_to_host(), four(a @ b + c), rtol=1e-5, atol=1e-5)  # float32 sums


# --- Both kernels, both passes --------------------------------------------------------------------------------------


def check_softmax(numbers, sizes, *, causal, masked, put=same, get=same):
    """``sizes`` is leading axes, N, L, D, M; ``put`` makes a library's arrays of NumPy's, ``get`` undoes it."""
    leading, n, n_keys, d, m = sizes
    rng = np.random.default_rng(n)
    shapes = (n, d), (n_keys, d), (n_keys, m), (n, m)
    (q, q64), (k, k64), (v, v64), (g, g64) = (
        rounded(rng.standard_normal((*leading, *shape)), numbers) for shape in shapes
    )
    mask = rng.random((*leading, n_keys)) < 2 / 3 if masked else None
    options = mask, causal, d**-0.5
    want, *want_rows = softmax_page.forward(q64, k64, v64, *options)
    wanted = softmax_page.backward(g64, q64, k64, v64, want, *want_rows, *options)
    q, k, v, g = (put(x) for x in (q, k, v, g))
    options = None if mask is None else put(mask), causal, d**-0.5
    out, *rows = softmax.forward(q, k, v, *options)
    gradients = softmax.backward(g, q, k, v, out, *rows, *options)
    check(get(out), want, numbers, get(q))
    check(softmax_page.log_sum_exp(*map(get, rows)), softmax_page.log_sum_exp(*want_rows), numbers)
    for got, expected in zip(gradients, wanted, strict=True):
        check(get(got), expected, numbers, get(q))
    if masked:
        for x in gradients[1:]:
            assert (as_float64(get(x))[~mask] == 0).all()


def check_causal_product(numbers, sizes, *, normalised, continued, put=same, get=same):
    """``sizes`` is leading axes, N, C, M."""
    leading, n, c, m = sizes
    rng = np.random.default_rng(n)
    (q, q64), (k, k64) = (rounded(rng.uniform(0.5, 1.5, (*leading, n, c)) / c**0.5, numbers) for _ in range(2))
    (v, v64), (g, g64) = (rounded(rng.standard_normal((*leading, n, m)), numbers) for _ in range(2))
    shapes = (c, m), (c,), (c, m), (c,)
    s, z, d_s, d_z = (rng.uniform(size=(*leading, *x)).astype(np.float32) if continued else None for x in shapes)

    def both(product, q, k, v, g, s, z, d_s, d_z):
        if not normalised:
            return *product.forward(q, k, v, s), *product.backward(g, d_s, q, k, v, s)
        out, denominator, *last = product.normalised_forward(q, k, v, s, z, 1e-6)
        return out, denominator, *last, *product.normalised_backward(g, d_s, d_z, q, k, v, s, z, out, denominator)

    states = s, z, d_s, d_z
    wanted = both(causal_page, q64, k64, v64, g64, *(None if x is None else x.astype(float) for x in states))
    arrays = [None if x is None else put(x) for x in (q, k, v, g, *states)]
    results = both(causal_product, *arrays)
    rows = (0, 4, 5, 6) if normalised else (0, 2, 3, 4)  # 16 bits; all else is float32
    for place, (got, want) in enumerate(zip(results, wanted, strict=True)):
        check(get(got), want, numbers, get(arrays[0]) if place in rows else None)
