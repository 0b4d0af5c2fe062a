"""Linformer and linear attention together: the mechanism, and the seed's conclusion in numbers."""

from functools import partial

import numpy as np
import pytest

from linattn_ref.attention import feature_maps, linear, linformer, linformer_linear
from linattn_ref.experiments.measuring.counting import count, kept_bytes
from linattn_ref.gradcheck import check_elementwise

D, M, R = 4, 3, 3
OMEGA = feature_maps.gaussian(6, D, np.random.default_rng(7))
MAPS = [feature_maps.elu_plus_one, feature_maps.quadratic(0.7), feature_maps.favor_positive(OMEGA)]
every_map = pytest.mark.parametrize("feature_map", MAPS, ids=lambda m: m.name)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def eps_of(feature_map):
    return 0.0 if feature_maps.is_exponential(feature_map) else 1e-6


def draw(rng, n, length, *, leading=(2, 3), projection=(), positive=True, scale=0.5, dtype=np.float64):
    """``positive`` projections keep the denominator away from 0."""
    q, k = (scale * rng.standard_normal((*leading, rows, D)) for rows in (n, length))
    v = rng.standard_normal((*leading, length, M))
    e, f = rng.standard_normal((2, *projection, R, length))
    return [x.astype(dtype) for x in (q, k, v, abs(e) if positive else e, f)]


def by_definition(q, k, v, e, f, feature_map, key_mask, eps):
    phi_q, phi_k = feature_map.forward(q)[0], feature_map.forward(k)[0]
    if key_mask is not None:
        phi_k, v = phi_k * key_mask[..., None], v * key_mask[..., None]
    similarity = phi_q @ (e @ phi_k).swapaxes(-1, -2)  # (..., N, R)
    return similarity @ (f @ v) / (similarity.sum(axis=-1, keepdims=True) + eps)


@every_map
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("projection", [(), (3,), (2, 1)], ids=str)
def test_forward_and_gradients(feature_map, masked, projection, rng):
    inputs = draw(rng, 2, 4, projection=projection)
    key_mask = np.arange(4) != np.arange(6).reshape(2, 3, 1) % 4 if masked else None
    options = {"feature_map": feature_map, "key_mask": key_mask, "eps": eps_of(feature_map)}
    out, saved = linformer_linear.forward(*inputs, **options)
    np.testing.assert_allclose(out, by_definition(*inputs, **options), rtol=0, atol=1e-12)  # weights of a few
    check_elementwise(
        partial(linformer_linear.forward, **options), linformer_linear.backward, *inputs, rng=rng
    ).assert_ok()
    if masked:
        grads = linformer_linear.backward(np.ones_like(out), saved)
        assert not grads.k[~key_mask].any()
        assert not grads.v[~key_mask].any()


@every_map
def test_projections_that_mix_nothing_leave_linear_attention(feature_map, rng):
    q, k, v, _, _ = draw(rng, 4, 6)
    options = {"feature_map": feature_map, "eps": eps_of(feature_map)}
    identity = np.eye(6)
    out, saved = linformer_linear.forward(q, k, v, identity, identity, **options)
    expected, expected_saved = linear.forward(q, k, v, **options)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-14)
    d_out = rng.standard_normal(out.shape)
    grads = linformer_linear.backward(d_out, saved)
    for x, y in zip(grads[:3], linear.backward(d_out, expected_saved)[:3], strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1, 30])
def test_exponential_features_in_float32(scale, rng):
    """The scale of a feature goes through ``E`` unchanged: no overflow, no weight lost."""
    inputs = draw(rng, 20, 30, scale=scale, dtype=np.float32)
    feature_map = feature_maps.favor_positive(OMEGA)
    out, saved = linformer_linear.forward(*inputs, feature_map=feature_map, eps=0.0)
    exact, _ = linformer_linear.forward(*(x.astype(np.float64) for x in inputs), feature_map=feature_map, eps=0.0)
    size = max(abs(feature_map.split(x.astype(np.float64))[0]).max() for x in inputs[:2]) + 10
    assert out.dtype == np.float32
    # exponents of this size, rounded to float32, change weights by so much; rows of F V have size 30
    np.testing.assert_allclose(out, exact, rtol=0, atol=32 * np.finfo(np.float32).eps * size * abs(exact).max())
    grads = linformer_linear.backward(np.ones_like(out), saved)
    assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in grads)


