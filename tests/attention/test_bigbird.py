"""What is special to BigBird: its blocks, and how the random ones are drawn."""

import tracemalloc

import numpy as np
import pytest

from linattn_ref.attention import bigbird, softmax
from linattn_ref.attention.sparse import part

ROUNDING = 1e-13  # numbers up to 10, some hundred roundings
COVERS = [(3, (0, -1)), (1, ()), (5, (2, 2)), (1, (-1,))]


# --- Drawing --------------------------------------------------------------------------------------------------------


def uncovered(n_blocks, b, window_blocks, global_blocks):
    """The blocks that block ``b`` does not see without random ones."""
    whole = {index % n_blocks for index in global_blocks}
    return [c for c in range(n_blocks) if abs(b - c) > window_blocks // 2 and c not in whole]


@pytest.mark.parametrize(("window_blocks", "global_blocks"), COVERS)
def test_drawn_blocks_are_new_and_different(window_blocks, global_blocks):
    drawn = bigbird.draw_random_blocks(20, 3, np.random.default_rng(0), window_blocks, global_blocks)
    assert drawn.shape == (20, 3)
    whole = {index % 20 for index in global_blocks}
    for b, row in enumerate(drawn.tolist()):
        if b in whole:
            assert row == [b] * 3  # ignored
        else:
            assert len(set(row)) == 3
            assert set(row) <= set(uncovered(20, b, window_blocks, global_blocks))


def test_every_uncovered_block_is_drawn_as_often():
    rng, n_blocks, draws = np.random.default_rng(1), 12, 500
    counts = np.zeros((n_blocks, n_blocks))
    for _ in range(draws):
        for b, row in enumerate(bigbird.draw_random_blocks(n_blocks, 2, rng)):
            counts[b, row] += 1
    for b in range(1, n_blocks - 1):
        free = uncovered(n_blocks, b, 3, (0, -1))
        share = counts[b, free] / draws
        np.testing.assert_allclose(share, 2 / len(free), atol=5 * (0.25 / draws) ** 0.5)  # 5 standard deviations
        assert counts[b].sum() == 2 * draws


def test_the_same_seed_draws_the_same():
    first, second, other = (bigbird.draw_random_blocks(30, 3, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_as_many_as_there_are_and_no_more():
    rng = np.random.default_rng(0)
    # Of 7 blocks, block 3 sees 2, 3, 4, 0 and 6; blocks 2 and 4 see four others, and block 1 sees 1, 2, 0, 6.
    drawn = bigbird.draw_random_blocks(7, 2, rng)
    assert drawn[3].tolist() == [1, 5]
    with pytest.raises(ValueError, match=r"^r: expected at most 2, the blocks that block 2 does not see yet, got 3"):
        bigbird.draw_random_blocks(7, 3, rng)
    with pytest.raises(ValueError, match=r"^r: expected at most 0, the blocks that block 1 does not see yet, got 1"):
        bigbird.draw_random_blocks(3, 1, rng)


@pytest.mark.parametrize("n_blocks", [1, 2])
def test_few_blocks_are_all_global(n_blocks):
    """So that there is nothing to draw, and any ``r`` will do."""
    drawn = bigbird.draw_random_blocks(n_blocks, 3, np.random.default_rng(0))
    assert drawn.shape == (n_blocks, 3)
    q, k, v = np.random.default_rng(1).standard_normal((3, 5, 4))
    block = 5 if n_blocks == 1 else 3
    out, _ = bigbird.forward(q, k, v, block=block, random_blocks=drawn)
    np.testing.assert_allclose(out, softmax.forward(q, k, v)[0], atol=ROUNDING)


def test_none_to_draw():
    assert bigbird.draw_random_blocks(5, 0, np.random.default_rng(0)).shape == (5, 0)


@pytest.mark.parametrize("r", [-1, 1.0, True, None])
def test_r_is_a_count(r):
    with pytest.raises(ValueError, match=r"^r: expected an integer of at least 0, got "):
        bigbird.draw_random_blocks(9, r, np.random.default_rng(0))


def test_other_arguments_of_drawing():
    with pytest.raises(TypeError, match=r"^rng: expected a numpy.random.Generator, got int"):
        bigbird.draw_random_blocks(9, 1, 0)
    with pytest.raises(ValueError, match=r"^n_blocks: "):
        bigbird.draw_random_blocks(0, 1, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"^window_blocks: "):
        bigbird.draw_random_blocks(9, 1, np.random.default_rng(0), 2)
    with pytest.raises(ValueError, match=r"^global_blocks: expected indices from -9 to 8, got 9"):
        bigbird.draw_random_blocks(9, 1, np.random.default_rng(0), 3, (9,))


# --- The mechanism --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 4, 5, 33, 64, 70])
@pytest.mark.parametrize("block", [1, 4, 40])
@pytest.mark.parametrize(("window_blocks", "global_blocks"), COVERS)
def test_parts_are_the_pattern(n, block, window_blocks, global_blocks):
    """Each pair once, also where a block is drawn twice, or in the window, or global."""
    n_blocks = -(-n // block)
    global_blocks = tuple(b for b in global_blocks if -n_blocks <= b < n_blocks)
    drawn = np.random.default_rng(0).integers(0, n_blocks, (n_blocks, 3))
    options = {"block": block, "window_blocks": window_blocks, "global_blocks": global_blocks}
    for random_blocks in (None, drawn):
        times = np.zeros((n, n), int)
        np.add.at(times, part.pairs(bigbird.parts_of(n, **options, random_blocks=random_blocks)), 1)
        np.testing.assert_array_equal(times, bigbird.pattern(n, **options, random_blocks=random_blocks))


def test_pairs_are_those_of_the_formula():
    """``b (w + g + r)`` keys for an ordinary query far from the edges, ``N`` for a global one."""
    n, block = 640, 10
    drawn = bigbird.draw_random_blocks(64, 3, np.random.default_rng(0))
    per_query = bigbird.pattern(n, block=block, random_blocks=drawn).sum(axis=1)
    assert (per_query[:block] == n).all()
    assert (per_query[2 * block : -2 * block] == block * (3 + 2 + 3)).all()
    assert part.count_pairs(bigbird.parts_of(n, block=block, random_blocks=drawn)) == per_query.sum()


def test_rows_of_global_blocks_may_hold_anything():
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 25, 4))
    drawn = bigbird.draw_random_blocks(5, 1, np.random.default_rng(0), 1)
    expected, _ = bigbird.forward(q, k, v, block=5, window_blocks=1, random_blocks=drawn)
    drawn[0], drawn[-1] = 1000, -1000
    out, saved = bigbird.forward(q, k, v, block=5, window_blocks=1, random_blocks=drawn)
    np.testing.assert_array_equal(out, expected)
    bigbird.backward(np.ones_like(out), saved)


def test_lists_will_do():
    q, k, v = np.random.default_rng(0).standard_normal((3, 12, 4))
    options = {"global_blocks": [0], "random_blocks": [[2], [3], [-4], [1]]}
    out, _ = bigbird.forward(q, k, v, block=3, **options)
    arrays = {name: np.array(x) for name, x in options.items()}
    np.testing.assert_array_equal(out, bigbird.forward(q, k, v, block=3, **arrays)[0])


def test_no_square_array_is_made():
    n, block = 2048, 16
    q, k, v, d_out = np.random.default_rng(0).standard_normal((4, n, 4))
    drawn = bigbird.draw_random_blocks(n // block, 3, np.random.default_rng(0))
    tracemalloc.start()
    try:
        _, saved = bigbird.forward(q, k, v, block=block, random_blocks=drawn)
        bigbird.backward(d_out, saved)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < n * n  # bytes: less than a boolean matrix


def test_as_many_keys_as_queries():
    q, k, v = np.random.default_rng(0).standard_normal((3, 9, 4))
    with pytest.raises(ValueError, match=r"^k: expected shape \(\.\.\., N, D\) = \(8, 4\), got \(9, 4\)"):
        bigbird.forward(q[1:], k, v, block=3)
