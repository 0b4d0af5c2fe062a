"""Long-short attention beyond the contract: what it sees, what the mixtures are, its cost, its matrix."""

import sys
from functools import partial

import numpy as np
import pytest

from linattn_ref.attention import long_short, softmax
from linattn_ref.attention.parts import dynamic_projection
from linattn_ref.experiments.measuring.counting import count
from linattn_ref.gradcheck import check_elementwise
from linattn_ref.nested import leaves
from linattn_ref.nn import layer_norm

same = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)  # some hundred roundings of numbers of size 1
CAUSAL = pytest.mark.parametrize("causal", [False, True])


def draw(n, d=4, m=3, r=2, leading=(), seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((n, d), (n, d), (n, m))
    return *(rng.standard_normal((*leading, *shape)) for shape in shapes), rng.standard_normal((d, r))


def draw_norm(seed, d=4, m=3):
    rng = np.random.default_rng(seed)
    return tuple(tuple(rng.standard_normal(width) for _ in range(2)) for width in (d, m))


def normed(x, pair):
    return layer_norm.forward(x, layer_norm.Params(*pair))[0]


# --- Short term -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5, 12, 13])
@pytest.mark.parametrize("window", [1, 2, 5, 6, 20])
@CAUSAL
def test_pattern_by_its_definition(n, window, causal):
    expected = np.zeros((n, n), bool)
    for i in range(n):
        start = i // window * window
        for j in range(n):
            if causal:
                expected[i, j] = start - window <= j <= i
            else:
                expected[i, j] = start - window // 2 <= j < start + window + window // 2
    np.testing.assert_array_equal(long_short.pattern(n, window=window, causal=causal), expected)


def test_far_keys_count_only_through_mixtures():
    """Without the mixtures (no keys behind the first segment) it is softmax under the pattern; with them it is not."""
    q, k, v, w_p = draw(12)
    out, saved = long_short.forward(q, k, v, w_p, None, None, window=6, causal=True)
    same(out[:6], softmax.forward(q[:6], k[:6], v[:6], causal=True)[0])
    scores = np.where(long_short.pattern(12, window=6, causal=True), q @ k.T / 2, -np.inf)
    assert saved.mixed.k.shape == (2, 4)
    scores = np.concatenate([scores, np.where(np.arange(12)[:, None] >= 6, q @ saved.mixed.k.T / 2, -np.inf)], axis=1)
    weights = np.exp(scores)
    same(out, weights / weights.sum(axis=1, keepdims=True) @ np.concatenate([v, saved.mixed.v]))


# --- Mixtures -------------------------------------------------------------------------------------------------------


def test_mixtures_are_softmax_attention_of_learned_queries():
    q, k, v, w_p = draw(20, leading=(2,))
    _, saved = long_short.forward(q, k, v, w_p, None, None, window=4)
    columns = np.broadcast_to(w_p.T, (2, 2, 4))
    same(saved.mixed.k, softmax.forward(columns, k, k, scale=1.0)[0])
    same(saved.mixed.v, softmax.forward(columns, k, v, scale=1.0)[0])
    same(saved.mixing.p.sum(axis=-2), 1)


def test_mixtures_follow_content_that_moves():
    """In any order the same keys and values have the same mixtures, unlike with Linformer's columns."""
    q, k, v, w_p = draw(20)
    order = np.random.default_rng(1).permutation(20)
    _, saved = long_short.forward(q, k, v, w_p, None, None, window=4)
    _, moved = long_short.forward(q, k[order], v[order], w_p, None, None, window=4)
    same(moved.mixed.k, saved.mixed.k)
    same(moved.mixed.v, saved.mixed.v)
    np.testing.assert_allclose(moved.mixing.p[0], saved.mixing.p[0][order], atol=1e-14)


def test_no_weight_can_move_where_one_key_has_all():
    """Exactly none, however large the gradients of the weights; and of the little that others have, nothing is lost."""
    k, v, w_p = np.array([[0.0], [1e200]]), np.array([[1.0], [2.0]]), np.ones((1, 1))
    _, saved = dynamic_projection.forward(k, v, w_p, window=2)
    grads = dynamic_projection.backward(dynamic_projection.Mixtures(k[1:], np.array([[np.nan]])), saved)
    np.testing.assert_array_equal(grads.k, k)  # dK- itself
    np.testing.assert_array_equal(grads.v, [[0], [np.nan]])
    np.testing.assert_array_equal(grads.w_p, [[0]])
    k[1], v[0] = 40, 1e20
    _, saved = dynamic_projection.forward(k, v, w_p, window=2)
    assert saved.p[0, 1] == 1
    grads = dynamic_projection.backward(dynamic_projection.Mixtures(np.zeros((1, 1)), np.ones((1, 1))), saved)
    np.testing.assert_allclose(grads.w_p, [[-40 * 1e20 * np.exp(-40)]], rtol=1e-13)
    assert grads.k[0] == -grads.k[1] != 0


def test_with_projection_zero_a_mixture_is_the_mean():
    q, k, v, w_p = draw(20)
    _, saved = long_short.forward(q, k, v, 0 * w_p, None, None, window=6)
    same(saved.mixed.k, np.tile(k.mean(axis=0), (2, 1)))
    _, saved = long_short.forward(q, k, v, 0 * w_p, None, None, window=6, causal=True)
    same(saved.mixed.v, np.repeat([v[start : start + 6].mean(axis=0) for start in (0, 6, 12)], 2, axis=0))


def test_more_mixtures_than_keys():
    """``W_p`` has nothing to do with the length: one for long texts serves a text of one token."""
    q, k, v, w_p = draw(1, r=9)
    norm = draw_norm(0)
    out, saved = long_short.forward(q, k, v, w_p, norm, norm, window=4)
    same(out, normed(v, norm[1]))  # ten times the same key and value
    assert saved.mixed.k.shape == (9, 4)


def test_a_segment_without_keys_has_no_mixtures():
    """Nor has a mixture of nothing, a key of 0, any weight."""
    q, k, _, w_p = draw(12)
    key_mask = np.ones(12, bool)
    key_mask[4:8] = False
    options = {"window": 4, "causal": True, "key_mask": key_mask}
    weights = long_short.matrix(q, k, w_p, None, None, **options)
    same(weights.sum(axis=1), 1)  # and no share of it is lost
    assert not weights[:, 4:8].any()
    assert (weights[8:, :4] > 0).all()
    everything = long_short.forward(q, k, np.ones((12, 1)), w_p, None, None, **options)[0]
    same(everything, 1)


# --- Dual layer norm ------------------------------------------------------------------------------------------------


def test_norms_make_lengths_irrelevant():
    """Mixtures are averages, shorter than keys: with a norm each, what is multiplied by 100 has no more weight."""
    q, k, v, w_p = draw(20)
    norm = (np.ones(4), np.zeros(4)), (np.ones(3), np.zeros(3))
    short, _ = long_short.forward(q, 100 * k, v, w_p / 100, norm, norm, window=4)
    long, _ = long_short.forward(q, 1e4 * k, v, w_p / 1e4, norm, norm, window=4)
    np.testing.assert_allclose(long, short, atol=1e-6)  # but for the 1e-5 under the root, beside variances of 100
    without, _ = long_short.forward(q, 100 * k, v, w_p / 100, None, None, window=4)
    assert abs(without - long_short.forward(q, k, v, w_p, None, None, window=4)[0]).max() > 0.1


@CAUSAL
@pytest.mark.parametrize("which", ["norm_local", "norm_global"])
def test_gradients_with_one_norm_only(which, causal):
    q, k, v, w_p = draw(9, leading=(2,))
    norms = {"norm_local": None, "norm_global": None, which: draw_norm(3)}
    forward = partial(long_short.forward, window=4, causal=causal)
    report = check_elementwise(
        forward, long_short.backward, q, k, v, w_p, *norms.values(), rng=np.random.default_rng(0)
    )
    report.assert_ok()


def test_a_projection_for_each_head_of_a_batch():
    """``(H, D, R)`` beside keys ``(B, H, L, D)``; its gradient is the sum over the batch."""
    q, k, v, _ = draw(9, leading=(2, 3))
    w_p = np.random.default_rng(1).standard_normal((3, 4, 2))
    out, saved = long_short.forward(q, k, v, w_p, None, None, window=4)
    grads = long_short.backward(np.ones_like(out), saved)
    assert grads.w_p.shape == w_p.shape
    total = np.zeros_like(w_p)
    for b in range(2):
        for h in range(3):
            one, saved = long_short.forward(q[b, h], k[b, h], v[b, h], w_p[h], None, None, window=4)
            same(out[b, h], one)
            total[h] += long_short.backward(np.ones_like(one), saved).w_p
    same(grads.w_p, total)


# --- The matrix -----------------------------------------------------------------------------------------------------


@CAUSAL
def test_output_is_matrix_times_values(causal):
    q, k, v, w_p = draw(23, leading=(2,))
    key_mask = np.random.default_rng(1).random((2, 23)) < 0.7
    key_mask[:, 0] = True  # so that every causal query sees something
    options = {"window": 5, "causal": causal, "key_mask": key_mask}
    p = long_short.matrix(q, k, w_p, None, None, **options)
    same(p.sum(axis=-1), 1)
    assert not p[~np.broadcast_to(key_mask[:, None, :], p.shape)].any()
    assert not causal or not np.triu(p, 1).any()
    out, _ = long_short.forward(q, k, v, w_p, None, None, **options)
    same(p @ np.where(key_mask[..., None], v, 0), out)


def test_matrix_uses_the_norms_of_keys():
    q, k, v, w_p = draw(8)
    norm_local, norm_global = draw_norm(1), draw_norm(2)
    _, saved = long_short.forward(q, k, v, w_p, norm_local, norm_global, window=8)  # one segment: all keys are near
    keys = np.concatenate([normed(saved.mixed.k, norm_global[0]), normed(k, norm_local[0])])
    weights = softmax.matrix(q, keys)
    expected = weights[:, :2] @ saved.mixing.p[0].T + weights[:, 2:]
    same(long_short.matrix(q, k, w_p, norm_local, norm_global, window=8), expected)


# --- Cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "w", "r", "d", "m"), [(64, 8, 3, 4, 6), (96, 16, 2, 5, 3)])
def test_multiply_adds_are_the_formulas(n, w, r, d, m):
    """Of the forward pass: ``O(N (w + R))``, and causal ``R`` for every segment before."""
    q, k, v, w_p = draw(n, d, m, r)
    both = d + m
    pairs = long_short.pattern(n, window=w).sum() + n * r
    projection = n * r * (d + both)  # K W_p, P^T K and P^T V
    counted = count(partial(long_short.forward, window=w), q, k, v, w_p, None, None).multiply_adds
    assert counted == projection + pairs * both
    segments = n // w
    pairs = w * (w + (segments - 1) * 2 * w) + w * r * segments * (segments - 1) // 2  # a segment's own as a square
    projection = (n - w) * r * (d + both)
    counted = count(partial(long_short.forward, window=w, causal=True), q, k, v, w_p, None, None).multiply_adds
    assert counted == projection + pairs * both


# --- Arguments ------------------------------------------------------------------------------------------------------


def test_fewer_queries_than_keys_need_causal():
    """Where a query is not at a place, nothing is near it; causal queries are at the last places."""
    q, k, v, w_p = draw(11)
    with pytest.raises(ValueError, match=r"^q: the keys near a query need N = L .*got N = 4 and L = 11"):
        long_short.forward(q[:4], k, v, w_p, None, None, window=3)
    whole, _ = long_short.forward(q, k, v, w_p, None, None, window=3, causal=True)
    for n in range(1, 12):
        same(long_short.forward(q[-n:], k, v, w_p, None, None, window=3, causal=True)[0], whole[-n:])


@CAUSAL
def test_any_window_beyond_the_length_is_the_length(causal):
    arguments = *draw(6), None, None
    out, saved = long_short.forward(*arguments, window=sys.maxsize, causal=causal)
    expected, of_expected = long_short.forward(*arguments, window=6, causal=causal)
    np.testing.assert_array_equal(out, expected)
    for ours, theirs in zip(long_short.backward(out, saved), long_short.backward(out, of_expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_norms_may_be_lists():
    q, k, v, w_p = draw(6, leading=(2,))
    norm = draw_norm(0)
    out, saved = long_short.forward(q, k, v, w_p, [list(pair) for pair in norm], norm, window=3)
    same(out, long_short.forward(q, k, v, w_p, norm, norm, window=3)[0])
    assert [len(pair) for pair in long_short.backward(out, saved).norm_local] == [2, 2]


def test_what_is_refused():
    q, k, v, w_p = draw(6, leading=(2,))
    norm = draw_norm(0)
    (gain, bias), of_values = norm
    cases = (
        (
            ValueError,
            r"^w_p: expected shape \(\.\.\., D, R\) = \(2, 4, 2\), got \(3, 4, 2\)",
            np.stack([w_p] * 3),
            norm,
        ),
        (TypeError, r"^w_p: expected float64", w_p.astype(np.float32), norm),
        (TypeError, r"^norm_local, keys: bias: expected float64", w_p, ((gain, bias.astype(np.float32)), of_values)),
        (TypeError, r"^norm_local, keys: bias: expected a numpy\.ndarray", w_p, ((gain, [1.0] * 4), of_values)),
        (ValueError, r"^norm_local, values: gain: expected shape \(W,\) = \(3,\)", w_p, ((gain, bias), (gain, bias))),
        (TypeError, r"^norm_local: expected None or \(\(gain", w_p, (gain, bias)),
        (TypeError, r"^norm_local: expected None or \(\(gain", w_p, True),
    )
    for error, message, wrong_w_p, wrong_norm in cases:
        with pytest.raises(error, match=message):
            long_short.forward(q, k, v, wrong_w_p, wrong_norm, None, window=3)


def test_one_segment_alone_is_not_mixed():
    k, v, w_p = np.ones((2, 4, 3)), np.ones((2, 4, 5)), np.ones((3, 7))
    mixed, saved = dynamic_projection.forward(k, v, w_p, window=4, causal=True)
    assert [x.shape for x in mixed] == [(2, 0, 3), (2, 0, 5)]
    assert not any(x.any() for x in dynamic_projection.backward(mixed, saved))


def test_gradients_of_norms_have_the_structure_of_the_norms():
    """An optimiser goes over both trees by the names of their leaves."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 6, 4))
    norms = [tuple((np.ones(4), np.zeros(4)) for _ in range(2)) for _ in range(2)]
    _, saved = long_short.forward(q, k, v, rng.standard_normal((4, 2)), *norms, window=2)
    grads = long_short.backward(np.ones_like(v), saved)
    found = [name for name, _ in leaves((grads.norm_local, grads.norm_global))]
    assert found == [name for name, _ in leaves(tuple(norms))]
