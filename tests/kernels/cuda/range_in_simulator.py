"""Scores beyond the range and numbers that are none, on a GPU; ``test_simulator.py`` runs it in the simulator."""

import numpy as np
import pytest

from linattn_ref import attention
from linattn_ref.attention import feature_maps
from linattn_ref.attention.sparse import part
from linattn_ref.kernels import cuda
from linattn_ref.kernels.cuda.loops.sparse.pattern_tasks import SHORT
from linattn_ref.kernels.cuda.loops.tile import TILE

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered"),
    pytest.mark.filterwarnings("ignore:invalid value encountered"),
]
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def softmax(causal):
    def both_passes(q, k, v, d_out):
        out, *rows = cuda.loops.softmax.softmax.forward(q, k, v, None, causal, 1.0)
        return out, cuda.loops.softmax.softmax.backward(d_out, q, k, v, out, *rows, None, causal, 1.0)

    return both_passes


def pattern(q, k, v, d_out):
    """All earlier keys and its own."""
    seen = (part.band(q.shape[1], k.shape[1], -99, 0),)
    out, *rows = cuda.loops.sparse.pattern_softmax.forward(q, k, v, None, seen, 1.0)
    return out, cuda.loops.sparse.pattern_softmax.backward(d_out, q, k, v, out, *rows, None, seen, 1.0)


def lsh(q, k, v, d_out):
    """All earlier tokens, of one chunk."""
    order, seen = np.arange(q.shape[1], dtype=np.int32)[None, None], np.array([q.shape[1]])
    out, *rows = cuda.loops.sparse.lsh.forward(q, k, v, order, seen, 99, True, 1.0)
    return out, cuda.loops.sparse.lsh.backward(d_out, q, k, v, out, *rows, order, seen, 99, True, 1.0)


def two_parts(q, k, v, d_out):
    """All earlier keys, then its own, which come in pieces of which none knows the others."""
    n = q.shape[1]
    seen = (part.band(n, n, -99, -1), part.band(n, n, 0, 0))
    out, *rows = cuda.loops.sparse.pattern_softmax.forward(q, k, v, None, seen, 1.0)
    return out, cuda.loops.sparse.pattern_softmax.backward(d_out, q, k, v, out, *rows, None, seen, 1.0)


ROUNDS = np.array([[0, 1, 2, 3, 4, 5, 6], [6, 0, 5, 1, 4, 2, 3]], np.int32)  # in chunks of two


def two_rounds(q, k, v, d_out):
    order, seen = ROUNDS[None], np.array([q.shape[1]])
    out, *rows = cuda.loops.sparse.lsh.forward(q, k, v, order, seen, 2, False, 1.0)
    return out, cuda.loops.sparse.lsh.backward(d_out, q, k, v, out, *rows, order, seen, 2, False, 1.0)


def who_meets(n):
    """In `two_rounds`."""
    chunks = np.argsort(ROUNDS, axis=1) // 2  # (rounds, tokens)
    apart = chunks[:, :, None] - chunks[:, None, :]
    return ((apart == 0) | (apart == 1)).any(axis=0) & ~np.identity(n, bool)


def causal_product(q, k, v, d_out):
    out, denominator, *_ = cuda.loops.linear.causal_product.normalised_forward(q, k, v, None, None, 1e-6)
    rows = q, k, v, None, None, out, denominator
    return out, cuda.loops.linear.causal_product.normalised_backward(d_out, None, None, *rows)[:3]


def delta_product(q, k, v, d_out):
    inputs = q, k, v, k / 4, np.full_like(k, -0.1), None
    out, _, u = cuda.loops.delta.delta_product.forward(*inputs)
    return out, cuda.loops.delta.delta_product.backward(d_out, None, *inputs, u)[:3]


CAUSAL = {"softmax causal": softmax(True), "pattern": pattern, "lsh": lsh}
CALLS = pytest.mark.parametrize("call", [softmax(False), *CAUSAL.values()], ids=["softmax", *CAUSAL])

