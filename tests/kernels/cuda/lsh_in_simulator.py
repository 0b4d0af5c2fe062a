"""The LSH kernels handed any order, at small tiles; ``test_simulator.py`` runs it in the simulator.

There a tile has 6 places, so that chunks of 1 to 3 are put together in a block and chunks of 5 lie across blocks; one
round before is looked at at a time; a width of 8 is two tiles.
"""

import numpy as np
import pytest
from case import assert_close
from lsh_cases import LSH_CASES

from linattn_ref.kernels import cuda, reference
from linattn_ref.kernels.cuda.loops import device

WIDE = 8


def draw(seen, n, rounds, m=3, dtype=np.float64, seed=0):
    """In each round the same ``seen[h]`` tokens of a head come first, in any order."""
    rng = np.random.default_rng(seed)
    q, k, v, d_out = (rng.standard_normal((len(seen), n, width)).astype(dtype) for width in (4, 4, m, m))
    late = np.argsort(rng.random((len(seen), 1, n)), axis=-1) >= np.array(seen)[:, None, None]  # (heads, 1, N)
    order = np.argsort(late + rng.random((len(seen), rounds, n)), axis=-1).astype(np.int32)
    return q, k, v, order, d_out, np.array(seen)


def both_passes(room, q, k, v, order, d_out, seen, chunk, causal):
    out, log_sum_exp = room.lsh.forward(q, k, v, order, seen, chunk, causal, 0.7)
    return out, log_sum_exp, *room.lsh.backward(d_out, q, k, v, out, log_sum_exp, order, seen, chunk, causal, 0.7)


def check(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.isneginf(a), np.isneginf(b))
        assert_close(
            np.where(np.isneginf(a), a.dtype.type(0), a), np.where(np.isneginf(b), b.dtype.type(0), b), LSH_CASES[0]
        )


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
    check(both_passes(cuda, *arrays, chunk, causal), both_passes(reference, *arrays, chunk, causal))


def test_no_more_chunks_than_have_a_number():
    most = 2**24
    assert np.float32(most - 2) < np.float32(most - 1) < np.float32(most) == np.float32(most + 1)
    x = np.broadcast_to(np.float32(1), (1, most + 1, 1))  # one number in memory
    order = np.broadcast_to(0, (1, 1, most + 1))
    for call in (
        lambda: cuda.lsh.forward(x, x, x, order, np.array([1]), 1, False, 1.0),
        lambda: cuda.lsh.backward(x, x, x, x, x, x[..., 0], order, np.array([1]), 1, False, 1.0),
    ):
        with pytest.raises(ValueError, match=r"^chunk: expected at most 16777216 chunks in float32, got 16777217"):
            call()


def test_a_pair_counts_once_however_often_it_meets():
    """The same round over and over, beside the round alone."""
    q, k, v, order, *others = draw((11,), 11, 1)
    once = both_passes(cuda, q, k, v, order, *others, 4, False)
    often = both_passes(cuda, q, k, v, np.repeat(order, 3, axis=1), *others, 4, False)
    for got, want in zip(often, once, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-14)


def test_a_nan_is_not_taken_for_a_token_that_meets_nobody():
    q, k, v, order, _, seen = draw((12, 12), 12, 2)
    k[0, 7] = np.nan
    want, _ = reference.lsh.forward(q, k, v, order, seen, 4, False, 0.7)
    got, _ = cuda.lsh.forward(q, k, v, order, seen, 4, False, 0.7)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(want[0]).any()


@pytest.mark.parametrize("put_order", [np.asarray, device.cuda.to_device], ids=["order of NumPy", "order on the GPU"])
def test_device_arrays_in_and_out(put_order, monkeypatch):
    arrays = draw((9, 5), 9, 2, dtype=np.float32)
    want = both_passes(reference, *arrays, 4, True)
    q, k, v, d_out = (device.cuda.to_device(arrays[i]) for i in (0, 1, 2, 4))
    order, seen = put_order(arrays[3]), put_order(arrays[5].astype(np.int32))
    host = type(q).copy_to_host
    with monkeypatch.context() as patch:  # nothing is copied to the host
        patch.delattr(type(q), "copy_to_host")
        got = both_passes(cuda, q, k, v, order, d_out, seen, 4, True)
    assert all(cuda.on_gpu(x) for x in got)
    check([host(x) for x in got], want)


def test_orders_of_any_integers_and_no_leading_axes():
    *inputs, order, d_out, seen = draw((7,), 7, 2)
    arrays = *(x[0] for x in inputs), order[0].astype(np.int64)[:, ::-1][:, ::-1], d_out[0], seen[0]
    check(both_passes(cuda, *arrays, 3, False), both_passes(reference, *arrays[:-1], np.array(seen[0]), 3, False))
