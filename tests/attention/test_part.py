"""The compact index structure against the pairs it stands for, one by one."""

import numpy as np
import pytest

from linattn_ref.attention.sparse import part

SIZES = [(1, 1), (5, 7), (32, 32), (37, 41), (70, 33), (3, 80), (131, 131)]
sizes = pytest.mark.parametrize(("n", "n_keys"), SIZES)
causal_sizes = pytest.mark.parametrize(("n", "n_keys"), [size for size in SIZES if size[0] <= size[1]])


def counted(pattern, n, n_keys):
    """How often each pair is in the pattern: ``(N, L)``."""
    count = np.zeros((n, n_keys), int)
    np.add.at(count, part.pairs(pattern), 1)
    return count


def by_key_counted(one, n, n_keys):
    """The same, read the other way: tile of keys by tile of keys."""
    first_run, runs = part.by_key(one)
    count = np.zeros((n, n_keys), int)
    for t in range(len(one.key_tiles) - 1):
        columns = np.arange(one.key_tiles[t], one.key_tiles[t + 1])
        assert 0 < len(columns) <= part.TILE
        for start, stop in runs[first_run[t] : first_run[t + 1]]:
            rows = np.arange(start, stop)
            sees = (one.low[rows, None] <= columns) & (columns < one.high[rows, None])
            count[np.ix_(one.queries[rows], one.keys[columns])] += sees
    return count


def assert_pairs(pattern, allowed):
    """Each allowed pair once and no other, both ways."""
    n, n_keys = allowed.shape
    np.testing.assert_array_equal(counted(pattern, n, n_keys), allowed)
    np.testing.assert_array_equal(sum(by_key_counted(one, n, n_keys) for one in pattern), allowed)
    assert part.count_pairs(pattern) == allowed.sum()
    for one in pattern:
        assert one.tiles[-1] == n
        assert (np.diff(one.tiles) > 0).all()
        assert (np.diff(one.tiles) <= part.TILE).all()


def distances(n, n_keys, shift=0):
    return np.arange(n)[:, None] + shift - np.arange(n_keys)


@sizes
@pytest.mark.parametrize("dilation", [1, 2, 5, 64, 10**25])
@pytest.mark.parametrize("window", [0, 1, 8, 200, 10**25])
def test_windows(n, n_keys, window, dilation):
    """Also those that are far wider than the sequence, and steps that leave it at once."""
    away = distances(n, n_keys).astype(object)
    allowed = ((abs(away) <= window * dilation) & (away % dilation == 0)).astype(bool)
    assert_pairs((part.band(n, n_keys, -window, window, dilation=dilation),), allowed)


@causal_sizes
@pytest.mark.parametrize("dilation", [1, 3, 64])
def test_causal_windows_are_aligned_at_the_end(n, n_keys, dilation):
    away = distances(n, n_keys, n_keys - n)
    allowed = (away >= 0) & (away <= 4 * dilation) & (away % dilation == 0)
    assert_pairs((part.band(n, n_keys, -4, 0, dilation=dilation, shift=n_keys - n),), allowed)


@sizes
@pytest.mark.parametrize("dilation", [1, 3])
def test_a_window_and_a_few_columns_are_disjoint(n, n_keys, dilation):
    chosen = np.unique([0, n_keys // 2, n_keys - 1])
    away = distances(n, n_keys)
    allowed = ((abs(away) <= 4 * dilation) & (away % dilation == 0)) | np.isin(np.arange(n_keys), chosen)
    window = part.band(n, n_keys, -4, 4, dilation=dilation, without=chosen)
    assert_pairs((window, part.columns(n, n_keys, chosen)), allowed)
    blind = np.arange(0, n, 3)
    window = part.band(n, n_keys, -4, 4, dilation=dilation, without=chosen, blind=blind)
    allowed[blind] = False
    assert_pairs((window, part.columns(n, n_keys, chosen, blind)), allowed)
    assert_pairs((part.columns(n, n_keys, []),), np.zeros((n, n_keys), bool))
    assert_pairs((part.band(n, n_keys, -4, 4, without=np.arange(n_keys)),), np.zeros((n, n_keys), bool))


@causal_sizes
@pytest.mark.parametrize("stride", [1, 3, 16, 50])
def test_strides_and_summaries(n, n_keys, stride):
    """Those of Sparse Transformers: a window and the column before it; a block and summaries of the blocks before."""
    shift, away = n_keys - n, distances(n, n_keys, n_keys - n)
    strided = (away >= 0) & ((away < stride) | (away % stride == 0))
    column = part.band(n, n_keys, -n_keys, -1, dilation=stride, shift=shift)
    assert_pairs((part.band(n, n_keys, 1 - stride, 0, shift=shift), column), strided)

    position, keys = np.arange(n) + shift, np.arange(n_keys)
    start, summaries = position // stride * stride, keys[keys % stride == stride - 1]
    fixed = (away >= 0) & ((start[:, None] == keys // stride * stride) | (keys % stride == stride - 1))
    before = part.interval(np.zeros(n), np.searchsorted(summaries, start), n_keys, summaries)
    assert_pairs((part.interval(start, position + 1, n_keys), before), fixed)


@sizes
@pytest.mark.parametrize("block", [1, 3, 16, 32, 50])
def test_block_lists(n, n_keys, block):
    """In any order, with repetitions, with none; blocks longer and shorter than a tile; the last one ragged."""
    rng = np.random.default_rng(0)
    key_blocks = -(-n_keys // block)
    seen = [rng.integers(0, key_blocks, rng.integers(0, 5)) for _ in range(-(-n // block))]
    seen[-1] = np.arange(key_blocks)
    allowed = np.zeros((n, n_keys), bool)
    for own, listed in enumerate(seen):
        for other in listed:
            allowed[own * block : (own + 1) * block, other * block : (other + 1) * block] = True
    assert_pairs((part.blocks(n, n_keys, block, seen),), allowed)


def test_a_tile_whose_rows_look_to_distant_places():
    """As 3 queries at the end of a long sequence with a large dilation: runs apart, not one from first to last."""
    runs = part.band(3, 10_000, -2, 0, dilation=500, shift=9_997).runs
    assert (runs[:, 1] - runs[:, 0]).sum() == 3 * 3
    assert len(runs) == 3


@pytest.mark.parametrize("dilation", [1, 7])
def test_size_grows_with_the_length_alone(dilation):
    """Per query, a dozen numbers, however wide the window: no list of pairs."""
    for n in (1000, 10_000):
        for window in (10, 300):
            one = part.band(n, n, -window, window, dilation=dilation)
            assert sum(np.size(field) for field in one) < 5 * n
            first_run, runs = part.by_key(one)
            assert first_run.size + runs.size < n
