"""The boolean patterns, by loops over all pairs, and what they refuse."""

import numpy as np
import pytest

from linattn_ref.attention import patterns, softmax

LENGTHS = pytest.mark.parametrize("n", [1, 2, 7, 12, 13])


def by_loops(n, sees):
    return np.array([[bool(sees(i, j)) for j in range(n)] for i in range(n)])


@LENGTHS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "dilation"), [(1, 1), (3, 1), (2, 3), (1, 4), (50, 1)])
def test_local(n, window, dilation, causal):
    reach = [step * dilation for step in range(-window, window + 1) if not (causal and step > 0)]
    expected = by_loops(n, lambda i, j: j - i in reach)
    np.testing.assert_array_equal(patterns.local(n, window=window, dilation=dilation, causal=causal), expected)


@LENGTHS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [1, 3, 4, 50])
def test_block_local(n, block, causal):
    expected = by_loops(n, lambda i, j: i // block == j // block and (j <= i or not causal))
    np.testing.assert_array_equal(patterns.block_local(n, block=block, causal=causal), expected)


@LENGTHS
@pytest.mark.parametrize("tokens", [[], [0], [-1], [0, 0, -1]])
def test_longformer(n, tokens):
    places = {token % n for token in tokens}
    expected = by_loops(n, lambda i, j: i in places or j in places or (abs(i - j) <= 4 and (i - j) % 2 == 0))
    got = patterns.longformer(n, window=2, dilation=2, global_tokens=tokens)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(
        patterns.longformer(n, window=2, dilation=2, global_tokens=np.array(tokens, np.int32)), expected
    )


@pytest.mark.parametrize("n", [1, 4, 5, 23, 24, 25])
@pytest.mark.parametrize("global_blocks", [(0, -1), (), (2,), (0, 0)])
@pytest.mark.parametrize("window_blocks", [1, 3, 5])
def test_bigbird(n, global_blocks, window_blocks):
    block, n_blocks = 4, -(-n // 4)
    if any(index >= n_blocks for index in global_blocks):
        global_blocks = ()
    drawn = np.random.default_rng(0).integers(0, n_blocks, (n_blocks, 2))
    places = {index % n_blocks for index in global_blocks}

    def sees(i, j):
        a, b = i // block, j // block
        near = abs(a - b) <= window_blocks // 2
        return near or a in places or b in places or b in drawn[a]

    options = {"block": block, "window_blocks": window_blocks, "global_blocks": global_blocks}
    got = patterns.bigbird(n, **options, random_blocks=drawn)
    np.testing.assert_array_equal(got, by_loops(n, sees))
    without = patterns.bigbird(n, **options)
    assert (got | without == got).all()


def test_rows_of_global_blocks_are_ignored():
    drawn = np.array([[99], [3], [-50]])
    with pytest.raises(ValueError, match=r"^random_blocks: expected indices from -3 to 2, got 3"):
        patterns.bigbird(12, block=4, random_blocks=drawn)
    drawn[1] = -1
    got = patterns.bigbird(12, block=4, random_blocks=drawn)
    np.testing.assert_array_equal(got, patterns.bigbird(12, block=4))


@LENGTHS
@pytest.mark.parametrize("stride", [1, 3, 4, 50])
@pytest.mark.parametrize("kind", patterns.KINDS)
def test_sparse_transformer(n, stride, kind):
    for summary in {1, min(2, stride), stride}:
        rules = {
            "local_only": lambda i, j: j > i - stride,
            "strided_only": lambda i, j: (i - j) % stride == 0,
            "fixed_summary": lambda i, j, summary=summary: j % stride >= stride - summary,
        }
        rules["strided"] = lambda i, j, rules=rules: rules["local_only"](i, j) or rules["strided_only"](i, j)
        rules["fixed"] = lambda i, j, rules=rules: i // stride == j // stride or rules["fixed_summary"](i, j)
        expected = by_loops(n, lambda i, j, rule=rules[kind]: j <= i and rule(i, j))
        got = patterns.sparse_transformer(n, kind=kind, stride=stride, summary=summary)
        np.testing.assert_array_equal(got, expected)


def test_two_alternating_patterns_are_the_merged_one():
    def of(kind):
        return patterns.sparse_transformer(30, kind=kind, stride=5, summary=2)

    np.testing.assert_array_equal(of("local_only") | of("strided_only"), of("strided"))
    np.testing.assert_array_equal(patterns.block_local(30, block=5, causal=True) | of("fixed_summary"), of("fixed"))


# --- The dense softmax under a pattern ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_matrix(dtype):
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 3, 8, 4)).astype(dtype)
    key_mask = rng.random((3, 8)) < 0.6
    everything = np.ones((8, 8), bool)
    tolerance = 8 * np.finfo(dtype).eps  # weights are at most 1
    np.testing.assert_allclose(
        patterns.matrix(q, k, everything, key_mask=key_mask), softmax.matrix(q, k, key_mask=key_mask), atol=tolerance
    )
    np.testing.assert_allclose(
        patterns.matrix(q, k, np.tri(8, dtype=bool), scale=-2),
        softmax.matrix(q, k, causal=True, scale=-2),
        atol=tolerance,
    )
    allowed = rng.random((8, 8)) < 0.4
    allowed[2] = False
    p = patterns.matrix(q, k, allowed)
    assert p.dtype == dtype
    assert ((p > 0) == allowed).all()
    np.testing.assert_allclose(p.sum(axis=-1), np.broadcast_to(allowed.any(axis=-1), (3, 8)), atol=tolerance)


