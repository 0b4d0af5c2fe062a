"""Windows and blocks: their limits, what meets them elsewhere, and what is special to them."""

import sys

import numpy as np
import pytest

from linattn_ref.attention import block_local, local, softmax
from linattn_ref.attention.sparse import part
from linattn_ref.kernels import jit, reference

backends = pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
causal_or_not = pytest.mark.parametrize("causal", [False, True])


def draw(n, n_keys, leading=(2,), d=4, m=3):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((*leading, *shape)) for shape in ((n, d), (n_keys, d), (n_keys, m), (n, m))]


def window(*arrays, d_out, **options):
    out, saved = local.forward(*arrays, **options)
    return out, *local.backward(d_out, saved)


def block(*arrays, d_out, **options):
    out, saved = block_local.forward(*arrays, **options)
    return out, *block_local.backward(d_out, saved)


def everything(*arrays, d_out, **options):
    out, saved = softmax.forward(*arrays, **options)
    return out, *softmax.backward(d_out, saved)


def assert_same(got, expected, atol=1e-12):
    """Sums of some ten products of normal numbers in another order: 1e-12 is thousands of roundings."""
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


@backends
@causal_or_not
@pytest.mark.parametrize("wide", [12, 13, sys.maxsize])
def test_a_window_or_block_that_holds_everything_is_softmax_attention(kernels, causal, wide):
    q, k, v, d_out = draw(13, 13)
    expected = everything(q, k, v, d_out=d_out, causal=causal)
    assert_same(window(q, k, v, d_out=d_out, window=wide, causal=causal, kernels=kernels), expected)
    assert_same(block(q, k, v, d_out=d_out, block=max(wide, 13), causal=causal, kernels=kernels), expected)


@backends
def test_dilation_is_a_window_within_each_residue(kernels):
    """Every third position by itself, with a plain window."""
    q, k, v, d_out = draw(35, 35)
    got = window(q, k, v, d_out=d_out, window=2, dilation=3, kernels=kernels)
    for r in range(3):
        q_r, k_r, v_r, d_out_r = (x[:, r::3] for x in (q, k, v, d_out))
        assert_same([x[:, r::3] for x in got], window(q_r, k_r, v_r, d_out=d_out_r, window=2, kernels=kernels))


@backends
@causal_or_not
def test_blocks_know_nothing_of_each_other(kernels, causal):
    """Each is softmax attention by itself; the last one is shorter."""
    q, k, v, d_out = draw(35, 35)
    got = block(q, k, v, d_out=d_out, block=16, causal=causal, kernels=kernels)
    for start in (0, 16, 32):
        own = slice(start, start + 16)
        q_b, k_b, v_b, d_out_b = (x[:, own] for x in (q, k, v, d_out))
        assert_same([x[:, own] for x in got], everything(q_b, k_b, v_b, d_out=d_out_b, causal=causal))


@backends
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("size", [1, 4])
def test_the_last_queries_alone_get_what_they_get_together(kernels, size, dilation):
    """Causal, one new token or a few after a cache of keys."""
    q, k, v, _ = draw(50, 50)
    whole, _ = local.forward(q, k, v, window=5, dilation=dilation, causal=True, kernels=kernels)
    last, _ = local.forward(q[:, -size:], k, v, window=5, dilation=dilation, causal=True, kernels=kernels)
    np.testing.assert_allclose(last, whole[:, -size:], rtol=0, atol=1e-13)
    whole, _ = block_local.forward(q, k, v, block=16, causal=True, kernels=kernels)
    last, _ = block_local.forward(q[:, -size:], k, v, block=16, causal=True, kernels=kernels)
    np.testing.assert_allclose(last, whole[:, -size:], rtol=0, atol=1e-13)


@backends
def test_a_query_without_keys_nearby_is_zero(kernels):
    """More queries than keys: those far behind the last key see nothing."""
    q, k, v, d_out = draw(40, 7)
    out, d_q, *_ = window(q, k, v, d_out=d_out, window=3, kernels=kernels)
    assert out[:, :10].all()
    assert not out[:, 10:].any()
    assert not d_q[:, 10:].any()
    out, *_ = block(q, k, v, d_out=d_out, block=5, kernels=kernels)
    assert out[:, :10].all()
    assert not out[:, 10:].any()


@causal_or_not
def test_work_grows_with_the_length_alone(causal):
    """Twice the length, twice the pairs, but for the ends."""
    for make in (
        lambda n: local.parts_of(n, n, window=16, dilation=4, causal=causal),
        lambda n: block_local.parts_of(n, n, block=32, causal=causal),
    ):
        short, long = (part.count_pairs(make(n)) for n in (2048, 4096))
        assert 2 * short <= long <= 2.05 * short


def test_a_distant_key_arrives_after_as_many_layers_as_windows_between():
    """Layer by layer, what sits at position 0 reaches ``window`` places further."""
    n, reach = 20, 3
    q, k, v = np.zeros((n, 2)), np.zeros((n, 2)), np.eye(n)
    for layers in range(1, 5):
        v, _ = local.forward(q, k, v, window=reach)
        np.testing.assert_array_equal(np.flatnonzero(v[:, 0]), np.arange(min(n, layers * reach + 1)))
    v = np.eye(n)
    for _ in range(4):
        v, _ = block_local.forward(q, k, v, block=reach)
    np.testing.assert_array_equal(np.flatnonzero(v[:, 0]), np.arange(reach))  # never out of its block
