"""What a model asks of a kernel: heads as they lie in memory, results where the caller wants them, no copies."""

import tracemalloc

import numba
import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.attention.sparse import part
from linattn_ref.kernels import reference
from linattn_ref.kernels.jit import loops

NOTHING = None, None, None


# --- Every kernel: output and gradients, which go into the buffers, then what else there is --------------------------


def softmax(room, q, k, v, d_out, out, gradients):
    out, log_sum_exp = room.softmax.forward(q, k, v, None, True, 0.5, out=out)
    d = room.softmax.backward(d_out, q, k, v, out, log_sum_exp, None, True, 0.5, gradients=gradients)
    return out, *d, log_sum_exp


def pattern_softmax(room, q, k, v, d_out, out, gradients):
    n = q.shape[-2]
    pattern = (part.band(n, n, -5, 0),)
    out, log_sum_exp = room.pattern_softmax.forward(q, k, v, None, pattern, 0.5, out=out)
    d = room.pattern_softmax.backward(d_out, q, k, v, out, log_sum_exp, None, pattern, 0.5, gradients=gradients)
    return out, *d, log_sum_exp


def dilated_softmax(room, q, k, v, d_out, out, gradients):
    n = q.shape[-2]
    pattern = (part.band(n, n, -5, 0, dilation=2),)
    out, log_sum_exp = room.pattern_softmax.forward(q, k, v, None, pattern, 0.5, out=out)
    d = room.pattern_softmax.backward(d_out, q, k, v, out, log_sum_exp, None, pattern, 0.5, gradients=gradients)
    return out, *d, log_sum_exp


def gates(room):
    """None and None, which the reference takes and the kernel does not."""
    return (None, None) if room is reference else ()


def product(room, q, k, v, d_out, out, gradients):
    out, state = room.causal_product.forward(q, k, v, *gates(room), None, out=out)
    d = room.causal_product.backward(d_out, None, q, k, v, *gates(room), None, gradients=gradients)
    return out, *(x for x in d if x is not None), state


def normalised(room, q, k, v, d_out, out, gradients):
    return _normalised(room, q * q, k * k, v, d_out, out, gradients)


def _normalised(room, q, k, v, d_out, out, gradients):
    kernel, none = room.causal_product, (*gates(room), None, None)
    out, denominator, s, z = kernel.normalised_forward(q, k, v, *none, 1e-6, out=out)
    d = kernel.normalised_backward(d_out, None, None, q, k, v, *none, out, denominator, gradients=gradients)
    return out, *(x for x in d if x is not None), denominator, s, z


def elu_plus_one(room, q, k, v, d_out, out, gradients):
    phi = room.elu_plus_one.forward(v, out=out)[0]
    d_phi = gradients[2] if gradients[2] is not None else np.empty_like(v)
    d_phi[...] = d_out
    return phi, room.elu_plus_one.backward(d_phi, phi)


def lsh(room, q, k, v, d_out, out, gradients):
    n, heads = q.shape[-2], q.shape[:-2]
    order = np.stack([np.arange(n), np.arange(n)[::-1]]) + np.zeros((*heads, 1, 1))
    who = order.astype(np.int32), np.full(heads, n), 8, True, 0.5
    out, log_sum_exp = room.lsh.forward(q, k, v, *who, out=out)
    return out, *room.lsh.backward(d_out, q, k, v, out, log_sum_exp, *who, gradients=gradients), log_sum_exp


CALLS = softmax, pattern_softmax, dilated_softmax, lsh, product, normalised, elu_plus_one
CALL = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
PAGES = softmax, pattern_softmax, dilated_softmax, lsh  # whose loops are the backends' alone
EACH = [(room, call) for room in (reference, loops) for call in CALLS if room is loops or call not in PAGES]
EACH = pytest.mark.parametrize(("room", "call"), EACH, ids=lambda x: x.__name__.rpartition(".")[2])


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
    expected = call(loops, *arrays, None, NOTHING)
    compiled = signatures()
    for got, want in zip(call(loops, *map(layout, arrays), None, NOTHING), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert signatures() == compiled


def signatures():
    """How many have been compiled for each kernel."""
    modules = loops.softmax, loops.pattern_softmax, loops.lsh, loops.elu_plus_one, loops.causal_product
    return [len(x.threaded.signatures) for module in modules for x in vars(module).values() if hasattr(x, "threaded")]


@LAYOUTS
@EACH
@each_compiled_dtype
def test_results_are_written_whole_where_the_caller_wants_them(room, call, layout, dtype):
    arrays = draw(dtype)
    expected = call(room, *arrays, None, NOTHING)
    q, k, v = (layout(np.full_like(x, np.nan)) for x in arrays[:3])
    out = layout(np.full_like(arrays[2], np.nan))
    results = call(room, *arrays, out, (q, k, v))
    buffers = (out, q, k, v) if call is not elu_plus_one else (out,)
    for result, buffer in zip(results, buffers, strict=False):
        assert result is buffer
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got, want)


@EACH
def test_a_buffer_that_will_not_do(room, call):
    arrays = draw(np.float64)
    v = arrays[2]
    read_only = np.broadcast_to(np.float64(0), v.shape)
    for bad, error, message in (
        (np.empty(v.shape, np.float32), TypeError, "expected a numpy.ndarray of float64, got float32"),
        (v.tolist(), TypeError, "expected a numpy.ndarray of float64, got list"),
        (np.empty((2, 3, 36, 5)), ValueError, r"expected shape \(2, 3, 37, 5\), got \(2, 3, 36, 5\)"),
        (read_only, ValueError, "expected an array that can be written to, got a read-only one"),
    ):
        with pytest.raises(error, match=f"^out: {message}"):
            call(room, *arrays, bad, NOTHING)
        if call is not elu_plus_one:
            with pytest.raises(error, match=f"^gradients: {message}"):
                call(room, *arrays, None, (None, None, bad))


@pytest.mark.parametrize("call", [softmax, pattern_softmax, lsh, product, _normalised, elu_plus_one])
def test_no_copy_of_heads_that_lie_beside_one_another(call):
    """States, a thread's rows, and arrays with a number a token are much smaller than half an input."""
    arrays = [heads_last(np.abs(x)) for x in draw(np.float64, (2, 4, 2048), 64, 64)]
    buffers = [heads_last(np.empty_like(x)) for x in arrays]
    arguments = *arrays, buffers[0], tuple(buffers[1:])
    threads = numba.get_num_threads()
    numba.set_num_threads(1)  # each has rows of its own, and how many are at work at once is chance
    try:
        call(loops, *arguments)
        tracemalloc.start()
        call(loops, *arguments)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        numba.set_num_threads(threads)
    assert peak < arrays[0].nbytes / 2