RECURRENT = {"causal product": causal_product, "delta product": delta_product}
WITH_TILES = pytest.mark.parametrize("call", [*CAUSAL.values(), *RECURRENT.values()], ids=[*CAUSAL, *RECURRENT])


@DTYPES
@CALLS
@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, -1, -1), (-1, 1, 1)], ids=str)
def test_the_last_query_shares_what_is_as_large_as_can_be(call, signs, dtype):
    """Of three keys; its own, which LSH has it not see, is the smallest."""
    huge = np.sqrt(np.finfo(dtype).max) * dtype(4)
    q, v = np.full((1, 4, 1), huge), np.array([7, 1, 3, 0], dtype)[None, :, None]
    k = np.array([*signs, -1], dtype)[None, :, None] * huge
    out, _ = call(q, k, v, np.zeros_like(v))
    weight = np.array([*signs, -1]) == max(signs)
    weight[3] &= call is not lsh
    np.testing.assert_allclose(out[0, 3, 0], v[0, weight].mean(), rtol=1e-6)


@DTYPES
@pytest.mark.parametrize("call", [softmax(False), softmax(True), pattern], ids=["softmax", "softmax causal", "pattern"])
def test_one_key_has_the_weight_1(call, dtype):
    one = np.ones((1, 1, 1), dtype)
    for huge in (one * np.finfo(dtype).max, -one * np.finfo(dtype).max):
        out, (_, _, d_v) = call(huge, -abs(huge), 7 * one, one)
        assert out == 7
        assert d_v == 1


@DTYPES
@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (softmax(False), np.ones((7, 7), bool)),
        (softmax(True), np.tri(7, dtype=bool)),
        (pattern, np.tri(7, dtype=bool)),
        (two_parts, np.tri(7, dtype=bool)),
        (lsh, np.tri(7, k=-1, dtype=bool)),
        (two_rounds, who_meets(7)),
    ],
    ids=["softmax", "softmax causal", "pattern", "two parts", "lsh", "two rounds"],
)
@pytest.mark.parametrize("beyond", [False, True], ids=["large", "beyond the range"])
def test_both_passes_where_all_scores_are_equal_and_large(call, seen, beyond, dtype):
    """All that a query sees share its weight, however large the scores."""
    size = np.sqrt(np.finfo(dtype).max) * dtype(4) if beyond else dtype(1 / np.sqrt(np.finfo(dtype).eps))
    rng = np.random.default_rng(0)
    v, d_out = (rng.standard_normal((1, 7, 2)).astype(dtype) for _ in range(2))
    q = np.full((1, 7, 1), size)
    out, (_, d_k, d_v) = call(q, q.copy(), v, d_out)
    p = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1)
    d_p = d_out @ v.mT
    d_a = p * (d_p - (d_p * p).sum(axis=-1, keepdims=True))
    for found, expected in ((out, p @ v), (d_v, p.T @ d_out), (d_k / size, d_a.mT.sum(axis=-1, keepdims=True))):
        np.testing.assert_allclose(found, expected, rtol=0, atol=64 * np.finfo(dtype).eps)


@DTYPES
@CALLS
def test_what_has_no_weight_changes_nothing(call, dtype):
    """A value that is none, whose key all queries see from behind."""
    q, k, v, d_out = np.random.default_rng(0).random((4, 1, 10, 2)).astype(dtype) + dtype(0.1)
    q, k = q * dtype(1e3), k * dtype(1e3)
    k[:, 4] *= -1
    out, expected = call(q, k, v, d_out)
    v[:, 4] = np.inf
    found, gradients = call(q, k, v, d_out)
    rows = np.arange(10) != 0 if call is lsh else slice(None)  # the first meets nobody
    np.testing.assert_array_equal(found[:, rows], out[:, rows])
    for x, y in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(x, y)


