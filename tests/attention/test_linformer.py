"""What is special to Linformer: sharing, a different R by head, pooling, convolution, and why it is not causal."""

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from linattn_ref import gradcheck
from linattn_ref.attention import linformer, softmax
from linattn_ref.attention.linformer_projections import SHARING, parameter_count
from linattn_ref.attention.parts import max_pool, strided_convolution
from linattn_ref.attention.parts.segment_means import segment_bounds
from linattn_ref.kernels import jit, reference

# Sums of some ten products of numbers of size 1 in float64, in another order: some roundings of 2.2e-16 each.
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-13)


def draw(rng, *shapes):
    return tuple(rng.standard_normal(shape) for shape in shapes)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- Sharing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sharing", "matrices"), [("none", 2 * 3 * 4), ("headwise", 2 * 3), ("key_value", 3), ("layerwise", 1)]
)
def test_parameter_counts(rng, sharing, matrices):
    projections = linformer.draw_projections(5, 10, rng, layers=3, heads=4, sharing=sharing)
    assert len(projections) == 3
    assert parameter_count(projections) == matrices * 5 * 10
    leading = (4,) if sharing == "none" else ()
    assert all(p.e.shape == p.f.shape == (*leading, 5, 10) for p in projections)
    assert all((p.e is p.f) == (sharing in ("key_value", "layerwise")) for p in projections)


def test_parameter_counts_of_bert_base(rng):
    """12 layers, 12 heads, n = 512, k = 256: the paper's section 4 counts 24, 12 and 1 matrices."""
    for sharing, matrices in (("headwise", 24), ("key_value", 12), ("layerwise", 1)):
        projections = linformer.draw_projections(256, 512, rng, layers=12, heads=12, sharing=sharing, dtype=np.float32)
        assert parameter_count(projections) == matrices * 131_072


def test_a_padded_row_is_no_parameter(rng):
    reduced = [[1, 2, 5], [3, 3, 3]]
    ragged, even = linformer.draw_projections(reduced, 7, rng, layers=2, heads=3)
    assert parameter_count([ragged, even]) == 2 * (1 + 2 + 5 + 9) * 7
    np.testing.assert_array_equal(ragged.row_mask.sum(axis=1), [1, 2, 5])
    assert even.row_mask is None
    assert (ragged.e[~ragged.row_mask] == 0).all()


def test_entries_have_variance_one_over_r(rng):
    (p,) = linformer.draw_projections(100, 400, rng, layers=1, heads=1, dtype=np.float32)
    assert p.e.dtype == p.f.dtype == np.float32
    for x in p.e, p.f:
        # 40,000 entries: the relative error of their standard deviation is 1/sqrt(2 * 40,000) = 0.0035; four of these.
        assert abs(x.std() * 10 - 1) < 0.014
    assert not np.array_equal(p.e, p.f)


def test_same_seed_same_numbers():
    first, again, other = (
        linformer.draw_projections(2, 6, np.random.default_rng(seed), layers=1, heads=1)[0] for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.e, again.e)
    assert (first.e != other.e).any()


class MatrixGradients(NamedTuple):
    matrices: tuple


