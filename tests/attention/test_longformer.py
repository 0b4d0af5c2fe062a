"""What is special to Longformer: two parts in one softmax, global rows with projections of their own."""

import tracemalloc

import numpy as np
import pytest

from linattn_ref.attention import longformer, pattern_softmax, patterns, softmax
from linattn_ref.attention.sparse import part
from linattn_ref.kernels import jit, reference

ROUNDING = 1e-13  # numbers up to 10, some hundred roundings


def draw(n, seed=0, leading=(2,), width=4):
    """``q, k, v`` and the three global ones, and ``d_out``."""
    return np.random.default_rng(seed).standard_normal((7, *leading, n, width))


def run(arrays, d_out, **options):
    out, saved = longformer.forward(*arrays, **options)
    return out, longformer.backward(d_out, saved)


@pytest.mark.parametrize("n", [1, 2, 9, 31, 32, 33, 70])
@pytest.mark.parametrize("tokens", [[], [0], [-1, 0, 0], [0, -1, -1]])
@pytest.mark.parametrize(("window", "dilation"), [(1, 1), (4, 1), (2, 3), (99, 1)])
def test_parts_are_the_pattern(n, tokens, window, dilation):
    """Each pair once, and none of a global query."""
    options = {"window": window, "global_tokens": tokens, "dilation": dilation}
    times = np.zeros((n, n), int)
    np.add.at(times, part.pairs(longformer.parts_of(n, **options)), 1)
    expected = longformer.pattern(n, **options)
    expected[tokens] = False
    np.testing.assert_array_equal(times, expected)


def test_pairs_are_counted():
    n, window, tokens = 500, 7, [0, 100, 499]
    counted = part.count_pairs(longformer.parts_of(n, window=window, global_tokens=tokens))
    assert n * len(tokens) < counted <= n * (2 * window + 1 + len(tokens))


def test_a_window_over_everything_is_softmax_attention():
    *arrays, d_out = draw(12)
    out, gradients = run(arrays, d_out, window=11, global_tokens=[])
    expected, saved = softmax.forward(*arrays[:3])
    np.testing.assert_allclose(out, expected, atol=ROUNDING)
    for ours, theirs in zip(gradients, softmax.backward(d_out, saved), strict=False):
        np.testing.assert_allclose(ours, theirs, atol=ROUNDING)
    assert not any(x.any() for x in gradients[3:])


def test_with_one_set_of_projections_it_is_the_pattern():
    """Global rows then are rows of the same matrix."""
    *arrays, _ = draw(40)
    q, k, v = arrays[:3]
    options = {"window": 3, "global_tokens": [5, 30]}
    out, _ = longformer.forward(q, k, v, q, k, v, **options)
    np.testing.assert_allclose(out, patterns.matrix(q, k, longformer.pattern(40, **options)) @ v, atol=ROUNDING)


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
def test_all_tokens_global(kernels):
    """So that the window's part is empty."""
    *arrays, d_out = draw(10)
    out, gradients = run(arrays, d_out, window=1, global_tokens=range(10), kernels=kernels)
    expected, saved = softmax.forward(*arrays[3:])
    np.testing.assert_allclose(out, expected, atol=ROUNDING)
    assert not any(x.any() for x in gradients[:3])
    for ours, theirs in zip(gradients[3:], softmax.backward(d_out, saved), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=ROUNDING)


@pytest.mark.parametrize(
    "same",
    [[3, 0, 19], (0, 3, 3, 19, 0), [-20, -1, -17], np.array([19, 3, 0], np.int8), np.array([0, 3, 19], np.uint64)],
)
def test_ways_to_name_the_same_tokens(same):
    *arrays, d_out = draw(20)
    expected = run(arrays, d_out, window=2, global_tokens=[0, 3, 19])
    got = run(arrays, d_out, window=2, global_tokens=same)
    for x, y in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("empty", [[], (), np.array([], int), range(0)])
def test_no_global_tokens(empty):
    *arrays, d_out = draw(20)
    q, k, v = arrays[:3]
    out, gradients = run(arrays, d_out, window=2, global_tokens=empty)
    np.testing.assert_allclose(out, patterns.matrix(q, k, patterns.local(20, window=2)) @ v, atol=ROUNDING)
    assert not any(x.any() for x in gradients[3:])


# --- Who uses what --------------------------------------------------------------------------------------------------