@DTYPES
@pytest.mark.parametrize(
    ("call", "n"),
    [(softmax(False), TILE + 2), (pattern, TILE + 2), (pattern, SHORT + 14), (two_parts, 7)],
    ids=["softmax", "pattern", "pattern dealt out", "two parts"],
)
def test_what_loses_its_weight_to_a_later_tile_changes_nothing(call, n, dtype):
    """The value of key 0 is met first; then comes a key that leaves it nothing."""
    q, v, d_out = np.random.default_rng(0).random((3, 1, n, 2)).astype(dtype) + dtype(0.1)
    scores = 1e4 * np.arange(n) if call is two_parts else np.where(np.arange(n) < n - 1, 0, 1e5)
    k = scores.astype(dtype)[None, :, None].repeat(2, axis=-1)
    out, expected = call(q, k, v, d_out)
    v[:, 0] = np.inf
    found, gradients = call(q, k, v, d_out)
    first = 1 if call is two_parts else n - 1  # those before have no better key
    for x, y in zip((found, *gradients), (out, *expected), strict=True):
        np.testing.assert_array_equal(x[:, first:], y[:, first:])


@DTYPES
@pytest.mark.parametrize("module", [attention.softmax, attention.local, attention.reformer])
def test_a_head_that_sees_no_key_has_no_gradient(module, dtype):
    q, k, v, d_out = np.random.default_rng(0).random((4, 1, 10, 2)).astype(dtype)
    q[0, 3] = k[0, 4] = v[0, 5] = np.nan
    arrays, options = (q, k, v), {"window": 3} if module is attention.local else {}
    if module is attention.reformer:
        arrays, options = (q, v), {"rotations": np.ones((1, 2, 1), dtype), "chunk": 4}
    out, saved = module.forward(*arrays, key_mask=np.zeros((1, 10), bool), kernels=cuda, **options)
    for x in (out, *module.backward(d_out, saved)):
        np.testing.assert_array_equal(x, 0)


@DTYPES
@pytest.mark.parametrize("causal", [False, True])
def test_exponents_beyond_the_range(causal, dtype):
    """Equal keys share, and a query that sees none gets 0."""
    x = np.full((1, 3, 2), np.sqrt(np.finfo(dtype).max) * dtype(4))
    v = np.array([1, 2, 6], dtype)[None, :, None]
    phi = feature_maps.favor_positive(np.ones((3, 2), dtype))
    options = {"feature_map": phi, "eps": 0.0, "causal": causal, "kernels": cuda}
    out, _ = attention.linear.forward(x, x, v, **options)
    np.testing.assert_allclose(out[0, :, 0], [1, 1.5, 3] if causal else 3, rtol=1e-6)
    assert not attention.linear.forward(x, x, v, key_mask=np.zeros((1, 3), bool), **options)[0].any()


@DTYPES
@WITH_TILES
def test_a_query_that_is_none_gives_nothing_to_what_it_does_not_see(call, dtype):
    rng = np.random.default_rng(0)
    q, k, v, d_out = (rng.standard_normal((1, 10, 2)).astype(dtype) for _ in range(4))
    _, (_, *expected) = call(q, k, v, d_out)
    q[:, 3, 1] = d_out[:, 2, 0] = np.nan
    _, (_, *found) = call(q, k, v, d_out)
    for x, y in zip(found, expected, strict=True):
        assert not np.isfinite(x[:, :3]).all()
        np.testing.assert_allclose(x[:, 4:], y[:, 4:], rtol=0, atol=64 * np.finfo(dtype).eps)


@DTYPES
@pytest.mark.parametrize("none", [np.nan, np.inf])
@WITH_TILES
def test_a_number_that_is_none_reaches_no_earlier_query(call, none, dtype):
    """In the last token but one, in a tile with queries before it."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 10, 2)).astype(dtype) for _ in range(4)]
    out, (d_q, *_) = call(*arrays)
    for x in arrays:
        x[:, 8, 1] = none
    found, (found_d_q, *_) = call(*arrays)
    np.testing.assert_array_equal(found[:, :8], out[:, :8])
    np.testing.assert_array_equal(found_d_q[:, :8], d_q[:, :8])
    assert not np.isfinite(found[:, 9]).all()