@pytest.mark.parametrize(
    ("sharing", "reduced"), [*((sharing, 3) for sharing in SHARING), ("none", [[1, 3], [2, 2]]), ("key_value", [1, 3])]
)
def test_gradients_of_shared_matrices(rng, sharing, reduced):
    """Two layers, the second one attending to the first one's output: every distinct matrix by finite differences."""
    q, k, v = draw(rng, (2, 4, 3), (2, 5, 3), (2, 5, 3))
    layers = linformer.draw_projections(reduced, 5, rng, layers=2, heads=2, sharing=sharing)
    matrices = tuple({id(x): x for p in layers for x in (p.e, p.f)}.values())
    places = [[next(i for i, m in enumerate(matrices) if m is x) for x in (p.e, p.f)] for p in layers]

    def forward(matrices):
        rebuilt = [
            linformer.Projection(*(matrices[i] for i in place), p.row_mask)
            for place, p in zip(places, layers, strict=True)
        ]
        hidden, first = linformer.forward(v, k, v, *rebuilt[0][:2], row_mask=rebuilt[0].row_mask)
        out, second = linformer.forward(q, k, hidden, *rebuilt[1][:2], row_mask=rebuilt[1].row_mask)
        return out, (rebuilt, first, second)

    def backward(d_out, saved):
        rebuilt, first, second = saved
        of_second = linformer.backward(d_out, second)
        of_first = linformer.backward(of_second.v, first)
        found = linformer.distinct_gradients(rebuilt, [of_first, of_second])
        return MatrixGradients(tuple(d_x for _, d_x in found))

    assert len(matrices) == {"none": 4, "headwise": 4, "key_value": 2, "layerwise": 1}[sharing]
    gradcheck.check_elementwise(forward, backward, matrices, rng=rng).assert_ok()


@pytest.mark.parametrize("leading", [(), (1,), (3,), (1, 1), (2, 1), (1, 3), (2, 3)])
def test_a_matrix_serves_all_axes_along_which_it_is_repeated(rng, leading):
    q, k, v, d_out = draw(rng, (2, 3, 4, 5), (2, 3, 7, 5), (2, 3, 7, 2), (2, 3, 4, 2))
    e, f = draw(rng, (*leading, 3, 7), (*leading, 3, 7))
    full_e, full_f = (np.broadcast_to(x, (2, 3, 3, 7)).copy() for x in (e, f))
    out, saved = linformer.forward(q, k, v, e, f)
    full_out, full_saved = linformer.forward(q, k, v, full_e, full_f)
    close(out, full_out)
    got, full = linformer.backward(d_out, saved), linformer.backward(d_out, full_saved)
    for name in "qkv":
        close(getattr(got, name), getattr(full, name))
    repeated = tuple(axis for axis, size in enumerate((1,) * (2 - len(leading)) + leading) if size == 1)
    for name in "ef":
        expected = getattr(full, name).sum(axis=repeated).reshape(e.shape)
        close(getattr(got, name), expected)


def test_identity_is_softmax_attention(rng):
    q, k, v, d_out = draw(rng, (2, 4, 5), (2, 6, 5), (2, 6, 3), (2, 4, 3))
    out, saved = linformer.forward(q, k, v, np.eye(6), np.eye(6))
    exact, exact_saved = softmax.forward(q, k, v)
    close(out, exact)
    for got, expected in zip(linformer.backward(d_out, saved), softmax.backward(d_out, exact_saved), strict=False):
        close(got, expected)


# --- A different R for each head ------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True], ids=["all keys", "key mask"])
def test_padded_rows_equal_separate_heads(rng, masked):
    reduced = [1, 4, 2]
    (p,) = linformer.draw_projections([reduced], 6, rng, layers=1, heads=3)
    for x in p.e, p.f:
        x[~p.row_mask] = 1e3  # what a padded row holds must not matter
    q, k, v, d_out = draw(rng, (2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 2), (2, 3, 5, 2))
    key_mask = rng.random((2, 3, 6)) < 0.7 if masked else np.ones((2, 3, 6), np.bool_)
    k[~key_mask], v[~key_mask] = 1e100, 1e100
    out, saved = linformer.forward(q, k, v, p.e, p.f, key_mask=key_mask, row_mask=p.row_mask)
    weights = linformer.matrix(q, k, p.e, key_mask=key_mask, row_mask=p.row_mask)
    grads = linformer.backward(d_out, saved)
    for h, r in enumerate(reduced):
        alone, alone_saved = linformer.forward(
            *(x[:, h] for x in (q, k, v)), p.e[h, :r], p.f[h, :r], key_mask=key_mask[:, h]
        )
        close(out[:, h], alone)
        close(weights[:, h, :, :r] @ (p.f[h, :r] @ np.where(key_mask[:, h, :, None], v[:, h], 0)), alone)
        assert (weights[:, h, :, r:] == 0).all()
        close(weights[:, h].sum(axis=-1), np.ones((2, 5)))
        expected = linformer.backward(d_out[:, h], alone_saved)
        for name in "qkv":
            close(getattr(grads, name)[:, h], getattr(expected, name))
        for name in "ef":
            close(getattr(grads, name)[h, :r], getattr(expected, name))
            assert (getattr(grads, name)[h, r:] == 0).all()
    assert (grads.k[~key_mask] == 0).all()
    assert (grads.v[~key_mask] == 0).all()