def test_matrix_refuses():
    q = np.zeros((3, 8, 4))
    with pytest.raises(ValueError, match=r"^allowed: expected shape \(N, L\) = \(8, 8\), got \(3, 8, 8\)"):
        patterns.matrix(q, q, np.ones((3, 8, 8), bool))
    with pytest.raises(TypeError, match=r"^allowed: expected an array of bool, got int64"):
        patterns.matrix(q, q, np.ones((8, 8), int))


# --- What is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, None])
def test_sizes(wrong):
    calls = {
        "n": lambda: patterns.local(wrong, window=1),
        "window": lambda: patterns.local(5, window=wrong),
        "dilation": lambda: patterns.local(5, window=1, dilation=wrong),
        "block": lambda: patterns.block_local(5, block=wrong),
        "window_blocks": lambda: patterns.bigbird(5, block=2, window_blocks=wrong),
        "stride": lambda: patterns.sparse_transformer(5, kind="fixed", stride=wrong),
        "summary": lambda: patterns.sparse_transformer(5, kind="fixed", stride=3, summary=wrong),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=rf"^{name}: expected an integer of at least 1"):
            call()


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ([5], ValueError, r"expected indices from -5 to 4, got 5"),
        ([0, -6], ValueError, r"expected indices from -5 to 4, got -6"),
        ([[0]], ValueError, r"expected a sequence of integers, got shape \(1, 1\)"),
        ([0.0], TypeError, r"expected integers, got float64"),
        ([True, False, False, False, False], TypeError, r"expected integers, got bool"),
        (0, TypeError, r"expected a sequence or array of integers, got 0"),
        (None, TypeError, r"expected a sequence or array of integers, got None"),
        ("01", TypeError, r"expected a sequence or array of integers, got '01'"),
        ([[0], [1, 2]], ValueError, r"expected an array of integers, got \[\[0\], \[1, 2\]\]"),
    ],
)
def test_indices(tokens, error, message):
    with pytest.raises(error, match=rf"^global_tokens: {message}"):
        patterns.longformer(5, window=1, global_tokens=tokens)
    with pytest.raises(error, match=rf"^global_blocks: {message}"):
        patterns.bigbird(10, block=2, global_blocks=tokens)


@pytest.mark.parametrize(
    ("drawn", "error", "message"),
    [
        ([[0]] * 4, ValueError, r"expected shape \(blocks, r\) with blocks = 5, got \(4, 1\)"),
        ([0] * 5, ValueError, r"expected shape \(blocks, r\) with blocks = 5, got \(5,\)"),
        ([[0.5]] * 5, TypeError, r"expected integers, got float64"),
        ([[7]] * 5, ValueError, r"expected indices from -5 to 4, got 7"),
    ],
)
def test_random_blocks(drawn, error, message):
    with pytest.raises(error, match=rf"^random_blocks: {message}"):
        patterns.bigbird(10, block=2, random_blocks=drawn)


def test_other_arguments():
    with pytest.raises(ValueError, match=r"^kind: expected one of strided, fixed, .*, got 'dense'"):
        patterns.sparse_transformer(5, kind="dense", stride=2)
    with pytest.raises(ValueError, match=r"^summary: expected at most stride = 2, got 3"):
        patterns.sparse_transformer(5, kind="fixed", stride=2, summary=3)
    with pytest.raises(ValueError, match=r"^window_blocks: expected an odd number.*, got 2"):
        patterns.bigbird(5, block=2, window_blocks=2)
