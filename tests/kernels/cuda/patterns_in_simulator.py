"""What contract tests do not reach of pattern softmax on a GPU; run by ``test_simulator.py``."""

import numpy as np
import pattern_page
import pytest
from in_simulator import assert_close, draw
from softmax_page import log_sum_exp

from linattn_ref.attention.sparse import part
from linattn_ref.kernels.cuda.loops.sparse import pattern_softmax
from linattn_ref.kernels.cuda.loops.sparse.pattern_tasks import (
    BEFORE,
    COLUMN,
    LAST_COLUMN,
    LAST_ROW,
    LAST_RUN,
    ROW,
    RUN,
    START,
    tasks_of_keys,
    tasks_of_queries,
)

# --- Tasks ----------------------------------------------------------------------------------------------------------


def some_parts(n, n_keys):
    """Every kind of part, and what may go wrong: empty rows, gaps, blocks that are no multiple of a tile."""
    rng = np.random.default_rng(n)
    for window, dilation in ((1, 1), (3, 7), (20, 2), (500, 1)):
        yield part.band(n, n_keys, -window, window, dilation=dilation)
        yield part.band(n, n_keys, -window, 0, dilation=dilation, shift=max(0, n_keys - n), without=[0])
    yield part.columns(n, n_keys, [])
    yield part.columns(n, n_keys, np.arange(0, n_keys, 3))
    low = rng.integers(0, n_keys, n)
    yield part.interval(low, low + rng.integers(-3, 30, n), n_keys)
    for block in (1, 16, 64, 96, 400):
        b, b_keys = -(-n // block), -(-n_keys // block)
        yield part.blocks(n, n_keys, block, [rng.integers(0, b_keys, rng.integers(0, 4)) for _ in range(b)])
        yield part.blocks(n, n_keys, block, [np.arange(max(0, i - 1), min(b_keys, i + 2)) for i in range(b)])
        yield part.blocks(n, n_keys, block, [np.arange(b_keys)] * b)


def pairs_of(part, tasks, by_query, size):
    """How often the tasks come to each pair that a row may see: ``(rows, columns)`` of the part."""
    count = np.zeros((part.queries.size, part.keys.size), np.intp)
    for task in tasks.tasks:
        assert 0 < task[LAST_ROW] - task[ROW] <= size
        runs, place = tasks.runs[task[RUN] : task[LAST_RUN]], np.arange(task[COLUMN], task[LAST_COLUMN])
        run = np.searchsorted(runs[:, BEFORE], place, side="right") - 1
        column = runs[run, START] + place - runs[run, BEFORE]
        assert (np.diff(column) > 0).all()
        here = np.arange(task[ROW], task[LAST_ROW])[:, None]
        r, c = (here, column) if by_query else (column, here)
        count[r, c] += (part.low[r] <= c) & (c < part.high[r])
    return count


@pytest.mark.parametrize("size", [6, 64])
@pytest.mark.parametrize("sizes", [(1, 1), (70, 70), (129, 257), (40, 7)], ids=str)
def test_tasks_come_to_each_pair_once(sizes, size):
    for one in some_parts(*sizes):
        expected = np.zeros(sizes, np.intp)
        for queries, keys, seen in part.tiles_of((one,)):
            expected[np.ix_(queries, keys)] += seen
        expected = expected[np.ix_(one.queries, one.keys)]
        np.testing.assert_array_equal(pairs_of(one, tasks_of_queries(one, size), True, size), expected)
        np.testing.assert_array_equal(pairs_of(one, tasks_of_keys(one, size), False, size), expected)


def test_tiles_that_see_the_same_are_put_together():
    """A window of 512 and blocks of 64 fill whole tiles, with no key twice and none too many."""
    window = part.band(4096, 4096, -256, 256)
    blocks = part.blocks(4096, 4096, 64, [np.arange(max(0, b - 1), min(64, b + 2)) for b in range(64)])
    for one, most in ((window, 64 + 512), (blocks, 192)):
        for tasks in (tasks_of_queries(one, 64), tasks_of_keys(one, 64)):
            assert len(tasks.tasks) == 64
            columns = tasks.tasks[:, LAST_COLUMN] - tasks.tasks[:, COLUMN]
            assert columns[0] == most
            assert (np.diff(columns) <= 0).all(), "the most work first"


# --- Kernels --------------------------------------------------------------------------------------------------------


def on_both(pattern, sizes, masked, dtype):
    """Outputs and gradients of the page and of the kernels; masked keys hold what is no number at all."""
    q, k, v, d_out, key_mask = draw(*sizes, masked, dtype)
    results = []
    for loop, odd in ((pattern_page, (0, 0)), (pattern_softmax, (np.nan, np.inf))):
        if masked:
            k[~key_mask], v[~key_mask] = odd
        out, *rows = loop.forward(q, k, v, key_mask, pattern, 0.7)
        gradients = loop.backward(d_out, q, k, v, out, *rows, key_mask, pattern, 0.7)
        results.append((out, log_sum_exp(*rows), *gradients))
    return results


def near_and_far(n):
    """A window and two columns, in each other's way if they were not disjoint."""
    return part.band(n, n, -3, 3, without=[0, 9]), part.columns(n, n, [0, 9])


PATTERNS = {
    "a window and long columns": (near_and_far(40), (), 40, 40, 2, 3),
    "blocks, one that sees nothing": ((part.blocks(9, 14, 2, [[0], [1, 3, 5], [], [0, 6], [5, 6]]),), (), 9, 14, 2, 8),
    "wider than a tile": ((part.band(5, 8, 0, 2, dilation=2),), (1,), 5, 8, 7, 13),
    "no part at all": ((), (2,), 3, 4, 2, 2),
    "parts without pairs": ((part.columns(3, 4, []), part.band(3, 4, 9, 9)), (2,), 3, 4, 2, 2),
}


@pytest.mark.parametrize(("masked", "dtype"), [(False, np.float32), (True, np.float64)])
@pytest.mark.parametrize("name", PATTERNS)
def test_kernels_are_the_page(name, masked, dtype):
    pattern, *sizes = PATTERNS[name]
    for want, got in zip(*on_both(pattern, sizes, masked, dtype), strict=True):
        assert_close(got, want)


def test_what_is_masked_has_no_gradient():
    *_, d_k, d_v = on_both(near_and_far(12), ((2,), 12, 12, 3, 2), True, np.float64)[1]
    key_mask = draw((2,), 12, 12, 3, 2, True, np.float64)[-1]
    assert (d_k[~key_mask] == 0).all()
    assert (d_v[~key_mask] == 0).all()


def test_later_keys_move_no_bit_of_earlier_outputs():
    q, k, v, *_ = draw((1,), 15, 15, 3, 4, False, np.float32)
    pattern = part.band(15, 15, -2, 0), part.band(15, 15, -9, -1, dilation=3)
    out, *_ = pattern_softmax.forward(q, k, v, None, pattern, 1.0)
    k[:, 8:], v[:, 8:] = 30, -1e4
    moved, *_ = pattern_softmax.forward(q, k, v, None, pattern, 1.0)
    np.testing.assert_array_equal(moved[:, :8], out[:, :8])
    assert (moved[:, 8:] != out[:, 8:]).any()
