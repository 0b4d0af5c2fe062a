"""What is special to Sparse Transformers: two patterns, merged or in turns; queries aligned with the last keys."""

import math
import tracemalloc

import numpy as np
import pytest

from linattn_ref.attention import local, patterns, softmax, sparse_transformer
from linattn_ref.attention.sparse import part
from linattn_ref.theory import pattern_graphs

KINDS = pytest.mark.parametrize("kind", patterns.KINDS)
ROUNDING = 1e-13  # numbers up to 10, some hundred roundings


def draw(n, n_keys, width=4):
    return [np.random.default_rng(0).standard_normal((2, rows, width)) for rows in (n, n_keys, n_keys)]


@KINDS
@pytest.mark.parametrize("n_keys", [1, 6, 31, 33, 70])
@pytest.mark.parametrize("stride", [1, 3, 8, 99])
def test_parts_are_the_pattern(kind, n_keys, stride):
    """Each pair once, with as many queries as keys and with fewer."""
    for summary in {1, min(2, stride), stride}:
        options = {"kind": kind, "stride": stride, "summary": summary}
        for n in {n_keys, (n_keys + 1) // 2, 1}:
            times = np.zeros((n, n_keys), int)
            np.add.at(times, part.pairs(sparse_transformer.parts_of(n, n_keys, **options)), 1)
            np.testing.assert_array_equal(times, sparse_transformer.pattern(n_keys, **options)[n_keys - n :])


@KINDS
def test_the_last_queries_alone(kind):
    """A block of new queries that sees its cache gives what it gives in the whole."""
    q, k, v = draw(40, 40)
    options = {"kind": kind, "stride": 6, "summary": 2}
    whole, _ = sparse_transformer.forward(q, k, v, **options)
    for n in (1, 7, 39):
        last, _ = sparse_transformer.forward(q[:, 40 - n :], k, v, **options)
        np.testing.assert_allclose(last, whole[:, 40 - n :], atol=ROUNDING)


@pytest.mark.parametrize("kind", ["strided", "fixed", "local_only"])
def test_a_stride_over_everything_is_causal_softmax_attention(kind):
    q, k, v = draw(12, 12)
    out, _ = sparse_transformer.forward(q, k, v, kind=kind, stride=12)
    np.testing.assert_allclose(out, softmax.forward(q, k, v, causal=True)[0], atol=ROUNDING)


@pytest.mark.parametrize("n", [1, 7, 20])
@pytest.mark.parametrize("stride", [2, 6, 30])
def test_the_window_alone_is_causal_local_attention(n, stride):
    """To the last bit, both passes: for which ``local`` stands in the contract tests."""
    q, k, v = draw(n, 20)
    out, saved = sparse_transformer.forward(q, k, v, kind="local_only", stride=stride)
    expected, local_saved = local.forward(q, k, v, window=stride - 1, causal=True)
    np.testing.assert_array_equal(out, expected)
    theirs = local.backward(out, local_saved)
    for x, y in zip(sparse_transformer.backward(out, saved), theirs, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", ["fixed", "fixed_summary"])
def test_summaries_everywhere_are_causal_softmax_attention(kind):
    q, k, v = draw(12, 12)
    out, _ = sparse_transformer.forward(q, k, v, kind=kind, stride=5, summary=5)
    np.testing.assert_allclose(out, softmax.forward(q, k, v, causal=True)[0], atol=ROUNDING)


def test_rows_before_the_first_summary_are_zero():
    """Exactly, and so are their gradients; the others are not."""
    q, k, v = draw(20, 20)
    out, saved = sparse_transformer.forward(q, k, v, kind="fixed_summary", stride=6, summary=2)
    gradients = sparse_transformer.backward(np.ones_like(out), saved)
    assert not out[:, :4].any()
    assert not gradients.q[:, :5].any()  # one key: its weight is 1, whatever the query
    assert out[:, 4:].any(axis=-1).all()
    seen = gradients.v.any(axis=-1)[0]
    assert np.flatnonzero(seen).tolist() == [4, 5, 10, 11, 16, 17]


@pytest.mark.parametrize("n", [16, 49, 50])
def test_two_steps_reach_every_earlier_token(n):
    """The paper's condition: from each token, one step of either pattern and one of the other, or two of the merged."""
    stride, past = math.isqrt(n), np.tri(n, dtype=bool)
    strided = sparse_transformer.pattern(n, kind="strided", stride=stride)
    assert ((pattern_graphs.steps(strided) <= 2) == past).all()
    window, column = (sparse_transformer.pattern(n, kind=k, stride=stride) for k in ("local_only", "strided_only"))
    np.testing.assert_array_equal(window @ column, past)
    fixed = sparse_transformer.pattern(n, kind="fixed", stride=stride)
    assert ((pattern_graphs.steps(fixed) <= 2) == past).all()


@KINDS
def test_no_square_array_is_made(kind):
    n = 2048
    q, k, v, d_out = np.random.default_rng(0).standard_normal((4, n, 4))
    tracemalloc.start()
    try:
        out, saved = sparse_transformer.forward(q, k, v, kind=kind, stride=45)
        sparse_transformer.backward(d_out, saved)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert out.any(axis=-1).sum() >= n - 44
    assert peak < n * n  # bytes: less than a boolean matrix


def test_more_queries_than_keys():
    q, k, v = draw(9, 8)
    with pytest.raises(ValueError, match=r"^q: .*N <= L, got N = 9 and L = 8"):
        sparse_transformer.forward(q, k, v, kind="fixed", stride=3)
