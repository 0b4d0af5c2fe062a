"""The LSH kernel beside the page, with any order: lengths and chunks around its vectors and tasks, counts, threads."""

import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.attention import reformer
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit.loops.simd.vector import lanes
from linattn_ref.kernels.jit.loops.sparse import lsh


def draw(seen, n, rounds, dtype=np.float64, seed=0):
    """Tokens in buckets of their own, and so in any order; of head ``h`` ``seen[h]`` are not masked."""
    rng = np.random.default_rng(seed)
    qk, v, d_out = rng.standard_normal((3, len(seen), n, 5)).astype(dtype)
    places = rng.random((len(seen), n)).argsort(axis=-1)
    options = {"buckets": rng.random((len(seen), rounds, n)).argsort(axis=-1), "scale": 0.7}
    return qk, v[..., :3].copy(), d_out[..., :3].copy(), {**options, "key_mask": places < np.array(seen)[:, None]}


def both_passes(kernels, qk, v, d_out, options, **more):
    out, saved = reformer.forward(qk, v, **options, **more, kernels=kernels)
    return out, *reformer.backward(d_out, saved)


@each_compiled_dtype
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("n", "chunk"),
    [(1, 1), (2, 1), (33, 16), (65, 33), (600, 100), (70, 200)]
    + [pytest.param(*pair, marks=pytest.mark.slow) for pair in ((64, 32), (1100, 8), (560, 260))],
)
def test_both_backends_agree(n, chunk, causal, dtype):
    """To 200 roundings: sums of up to 600 products of numbers of size 1."""
    for seen in ((n, n), (n, n // 2), (0, 1)):
        arrays = draw(seen, n, 3, dtype)
        expected = both_passes(reference, *arrays, chunk=chunk, causal=causal)
        for got, want in zip(both_passes(jit, *arrays, chunk=chunk, causal=causal), expected, strict=True):
            assert got.dtype == dtype
            largest = max(1, abs(want).max())
            np.testing.assert_allclose(got, want, rtol=0, atol=200 * np.finfo(dtype).eps * largest)


def test_a_pair_counts_once_however_often_it_meets():
    """The same round over and over, beside the round alone."""
    *arrays, options = draw((100, 100), 100, 1)
    for kernels in (reference, jit):
        once = both_passes(kernels, *arrays, options, chunk=8)
        repeated = {**options, "buckets": np.repeat(options["buckets"], 7, axis=1)}
        often = both_passes(kernels, *arrays, repeated, chunk=8)
        for got, want in zip(often, once, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_tokens_are_told_apart_at_any_length():
    """Places are kept as floats: neighbours at the end of a long sequence must not become equal."""
    assert lanes(np.empty(1, np.float32)) >= 8
    n = 2**16 + 3
    qk, v, _, options = draw((n,), n, 2, np.float32)
    options["buckets"][0, 1] = np.arange(n)
    for causal in (False, True):
        out, _ = reformer.forward(qk, v, **options, chunk=2, causal=causal, kernels=jit)
        want, _ = reformer.forward(qk, v, **options, chunk=2, causal=causal)
        np.testing.assert_allclose(out, want, rtol=0, atol=1e-5)


def test_no_more_tokens_than_have_a_number():
    """The last that is allowed is told from its neighbours, halves between them too; one more token is an error."""
    longest = 2**23
    last = np.float32(longest - 1)
    assert last - np.float32(0.5) < last < last + np.float32(0.5) < np.float32(longest)
    x = np.broadcast_to(np.float32(1), (1, longest + 1, 1))  # one number in memory
    order, seen = np.broadcast_to(0, (1, 1, longest + 1)), np.array([1])
    with pytest.raises(ValueError, match=r"q: expected at most 8388608 tokens in float32, got 8388609"):
        lsh.forward(x, x, x, order, seen, 2, False, 1.0)
    with pytest.raises(ValueError, match=r"q: expected at most 8388608 tokens in float32, got 8388609"):
        lsh.backward(x, x, x, x, x, x[..., 0], x[..., 0], order, seen, 2, False, 1.0)


def test_a_nan_is_not_taken_for_a_token_that_meets_nobody():
    qk, v, _, options = draw((40, 40), 40, 2)
    qk[0, 7] = np.nan
    for kernels in (reference, jit):
        out, _ = reformer.forward(qk, v, **options, chunk=4, kernels=kernels)
        assert np.isnan(out[0]).any()
        assert np.isfinite(out[1]).all()


@each_compiled_dtype
def test_all_that_a_token_meets_share_its_weight_however_large_the_scores(dtype):
    """Scores whose neighbours are 16 apart or more, where ``m + log s`` is ``m``."""
    n, rng = 7, np.random.default_rng(0)
    x = np.full((1, n, 1), np.sqrt(64 / np.finfo(dtype).eps), dtype)
    v, d_out = (rng.standard_normal((1, n, 2)).astype(dtype) for _ in range(2))
    who = np.arange(n, dtype=np.int32)[None, None], np.array([n]), n, False, 1.0
    out, *rows = lsh.forward(x, x, v, *who)
    *_, d_v = lsh.backward(d_out, x, x, v, out, *rows, *who)
    p = (1 - np.eye(n)) / (n - 1)
    np.testing.assert_allclose(d_v[0], p.T @ d_out[0], rtol=0, atol=16 * np.finfo(dtype).eps)
