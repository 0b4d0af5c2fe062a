"""The LSH kernels with any order, at small tiles; ``test_simulator.py`` runs it in the simulator.

There a tile has 6 places, so that chunks of 1 to 3 are put together in a block and chunks of 5 lie across blocks; one
round before is looked at at a time; a width of 8 is two tiles.
"""

import numpy as np
import pytest
from case import assert_close
from lsh_cases import LSH_CASES

from linattn_ref.attention import reformer
from linattn_ref.kernels import cuda, reference
from linattn_ref.kernels.cuda.loops import device
from linattn_ref.kernels.cuda.loops.sparse import lsh

WIDE = 8


def draw(seen, n, rounds, m=3, dtype=np.float64, seed=0):
    """Tokens in buckets of their own, and so in any order; of head ``h`` ``seen[h]`` are not masked."""
    rng = np.random.default_rng(seed)
    qk, v, d_out = (rng.standard_normal((len(seen), n, width)).astype(dtype) for width in (4, m, m))
    key_mask = rng.random((len(seen), n)).argsort(axis=-1) < np.array(seen)[:, None]
    return qk, v, d_out, {"buckets": rng.random((len(seen), rounds, n)).argsort(axis=-1), "key_mask": key_mask}


def both_passes(kernels, qk, v, d_out, options, **more):
    out, saved = reformer.forward(qk, v, **options, **more, scale=0.7, kernels=kernels)
    return out, *reformer.backward(d_out, saved)


def check(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert_close(a, b, LSH_CASES[0])


@pytest.mark.parametrize(
    ("n", "chunk", "m", "causal", "dtype"),
    [
        (1, 1, 1, False, np.float64),
        (7, 1, 3, True, np.float32),
        (13, 2, 3, False, np.float32),
        (8, 3, WIDE, True, np.float64),
        (11, 5, WIDE, False, np.float32),
        (7, 200, 3, False, np.float64),
    ],
)
def test_any_order_is_the_references(n, chunk, m, causal, dtype):
    """With all tokens in one head and half of them, the rest masked, in another."""
    arrays = draw((n, n // 2), n, 3, m, dtype)
    options = {"chunk": chunk, "causal": causal}
    check(both_passes(cuda, *arrays, **options), both_passes(reference, *arrays, **options))


def test_no_more_chunks_than_have_a_number():
    most = 2**24
    assert np.float32(most - 2) < np.float32(most - 1) < np.float32(most) == np.float32(most + 1)
    x = np.broadcast_to(np.float32(1), (1, most + 1, 1))  # one number in memory
    order = np.broadcast_to(0, (1, 1, most + 1))
    for call in (
        lambda: lsh.forward(x, x, x, order, np.array([1]), 1, False, 1.0),
        lambda: lsh.backward(x, x, x, x, x, x[..., 0], x[..., 0], order, np.array([1]), 1, False, 1.0),
    ):
        with pytest.raises(ValueError, match=r"^chunk: expected at most 16777216 chunks in float32, got 16777217"):
            call()


def test_a_pair_counts_once_however_often_it_meets():
    """The same round over and over, beside the round alone."""
    *arrays, options = draw((11,), 11, 1)
    once = both_passes(cuda, *arrays, options, chunk=4)
    often = both_passes(cuda, *arrays, {**options, "buckets": np.repeat(options["buckets"], 3, axis=1)}, chunk=4)
    for got, want in zip(often, once, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-14)


def test_a_nan_is_not_taken_for_a_token_that_meets_nobody():
    qk, v, _, options = draw((12, 12), 12, 2)
    qk[0, 7] = np.nan
    want, _ = reformer.forward(qk, v, **options, chunk=4)
    got, _ = reformer.forward(qk, v, **options, chunk=4, kernels=cuda)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(want[0]).any()


@pytest.mark.parametrize("put_order", [np.asarray, device.cuda.to_device], ids=["order of NumPy", "order on the GPU"])
def test_device_arrays_in_and_out(put_order, monkeypatch):
    rng = np.random.default_rng(0)
    q, k, v, d_out = (rng.standard_normal((2, 9, width)).astype(np.float32) for width in (4, 4, 3, 3))
    order = rng.random((2, 2, 9)).argsort(axis=-1).astype(np.int32)
    want = loop_passes(q, k, v, order, d_out, np.array([9, 9], np.int32))
    q, k, v, d_out = (device.cuda.to_device(x) for x in (q, k, v, d_out))
    order, seen = put_order(order), put_order(np.array([9, 9], np.int32))
    host = type(q).copy_to_host
    with monkeypatch.context() as patch:  # nothing is copied to the host
        patch.delattr(type(q), "copy_to_host")
        got = loop_passes(q, k, v, order, d_out, seen)
    assert all(cuda.on_gpu(x) for x in got)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(host(a), b)


def test_orders_of_any_integers_and_no_leading_axes():
    q, k, v, d_out = np.random.default_rng(0).standard_normal((4, 7, 3))
    order, seen = np.random.default_rng(1).random((2, 7)).argsort(axis=-1), np.array(7)
    want = loop_passes(q, k, v, order.astype(np.int32), d_out, seen)
    for got, x in zip(loop_passes(q, k, v, order[:, ::-1].copy()[:, ::-1], d_out, seen), want, strict=True):
        np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(loop_passes(*(x[None] for x in (q, k, v, order, d_out, seen)))[0][0], want[0])


def loop_passes(q, k, v, order, d_out, seen):
    out, *rows = lsh.forward(q, k, v, order, seen, 3, False, 0.7)
    return out, *lsh.backward(d_out, q, k, v, out, *rows, order, seen, 3, False, 0.7)