# --- The conclusion of the seed -------------------------------------------------------------------------------------


def test_similarities_are_no_longer_positive(rng):
    q, k, v, _, _ = draw(rng, 50, 60)
    e = rng.standard_normal((40, 60))
    e -= e.mean()
    fraction = linformer_linear.negative_similarity_fraction
    # about half of them: the similarities to one mixed key mostly have the sign of the sum of its row of E
    assert abs(fraction(q, k, e) - (e.sum(axis=-1) < 0).mean()) < 0.1
    assert 0.25 < (e.sum(axis=-1) < 0).mean() < 0.75
    assert fraction(q, k, np.eye(60)) == 0  # linear attention itself
    assert fraction(q, k, linformer.mean_pool(R, 60)) == 0
    assert fraction(q, k, -np.eye(60)) == 1
    assert fraction(q, k, 0 * e) == 0  # similarities of 0 are not below it
    identity = np.eye(60)
    inside, _ = linformer_linear.forward(q, k, v, identity, identity)
    assert (inside.max(axis=-2) <= v.max(axis=-2)).all()  # averages of the values
    assert (inside.min(axis=-2) >= v.min(axis=-2)).all()
    outside, saved = linformer_linear.forward(q, k, v, e, e)
    assert (abs(outside) > abs(v).max()).any()
    assert (saved.d < 0).any()


def test_masked_keys_are_no_part_of_the_fraction(rng):
    q, k, _, _, _ = draw(rng, 5, 6)
    e = np.ones((1, 6))
    e[:, 0] = -100  # the first key outweighs all others
    key_mask = np.broadcast_to(np.arange(6) > 0, (2, 3, 6))
    assert linformer_linear.negative_similarity_fraction(q, k, e) == 1
    assert linformer_linear.negative_similarity_fraction(q, k, e, key_mask=key_mask) == 0


@pytest.mark.parametrize("n", [64, 256])
def test_neither_time_nor_space_improves(n, rng):
    """Multiply-adds, counted, and bytes kept: with ``R >= C M / (C + M)`` more, with ``R = 1`` more than half."""
    c = m = 16
    q, k, v = rng.standard_normal((3, n, c))
    alone = count(linear.forward, q, k, v).multiply_adds
    assert alone == n * c * m + n * (c * m + c)  # S; out and its denominator
    for r in (1, c // 2, c, n):
        e, f = rng.standard_normal((2, r, n))
        together = count(linformer_linear.forward, q, k, v, e, f).multiply_adds
        assert together == n * r * (c + m) + r * c * m + n * (c * m + c)
        assert together > alone / 2
        assert together > alone or r < c * m / (c + m)
        kept = kept_bytes(linformer_linear.forward(q, k, v, e, f)[1])
        assert kept >= kept_bytes(linear.forward(q, k, v)[1]) + e.nbytes + f.nbytes - 8 * (2 * c * m + 2 * c)


# --- Errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"e": np.ones((R, 7))}, ValueError, r"^e: expected shape \(\.\.\., R, L\) = \(3, 6\), got \(3, 7\)"),
        ({"e": np.ones((8, 6)), "f": np.ones((8, 6))}, ValueError, "^e: expected R <= L = 6, got R = 8"),
        ({"f": np.ones((R + 1, 6))}, ValueError, r"^f: expected shape \(\.\.\., R, L\) = \(3, 6\), got \(4, 6\)"),
        ({"f": np.ones((5, R, 6))}, ValueError, r"^f: expected shape .* = \(2, 3, 3, 6\), got \(5, 3, 6\)"),
        ({"e": np.ones((R, 6), np.float32)}, TypeError, "^e: expected float64"),
        ({"feature_map": "elu"}, TypeError, "^feature_map: expected a FeatureMap"),
        ({"feature_map": MAPS[-1]}, ValueError, "^eps: must be 0 with the exponential map"),
        ({"key_mask": np.ones((2, 6), np.bool_)}, ValueError, r"^key_mask: expected shape \(..., L\)"),
    ],
)
def test_bad_arguments_are_named(changed, error, message, rng):
    arguments = dict(zip("qkvef", draw(rng, 4, 6), strict=True)) | changed
    with pytest.raises(error, match=message):
        linformer_linear.forward(**arguments)