def test_one_row_mask_for_all_heads(rng):
    q, k, v, e, f = draw(rng, (2, 3, 4), (2, 5, 4), (2, 5, 2), (3, 5), (3, 5))
    out, _ = linformer.forward(q, k, v, e, f, row_mask=np.array([True, False, True]))
    close(out, linformer.forward(q, k, v, e[::2], f[::2])[0])


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows_that_are_not_in_use_may_hold_anything(rng, kernels):
    q, k, v, e, f, d_out = draw(rng, (2, 3, 4), (2, 5, 4), (2, 5, 2), (3, 5), (3, 5), (2, 3, 2))

    def run():
        out, saved = linformer.forward(q, k, v, e, f, row_mask=np.array([True, False, True]), kernels=kernels)
        return out, linformer.backward(d_out, saved)

    expected, gradients = run()
    e[1], f[1] = np.nan, np.inf
    out, others = run()
    np.testing.assert_array_equal(out, expected)
    for x, y in zip(others, gradients, strict=True):
        np.testing.assert_array_equal(x, y)
    k[0, 3] = v[1, 3] = np.nan
    _, spoiled = run()
    assert not spoiled.e[1].any()
    assert not spoiled.f[1].any()


# --- Pooling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "reduced"), [(1, 1), (7, 1), (7, 3), (8, 4), (11, 11), (13, 5)])
def test_segments(length, reduced):
    bounds = segment_bounds(length, reduced)
    parts = np.array_split(np.arange(length), reduced)
    assert [list(range(start, end)) for start, end in pairwise(bounds)] == [list(part) for part in parts]


@pytest.mark.parametrize(("length", "reduced"), [(1, 1), (7, 3), (8, 4), (13, 5)])
def test_mean_pool(rng, length, reduced):
    (x,) = draw(rng, (2, length, 3))
    e = linformer.mean_pool(reduced, length)
    means = np.stack([part.mean(axis=1) for part in np.array_split(x, reduced, axis=1)], axis=1)
    close(e @ x, means)
    assert linformer.mean_pool(reduced, length, np.float32).dtype == np.float32


def test_mean_pool_at_both_ends(rng):
    q, k, v = draw(rng, (4, 5), (6, 5), (6, 3))
    np.testing.assert_array_equal(linformer.mean_pool(6, 6), np.eye(6))
    one = linformer.mean_pool(1, 6)
    out, _ = linformer.forward(q, k, v, one, one)
    close(out, np.broadcast_to(v.mean(axis=0), (4, 3)))  # one mixed key: every query gets the mean of the values


@pytest.mark.parametrize(("length", "reduced"), [(1, 1), (7, 3), (8, 4), (13, 5), (6, 6)])
def test_max_pool(rng, length, reduced):
    (x,) = draw(rng, (2, 3, length, 4))
    pooled, _ = linformer.max_pool(x, reduced)
    maxima = np.stack([part.max(axis=-2) for part in np.array_split(x, reduced, axis=-2)], axis=-2)
    np.testing.assert_array_equal(pooled, maxima)


