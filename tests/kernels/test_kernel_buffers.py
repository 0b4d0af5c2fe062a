"""What a model asks of a kernel: heads as they lie in memory, the output where the caller wants it, no copies."""

import tracemalloc

import numba
import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.attention.sparse import part
from linattn_ref.kernels.jit import loops

# --- Every kernel: output, which goes into the buffer, and gradients, then what else there is ------------------------


def softmax(q, k, v, d_out, out):
    out, *sums = loops.softmax.softmax.forward(q, k, v, None, True, 0.5, out=out)
    d = loops.softmax.softmax.backward(d_out, q, k, v, out, *sums, None, True, 0.5)
    return out, *d, *sums


def pattern_softmax(q, k, v, d_out, out):
    n = q.shape[-2]
    pattern = (part.band(n, n, -5, 0),)
    out, *sums = loops.sparse.pattern_softmax.forward(q, k, v, None, pattern, 0.5, out=out)
    d = loops.sparse.pattern_softmax.backward(d_out, q, k, v, out, *sums, None, pattern, 0.5)
    return out, *d, *sums


def dilated_softmax(q, k, v, d_out, out):
    n = q.shape[-2]
    pattern = (part.band(n, n, -5, 0, dilation=2),)
    out, *sums = loops.sparse.pattern_softmax.forward(q, k, v, None, pattern, 0.5, out=out)
    d = loops.sparse.pattern_softmax.backward(d_out, q, k, v, out, *sums, None, pattern, 0.5)
    return out, *d, *sums


def product(q, k, v, d_out, out):
    out, state = loops.linear.causal_product.forward(q, k, v, None, out=out)
    d = loops.linear.causal_product.backward(d_out, None, q, k, v, None)
    return out, *d, state


def normalised(q, k, v, d_out, out):
    return _normalised(q * q, k * k, v, d_out, out)


def _normalised(q, k, v, d_out, out):
    out, denominator, s, z = loops.linear.causal_product.normalised_forward(q, k, v, None, None, 1e-6, out=out)
    d = loops.linear.causal_product.normalised_backward(d_out, None, None, q, k, v, None, None, out, denominator)
    return out, *d, denominator, s, z


def elu_plus_one(q, k, v, d_out, out):
    phi = loops.linear.elu_plus_one.forward(v)[0]
    return phi, loops.linear.elu_plus_one.backward(d_out.copy(), phi)


def lsh(q, k, v, d_out, out):
    n, heads = q.shape[-2], q.shape[:-2]
    order = np.stack([np.arange(n), np.arange(n)[::-1]]) + np.zeros((*heads, 1, 1))
    who = order.astype(np.int32), np.full(heads, n), 8, True, 0.5
    out, *sums = loops.sparse.lsh.forward(q, k, v, *who, out=out)
    return out, *loops.sparse.lsh.backward(d_out, q, k, v, out, *sums, *who), *sums


CALLS = softmax, pattern_softmax, dilated_softmax, lsh, product, normalised, elu_plus_one
CALL = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


# --- Layouts --------------------------------------------------------------------------------------------------------


def heads_last(x):
    """The same numbers, the heads of a row side by side: ``(B, N, H, D)`` seen as ``(B, H, N, D)``."""
    return np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3)


def reversed_rows(x):
    return np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :]


def gaps(x):
    return np.repeat(x, 2, axis=-1)[..., ::2]


LAYOUTS = pytest.mark.parametrize("layout", [heads_last, reversed_rows, gaps])


def draw(dtype, shape=(2, 3, 37), d=8, m=5):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((*shape, width)).astype(dtype) for width in (d, d, m, m)]


@LAYOUTS
@CALL
@each_compiled_dtype
def test_the_same_bits_from_any_layout_and_no_machine_code_of_its_own(call, layout, dtype):
    arrays = draw(dtype)
    expected = call(*arrays, None)
    compiled = signatures()
    for got, want in zip(call(*map(layout, arrays), None), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert signatures() == compiled


def signatures():
    """How many have been compiled for each kernel."""
    linear, sparse = loops.linear, loops.sparse
    modules = loops.softmax.softmax, sparse.pattern_softmax, sparse.lsh, linear.elu_plus_one, linear.causal_product
    return [len(x.task.signatures) for module in modules for x in vars(module).values() if hasattr(x, "task")]


@LAYOUTS
@pytest.mark.parametrize("call", [call for call in CALLS if call is not elu_plus_one], ids=lambda call: call.__name__)
@each_compiled_dtype
def test_the_output_is_written_whole_where_the_caller_wants_it(call, layout, dtype):
    arrays = draw(dtype)
    expected = call(*arrays, None)
    out = layout(np.full_like(arrays[2], np.nan))
    results = call(*arrays, out)
    assert results[0] is out
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("call", [softmax, pattern_softmax, lsh, product, _normalised, elu_plus_one])
def test_no_copy_of_heads_that_lie_beside_one_another(call):
    """States, a thread's rows, and arrays with a number a token are much smaller than half an input."""
    arrays = [heads_last(np.abs(x)) for x in draw(np.float64, (2, 4, 1024), 64, 64)]
    arguments = *arrays, heads_last(np.empty_like(arrays[0]))
    threads = numba.get_num_threads()
    numba.set_num_threads(1)  # each has rows of its own, and how many are at work at once is chance
    try:
        call(*(x[..., :64, :] for x in arguments))  # what is made once
        tracemalloc.start()
        results = call(*arguments)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        numba.set_num_threads(threads)
    made = sum(x.nbytes for x in results if x is not arguments[-1])
    assert peak - made < arrays[0].nbytes / 2
