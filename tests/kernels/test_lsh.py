"""The LSH kernel in both rooms, handed any order: lengths and chunks around its vectors and tasks, counts, threads."""

import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit.loops.vector import lanes


def draw(seen, n, rounds, dtype=np.float64, seed=0):
    """In each round the same ``seen[h]`` tokens of a head come first, in any order."""
    rng = np.random.default_rng(seed)
    q, k, v, d_out = rng.standard_normal((4, len(seen), n, 5)).astype(dtype)
    late = np.argsort(rng.random((len(seen), 1, n)), axis=-1) >= np.array(seen)[:, None, None]  # (heads, 1, N)
    order = np.argsort(late + rng.random((len(seen), rounds, n)), axis=-1).astype(np.int32)
    return q, k, v[..., :3].copy(), order, d_out[..., :3].copy()


def both_passes(room, q, k, v, order, d_out, seen, chunk, causal):
    out, log_sum_exp = room.lsh.forward(q, k, v, order, seen, chunk, causal, 0.7)
    return out, log_sum_exp, *room.lsh.backward(d_out, q, k, v, out, log_sum_exp, order, seen, chunk, causal, 0.7)


@each_compiled_dtype
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("n", "chunk"),
    [(1, 1), (2, 1), (33, 16), (65, 33), (600, 100), (70, 200)]
    + [pytest.param(*pair, marks=pytest.mark.slow) for pair in ((64, 32), (1100, 8), (560, 260))],
)
def test_both_rooms_agree(n, chunk, causal, dtype):
    """To 200 roundings: sums of up to 600 products of numbers of size 1."""
    for seen in ((n, n), (n, n // 2), (0, 1)):
        arrays = *draw(seen, n, 3, dtype), np.array(seen)
        expected = both_passes(reference, *arrays, chunk, causal)
        for got, want in zip(both_passes(jit, *arrays, chunk, causal), expected, strict=True):
            assert got.dtype == dtype
            largest = max(1, abs(want[np.isfinite(want)]).max(initial=0))
            np.testing.assert_allclose(got, want, rtol=0, atol=200 * np.finfo(dtype).eps * largest)


def test_a_pair_counts_once_however_often_it_meets():
    """The same round over and over, beside the round alone."""
    q, k, v, order, d_out = draw((100, 100), 100, 1)
    seen = np.array([100, 100])
    for room in (reference, jit):
        once = both_passes(room, q, k, v, order, d_out, seen, 8, False)
        often = both_passes(room, q, k, v, np.repeat(order, 7, axis=1), d_out, seen, 8, False)
        for got, want in zip(often, once, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_tokens_are_told_apart_at_any_length():
    """Places are kept as floats: neighbours at the end of a long sequence must not become equal."""
    assert lanes(np.empty(1, np.float32)) >= 8
    n = 2**16 + 3
    q, k, v, order, _ = draw((n,), n, 2, np.float32)
    order[0, 1] = np.arange(n)
    for causal in (False, True):
        out, _ = jit.lsh.forward(q, k, v, order, np.array([n]), 2, causal, 0.7)
        want, _ = reference.lsh.forward(q, k, v, order, np.array([n]), 2, causal, 0.7)
        np.testing.assert_allclose(out, want, rtol=0, atol=1e-5)


def test_no_more_tokens_than_have_a_number():
    """The last that is allowed is told from its neighbours, halves between them too; one more token is an error."""
    longest = 2**23
    last = np.float32(longest - 1)
    assert last - np.float32(0.5) < last < last + np.float32(0.5) < np.float32(longest)
    x = np.broadcast_to(np.float32(1), (1, longest + 1, 1))  # one number in memory
    order, seen = np.broadcast_to(0, (1, 1, longest + 1)), np.array([1])
    with pytest.raises(ValueError, match=r"q: expected at most 8388608 tokens in float32, got 8388609"):
        jit.lsh.forward(x, x, x, order, seen, 2, False, 1.0)
    with pytest.raises(ValueError, match=r"q: expected at most 8388608 tokens in float32, got 8388609"):
        jit.lsh.backward(x, x, x, x, x, x[..., 0], order, seen, 2, False, 1.0)


def test_a_nan_is_not_taken_for_a_token_that_meets_nobody():
    q, k, v, order, _ = draw((40, 40), 40, 2)
    k[0, 7] = np.nan
    for room in (reference, jit):
        out, _ = room.lsh.forward(q, k, v, order, np.array([40, 40]), 4, False, 0.7)
        assert np.isnan(out[0]).any()
        assert np.isfinite(out[1]).all()