def test_max_pool_looks_at_no_masked_key(rng):
    (x,) = draw(rng, (7, 4))
    key_mask = np.array([True, False, True, False, False, True, False])  # segments 0-2, 3-4, 5-6
    x[~key_mask] = 1e300
    pooled, saved = linformer.max_pool(x, 3, key_mask=key_mask)
    np.testing.assert_array_equal(pooled, [np.maximum(x[0], x[2]), np.zeros(4), x[5]])
    d_x = max_pool.backward(np.ones((3, 4)), saved).x
    assert (d_x[~key_mask] == 0).all()
    np.testing.assert_array_equal(d_x[[0, 2]].sum(axis=0), np.ones(4))
    np.testing.assert_array_equal(d_x[5], np.ones(4))


def test_max_pool_of_negative_numbers_beside_a_masked_key():
    x = -np.ones((2, 1), np.float32)
    pooled, _ = linformer.max_pool(x, 1, key_mask=np.array([True, False]))
    assert pooled.dtype == np.float32
    np.testing.assert_array_equal(pooled, [[-1]])


def test_max_pool_beside_a_masked_key_of_what_is_no_number():
    x = np.array([[5.0, 5], [-np.inf, np.nan], [1, 2], [2, 1]])
    pooled, saved = linformer.max_pool(x, 2, key_mask=np.array([False, True, True, True]))
    np.testing.assert_array_equal(pooled, [[-np.inf, np.nan], [2, 2]])
    d_x = max_pool.backward(np.array([[7.0, 8], [1, 2]]), saved).x
    np.testing.assert_array_equal(d_x, [[0, 0], [7, 8], [0, 2], [1, 0]])


def test_of_equal_maxima_the_first_gets_the_gradient():
    _, saved = linformer.max_pool(np.ones((4, 2)), 2)
    d_x = max_pool.backward(np.array([[2.0, 3.0], [4.0, 5.0]]), saved).x
    np.testing.assert_array_equal(d_x, [[2, 3], [0, 0], [4, 5], [0, 0]])


class PooledGradients(NamedTuple):
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


@pytest.mark.parametrize("masked", [False, True], ids=["all keys", "key mask"])
def test_attention_to_max_pooled_keys_has_the_right_gradients(rng, masked):
    """The recipe of max_pool's docstring. No two keys come within 1e-4: the maximum stays where it is."""
    q, k, v = draw(rng, (2, 3, 4), (2, 7, 4), (2, 7, 3))
    assert all(np.diff(np.sort(x, axis=-2), axis=-2).min() > 1e-4 for x in (k, v))
    key_mask = np.array([[1, 1, 0, 1, 1, 1, 1], [0, 0, 0, 1, 0, 1, 1]], np.bool_) if masked else None

    def forward(q, k, v):
        k_mixed, saved_k = linformer.max_pool(k, 3, key_mask=key_mask)
        v_mixed, saved_v = linformer.max_pool(v, 3, key_mask=key_mask)
        out, saved = softmax.forward(q, k_mixed, v_mixed)
        return out, (saved, saved_k, saved_v)

    def backward(d_out, saved):
        attention, saved_k, saved_v = saved
        grads = softmax.backward(d_out, attention)
        return PooledGradients(grads.q, max_pool.backward(grads.k, saved_k).x, max_pool.backward(grads.v, saved_v).x)

    gradcheck.check_elementwise(forward, backward, q, k, v, rng=rng).assert_ok()


# --- Strided convolution --------------------------------------------------------------------------------------------