def test_rows_that_are_not_used():
    """Of ``q`` the global rows, of ``q_global`` the others: any content, gradient exactly 0."""
    *arrays, d_out = draw(30)
    tokens, ordinary = [4, 20], np.setdiff1d(np.arange(30), [4, 20])
    options = {"window": 3, "global_tokens": tokens}
    before = run(arrays, d_out, **options)
    changed = [x.copy() for x in arrays]
    for content in (1e3, np.nan):
        changed[0][:, tokens] = changed[3][:, ordinary] = content
        after = run(changed, d_out, **options)
        np.testing.assert_array_equal(after[0], before[0])
        for new, old in zip(after[1], before[1], strict=True):
            np.testing.assert_array_equal(new, old)
    assert not before[1].q[:, tokens].any()
    assert before[1].q[:, ordinary].any(axis=-1).all()
    assert not before[1].q_global[:, ordinary].any()
    assert before[1].q_global[:, tokens].any(axis=-1).all()


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize("name", ["q_global", "k_global", "v_global", "v"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_nan_stays_with_its_projections(name, kernels):
    """One of a global array reaches no gradient of the others, and a value's no query that does not read it."""
    *arrays, d_out = draw(30)
    options = {"window": 3, "global_tokens": [4, 20], "kernels": kernels}
    _, before = run(arrays, d_out, **options)
    changed = dict(zip(before._fields, (x.copy() for x in arrays), strict=True))
    changed[name][:, 5 if name == "v" else 4] = np.nan
    out, after = run(changed.values(), d_out, **options)
    assert np.isnan(out).any()
    for each in ("q_global", "k_global", "v_global") if name == "v" else "qkv":
        np.testing.assert_array_equal(getattr(after, each), getattr(before, each))
    assert not after.q[:, [4, 20]].any()


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_nan_goes_no_further_by_the_window_of_a_global_row(name, kernels):
    """Tokens 1 and 2 read that of token 2 and see 0 to 3; only the global 3, which reads another row, is near 4."""
    *arrays, d_out = draw(7)
    options = {"window": 1, "global_tokens": [3], "kernels": kernels}
    out, before = run(arrays, d_out, **options)
    arrays["qkv".index(name)][:, 2] = np.nan
    spoiled, after = run(arrays, d_out, **options)
    for x, y, reached in ((spoiled, out, [1, 2]), (after.q, before.q, [1, 2]), (after.k, before.k, [0, 1, 2, 3])):
        assert np.isnan(x[:, reached]).any(axis=-1).all()
        np.testing.assert_allclose(np.delete(x, reached, axis=1), np.delete(y, reached, axis=1), atol=ROUNDING)
    np.testing.assert_allclose(after.v[:, 4:], before.v[:, 4:], atol=ROUNDING)


@pytest.mark.parametrize("size", [1e2, 1e5])
def test_a_global_row_cannot_spoil_the_others(size):
    """Its scores by the ordinary projections are far from its log-sum-exp by its own: nothing overflows."""
    *arrays, d_out = (x.astype(np.float32) for x in draw(30))
    arrays[0][:, 4] *= np.float32(size)
    out, gradients = run(arrays, d_out, window=3, global_tokens=[4])
    assert np.isfinite(out).all()
    assert all(np.isfinite(x).all() for x in gradients)


def test_two_parts_are_joined_by_their_log_sum_exp():
    """Equation (4) of the docstring."""
    q, k, v = draw(25)[:3]
    near, columns = longformer.parts_of(25, window=3, global_tokens=[0, 12])
    (o_w, s_w), (o_g, s_g), (o, s) = (
        (out, saved.lse[..., 0])
        for out, saved in (pattern_softmax.forward(q, k, v, each) for each in ((near,), (columns,), (near, columns)))
    )
    together = np.logaddexp(s_w, s_g)
    np.testing.assert_allclose(s, together, atol=ROUNDING)
    weights = np.exp(s_w - together)[..., None], np.exp(s_g - together)[..., None]
    np.testing.assert_allclose(o, weights[0] * o_w + weights[1] * o_g, atol=ROUNDING)


def test_no_square_array_is_made():
    n = 2048
    *arrays, d_out = draw(n, leading=())
    tracemalloc.start()
    try:
        run(arrays, d_out, window=8, global_tokens=[0, 9])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < n * n  # bytes: less than a boolean matrix, an eighth of one of scores


@pytest.mark.parametrize("name", ["q_global", "k_global", "v_global"])
def test_global_arrays_of_another_shape(name):
    names = ("q", "k", "v", "q_global", "k_global", "v_global")
    arrays = dict(zip(names, draw(9)[:6], strict=True))
    arrays[name] = arrays[name][..., :-1]
    with pytest.raises(
        ValueError, match=rf"^{name}: expected shape \(\.\.\., N, [DM]\) = \(2, 9, 4\), got \(2, 9, 3\)"
    ):
        longformer.forward(**arrays, window=1, global_tokens=[0])


def test_as_many_keys_as_queries():
    q, k, v, *rest, _ = draw(9)
    with pytest.raises(ValueError, match=r"^k: expected shape \(\.\.\., N, D\) = \(2, 8, 4\), got \(2, 9, 4\)"):
        longformer.forward(q[:, 1:], k, v, *rest, window=1, global_tokens=[0])


def test_an_index_beyond_64_bits_is_out_of_range():
    x = np.ones((5, 3))
    with pytest.raises(ValueError, match=r"^global_tokens: expected indices from -5 to 4, got "):
        longformer.forward(x, x, x, x, x, x, window=1, global_tokens=np.array([2**64 - 1], np.uint64))