def convolution_by_loops(x, weight, key_mask=None):
    kernel, _, out_width = weight.shape
    y = np.zeros((*x.shape[:-2], -(-x.shape[-2] // kernel), out_width))
    for *lead, j in np.ndindex(x.shape[:-1]):
        if key_mask is None or key_mask[(*lead, j)]:
            y[(*lead, j // kernel)] += x[(*lead, j)] @ weight[j % kernel]
    return y


@pytest.mark.parametrize("length", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("masked", [False, True], ids=["all keys", "key mask"])
def test_convolution(rng, length, masked):
    x, weight = draw(rng, (2, length, 4), (3, 4, 5))
    key_mask = rng.random((2, length)) < 0.6 if masked else None
    y, _ = linformer.convolution(x, weight, key_mask=key_mask)
    assert y.shape == (2, -(-length // 3), 5)
    close(y, convolution_by_loops(x, weight, key_mask))


@pytest.mark.parametrize("length", [2, 6, 7])
@pytest.mark.parametrize("masked", [False, True], ids=["all keys", "key mask"])
def test_convolution_gradients(rng, length, masked):
    x, weight = draw(rng, (2, length, 3), (3, 3, 4))
    key_mask = rng.random((2, length)) < 0.6 if masked else None
    forward = partial(strided_convolution.forward, key_mask=key_mask)
    gradcheck.check_elementwise(forward, strided_convolution.backward, x, weight, rng=rng).assert_ok()


def test_mean_pooling_is_a_convolution(rng):
    (x,) = draw(rng, (2, 12, 3))
    weight = np.broadcast_to(np.eye(3) / 4, (4, 3, 3))
    close(linformer.convolution(x, weight)[0], linformer.mean_pool(3, 12) @ x)


# --- What is refused ------------------------------------------------------------------------------------------------

Q, K, V, E = np.zeros((2, 3, 4)), np.zeros((2, 5, 4)), np.zeros((2, 5, 2)), np.zeros((3, 5))


def test_causal_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"causal: .*mixes all positions.*future"):
        linformer.forward(Q[:, :1], K, V, E, E, causal=True)
    linformer.forward(Q, K, V, E, E, causal=False)


@pytest.mark.parametrize(
    ("error", "match", "arguments", "options"),
    [
        (ValueError, r"^e: expected shape \(\.\.\., R, L\) = \(3, 5\), got \(3, 4\)", (E[:, :4], E), {}),
        (ValueError, r"^f: expected shape \(\.\.\., R, L\) = \(3, 5\), got \(3, 4\)", (E, E[:, :4]), {}),
        (ValueError, r"^e: expected R <= L = 5, got R = 6", (np.zeros((6, 5)), np.zeros((6, 5))), {}),
        (ValueError, r"^f: expected shape \(\.\.\., R, L\) = \(3, 5\), got \(2, 5\)", (E, E[:2]), {}),
        (ValueError, r"^e: expected shape .* = \(2, 3, 5\), got \(3, 3, 5\)", (np.zeros((3, 3, 5)), E), {}),
        (ValueError, r"^f: expected shape .* = \(2, 3, 5\), got \(1, 2, 3, 5\)", (E, np.zeros((1, 2, 3, 5))), {}),
        (ValueError, r"^e: expected at least 2 axes", (E[0], E), {}),
        (TypeError, r"^e: expected float64", (E.astype(np.float32), E), {}),
        (TypeError, r"^f: expected a numpy.ndarray", (E, E.tolist()), {}),
        (TypeError, r"^row_mask: expected an array of bool", (E, E), {"row_mask": np.ones(3)}),
        (
            ValueError,
            r"^row_mask: expected shape \(\.\.\., R\) = \(3,\), got \(2,\)",
            (E, E),
            {"row_mask": np.ones(2, np.bool_)},
        ),
        (ValueError, r"^row_mask: .* = \(2, 3\), got \(3, 3\)", (E, E), {"row_mask": np.ones((3, 3), np.bool_)}),
    ],
)
def test_bad_projections(error, match, arguments, options):
    with pytest.raises(error, match=match):
        linformer.forward(Q, K, V, *arguments, **options)


def test_gradients_are_of_all_layers(rng):
    projections = linformer.draw_projections(3, 5, rng, layers=2, heads=1)
    with pytest.raises(ValueError, match=r"^gradients: expected one per layer, 2, got 1"):
        linformer.distinct_gradients(projections, [linformer.Gradients(Q, K, V, E, E)])


@pytest.mark.parametrize(
    ("match", "reduced", "sharing"),
    [
        (r"sharing: expected one of none, headwise, key_value, layerwise, got 'all'", 3, "all"),
        (r"reduced: expected 1 <= R <= L = 5, got 6 to 6", 6, "none"),
        (r"reduced: expected 1 <= R <= L = 5, got 0 to 3", [[0, 1, 1], [1, 1, 3]], "none"),
        (r"reduced: expected an integer, \(2,\) integers", [1, 2, 3], "none"),
        (r"reduced: expected an integer.*float64", 2.5, "none"),
        (r"reduced: expected an integer.*object", [[1, 2], [3]], "none"),
        (r"reduced: heads that share a matrix have one R.*'headwise'", [[1, 2, 3], [1, 1, 1]], "headwise"),
        (r"reduced: heads that share a matrix have one R.*'key_value'", [[1, 2, 3], [1, 1, 1]], "key_value"),
        (r"reduced: layers that share a matrix have one R", [1, 2], "layerwise"),
    ],
)
def test_bad_sharing(rng, match, reduced, sharing):
    with pytest.raises(ValueError, match=match):
        linformer.draw_projections(reduced, 5, rng, layers=2, heads=3, sharing=sharing)


def test_layers_of_their_own_r(rng):
    for sharing in ("none", "headwise", "key_value"):
        projections = linformer.draw_projections([2, 4], 5, rng, layers=2, heads=3, sharing=sharing)
        assert [p.e.shape[-2] for p in projections] == [2, 4]
        assert all(p.row_mask is None for p in projections)


@pytest.mark.parametrize("reduced", [0, 6, 2.0, True])
def test_bad_pooling(reduced):
    for call in (partial(linformer.mean_pool, reduced, 5), partial(linformer.max_pool, K, reduced)):
        with pytest.raises(ValueError, match=r"reduced: expected an integer with 1 <= R <= L = 5, got"):
            call()


def test_bad_convolution():
    with pytest.raises(ValueError, match=r"^weight: expected shape \(K, W, W'\) = \(2, 4, 4\), got \(2, 3, 4\)"):
        linformer.convolution(K, np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match=r"weight: expected at least 3 axes"):
        linformer.convolution(K, np.zeros((2, 4)))
    with pytest.raises(TypeError, match=r"weight: expected float64"):
        linformer.convolution(K, np.zeros((2, 4, 4), np.float32))


def test_bad_lengths_and_counts(rng):
    with pytest.raises(ValueError, match=r"^length: expected an integer of at least 1, got 5.0"):
        linformer.mean_pool(2, 5.0)
    with pytest.raises(ValueError, match=r"^layers: expected an integer of at least 1, got 0"):
        linformer.draw_projections(2, 5, rng, layers=0, heads=1)


def test_a_gradient_of_another_shape_is_refused():
    """One that broadcasts would be taken for the gradient of every column."""
    _, saved = linformer.max_pool(K, 3)
    with pytest.raises(ValueError, match=r"^d_pooled: expected shape .* = \(2, 3, 4\), got \(2, 3, 1\)"):
        max_pool.backward(np.zeros((2, 3, 1)), saved)


def test_what_projections_are_drawn_with(rng):
    draw = partial(linformer.draw_projections, length=50, layers=2, heads=1, sharing="headwise")
    few = (draw(3, rng=np.random.default_rng(i))[0] for i in range(4))  # none is kept by anybody else
    assert parameter_count(few) == 4 * 2 * 3 * 50
    narrow, plain = (draw(r, rng=np.random.default_rng(0))[1] for r in (np.array([3, 3], np.uint8), 3))
    np.testing.assert_array_equal(narrow.f, plain.f)
    with pytest.raises(TypeError, match=r"^rng: expected a numpy.random.Generator, got int"):
        draw(3, rng=0)
    for make in (partial(draw, 3, rng=rng), partial(linformer.mean_pool, 2, 5)):
        with pytest.raises(TypeError, match=r"^dtype: expected float32 or float64, got int64"):
            make(dtype=int)
