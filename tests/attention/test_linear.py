"""Linear attention: its matrix, its gradients, exponential maps in float32, states."""

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from cases import each_compiled_dtype
from joblib import Parallel, delayed

from linattn_ref.attention import chunked_linear, exponential, feature_maps, linear, softmax
from linattn_ref.experiments.measuring.counting import count, kept_bytes
from linattn_ref.gradcheck import check_directions, check_elementwise
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.common.exponential_features import ROWS
from linattn_ref.kernels.common.rises import RISE

EPS32, EPS64 = np.finfo(np.float32).eps, np.finfo(np.float64).eps
D, M = 4, 3
OMEGA = feature_maps.gaussian(6, D, np.random.default_rng(7))
PLAIN = [
    feature_maps.elu_plus_one,
    feature_maps.relu,
    feature_maps.quadratic(0.7),
    feature_maps.favor_relu(OMEGA),
    feature_maps.rfa_arccos(OMEGA),
]
EXPONENTIAL = [
    feature_maps.taylor_gaussian(2, 1.3),
    feature_maps.favor_positive(OMEGA),
    feature_maps.favor_hyperbolic(OMEGA),
    feature_maps.favor_trig(OMEGA),
]
STEP = 3e-7  # of differences: max(x, 0) + 1e-3 in a denominator bends too much for the usual 6e-6
EITHER_SIGN = ("favor_trig",)  # whose denominators may be close to 0: there an output is all rounding
every_map = pytest.mark.parametrize("feature_map", PLAIN + EXPONENTIAL, ids=lambda m: m.name)
exponential_maps = pytest.mark.parametrize("feature_map", EXPONENTIAL, ids=lambda m: m.name)
backends = pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
in_either_dtype = pytest.mark.parametrize(  # of what is compiled a default run has float64 alone
    ("kernels", "dtype"),
    [(reference, np.float32), (jit, np.float64), pytest.param(jit, np.float32, marks=pytest.mark.slow)],
    ids=["reference", "jit", "jit-float32"],
)
positive_exponential = pytest.mark.parametrize(
    "feature_map", [m for m in EXPONENTIAL if m.name not in EITHER_SIGN], ids=lambda m: m.name
)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def eps_of(feature_map):
    return 0.0 if feature_maps.is_exponential(feature_map) else 1e-6


def draw(rng, n, length, *, leading=(2,), scale=0.5, dtype=np.float64):
    q = scale * rng.standard_normal((*leading, n, D))
    k = scale * rng.standard_normal((*leading, length, D))
    v = rng.standard_normal((*leading, length, M))
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


def by_definition(q, k, v, feature_map, causal, key_mask, eps):
    """One query and one key at a time, the features as they stand."""
    phi_q, phi_k = feature_map.forward(q)[0], feature_map.forward(k)[0]
    n, length = q.shape[-2], k.shape[-2]
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for head in np.ndindex(q.shape[:-2]):
        for i in range(n):
            numerator, denominator = np.zeros(v.shape[-1]), eps
            for j in range(length):
                if (not causal or j <= i + length - n) and (key_mask is None or key_mask[(*head, j)]):
                    similarity = phi_q[(*head, i)] @ phi_k[(*head, j)]
                    numerator, denominator = numerator + similarity * v[(*head, j)], denominator + similarity
            if denominator:
                out[(*head, i)] = numerator / denominator
    return out


def draw_rising(rng, n, length, feature_map):
    """For an exponential map: exponents that rise by some hundred in one head, so that its scale has to."""
    q, k, v = draw(rng, n, length)
    if feature_maps.is_exponential(feature_map):
        k[0] *= np.linspace(20, 1, length)[:, None]  # -|k|^2/2 rises
    if feature_map.name in EITHER_SIGN:
        k = k[:, ::-1]  # +|k|^2/2 rises
    return q, k, v


SHAPES = [(False, 3, 5), (False, 5, 3), (True, 4, 4), (True, 2, 5)]
shapes = pytest.mark.parametrize(("causal", "n", "length"), SHAPES)


SOME = [(False, 3, 5, True), (False, 5, 3, False), (True, 4, 4, False), (True, 2, 5, True)]


@every_map
@pytest.mark.parametrize(
    ("causal", "n", "length", "masked"),
    [pytest.param(*s, m, marks=[pytest.mark.slow] * ((*s, m) not in SOME)) for s in SHAPES for m in (False, True)],
)
def test_forward_matrix_and_gradients(feature_map, causal, n, length, masked, rng):
    q, k, v = draw(rng, n, length)
    key_mask = np.arange(length) != np.array([[0], [length - 1]]) if masked else None  # the first key, or the last
    options = {"feature_map": feature_map, "causal": causal, "key_mask": key_mask, "eps": eps_of(feature_map)}
    out, _ = linear.forward(q, k, v, **options)
    expected = by_definition(q, k, v, **options)
    tolerance = {"rtol": 1e-10, "atol": 1e-10}  # 1e-16, times sums of some ten terms over denominators above 1e-4
    np.testing.assert_allclose(out, expected, **tolerance)
    np.testing.assert_allclose(linear.matrix(q, k, **options) @ v, expected, **tolerance)
    check_elementwise(partial(linear.forward, **options), linear.backward, q, k, v, rng=rng, step=STEP).assert_ok()


@every_map
@pytest.mark.parametrize("causal", [False, True])
@backends
def test_gradients_over_many_rows(kernels, feature_map, causal, rng):
    q, k, v = draw(rng, 131, 192)
    options = {"feature_map": feature_map, "causal": causal, "eps": eps_of(feature_map), "kernels": kernels}
    check_directions(partial(linear.forward, **options), linear.backward, q, k, v, rng=rng, step=STEP).assert_ok()


def test_associativity_is_what_makes_it_linear(rng):
    """The dense order of multiplication costs N L (C + M), the other one (N + L) C M; the numbers are the same."""
    q, k, v = draw(rng, 50, 60, leading=())
    out, _ = linear.forward(q, k, v, eps=0.0)
    phi_q, phi_k = (feature_maps.elu_plus_one.forward(x)[0] for x in (q, k))
    similarity = phi_q @ phi_k.T
    np.testing.assert_allclose(out, (similarity @ v) / similarity.sum(axis=-1, keepdims=True), rtol=0, atol=1e-13)
    counted = count(partial(linear.forward, eps=0.0), q, k, v).multiply_adds
    assert counted == (50 + 60) * D * M + 50 * D  # S, out, and the denominator


def test_the_whole_exponential_series_would_be_softmax_attention(rng):
    """Similarities are off by Taylor's remainder, relatively at most ``delta``; so weights by some 2 delta."""
    q, k, v = draw(rng, 6, 9, leading=(2,))
    q, k = (x[..., :2] / np.linalg.norm(x[..., :2], axis=-1, keepdims=True) for x in (q, k))  # |q . k| <= 1
    expected, _ = softmax.forward(q, k, v, causal=True, scale=1.0)
    errors = []
    for order in (4, 6, 8):
        out, _ = linear.forward(q, k, v, feature_map=feature_maps.taylor_exp(order), causal=True, eps=0.0)
        delta = np.e**2 / np.prod(np.arange(1.0, order + 2))  # e / (order + 1)!, over exp(-1)
        errors.append(abs(out - expected).max())
        assert errors[-1] <= 2 * delta / (1 - delta) * abs(v).max()
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


# --- Masks, and queries that see nothing ----------------------------------------------------------------------------


@every_map
@pytest.mark.parametrize("causal", [False, True])
def test_padded_is_truncated(feature_map, causal, rng):
    """The mask acts after phi: phi(0) of a padded key would count in the denominator."""
    q, k, v = draw(rng, 5, 9)
    options = {"feature_map": feature_map, "eps": eps_of(feature_map)}
    expected, _ = linear.forward(q, k[:, :6], v[:, :6], causal=causal, **options)
    if causal:  # queries are aligned with the last keys: pad in front of them
        pad = [x[:, [6, 7, 8, 0, 1, 2, 3, 4, 5]] for x in (k, v)]
        key_mask = np.broadcast_to(np.arange(9) >= 3, (2, 9))
    else:
        pad, key_mask = [k, v], np.broadcast_to(np.arange(9) < 6, (2, 9))
    out, saved = linear.forward(q, *pad, causal=causal, key_mask=key_mask, **options)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-9)  # the same sums in another order
    grads = linear.backward(rng.standard_normal(out.shape), saved)
    assert not grads.k[~key_mask].any()
    assert not grads.v[~key_mask].any()
    assert grads.k[key_mask].any()


@every_map
@pytest.mark.parametrize("causal", [False, True])
def test_what_a_masked_key_contains_changes_nothing(feature_map, causal, rng):
    q, k, v = draw(rng, 8, 8, dtype=np.float32)
    key_mask = np.ones((2, 8), np.bool_)
    key_mask[:, [0, 4]] = False
    options = {"feature_map": feature_map, "causal": causal, "key_mask": key_mask, "eps": eps_of(feature_map)}
    out, saved = linear.forward(q, k, v, **options)
    grads = linear.backward(np.ones_like(out), saved)
    k[~key_mask], v[~key_mask] = 1e30, -1e30
    changed, saved = linear.forward(q, k, v, **options)
    np.testing.assert_array_equal(changed, out)
    for x, y in zip(linear.backward(np.ones_like(out), saved), grads, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(linear.matrix(q, k, **options)[..., ~key_mask[0]], 0)


@every_map
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_query_that_sees_nothing(feature_map, causal, dtype, rng):
    q, k, v = draw(rng, 6, 6, dtype=dtype)
    key_mask = np.ones((2, 6), np.bool_)
    key_mask[0], key_mask[1, :3] = False, causal is False  # a head without keys; causal, rows without keys too
    options = {"feature_map": feature_map, "causal": causal, "key_mask": key_mask}
    blind = np.zeros((2, 6), np.bool_)
    blind[0], blind[1, :3] = True, causal
    for eps in {0.0, eps_of(feature_map)}:
        out, saved = linear.forward(q, k, v, eps=eps, **options)
        grads = linear.backward(np.ones_like(out), saved)
        assert out.dtype == grads.q.dtype == grads.k.dtype == grads.v.dtype == dtype
        assert not out[blind].any()
        assert out[~blind].all()
        assert not grads.q[blind].any()
        assert all(np.isfinite(x).all() for x in grads[:3])
        assert not any(x[~key_mask].any() for x in (grads.k, grads.v))
        np.testing.assert_array_equal(linear.matrix(q, k, eps=eps, **options)[blind], 0)


# --- Exponential maps in float32 ------------------------------------------------------------------------------------


def exponent_rounding(feature_map, q, k):
    """What the rounding of exponents in float32 does to a weight, relatively: eps times their size, a few times."""
    size = sum(abs(feature_map.split(x.astype(np.float64))[0]).max() for x in (q, k))
    return 16 * EPS32 * (size + 10)


def rises(saved):
    """How often the scale rose after it was first set: on the page with any key, in a backend where it has to."""
    return sum((f != 1).any() for f in saved.f[1:]) if hasattr(saved, "f") else len(saved.phi.pieces) - 1


@positive_exponential
@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernels", [reference, pytest.param(jit, marks=pytest.mark.slow)], ids=["reference", "jit"])
def test_float32_is_right_at_any_scale(kernels, feature_map, scale, causal, rng):
    """At scale 30 exponents reach some thousand and float32 ends at 88; no output is 0, infinite, or another's."""
    q, k, v = draw(rng, 150, 150, scale=scale, dtype=np.float32)
    options = {"feature_map": feature_map, "causal": causal, "eps": 0.0}
    out, saved = linear.forward(q, k, v, **options, kernels=kernels)
    assert out.dtype == np.float32
    # at least 1 in the leading feature, next to which the factor of taylor_gaussian is 1 too
    assert ((saved.d if kernels is reference else saved.denominator) > 0.5).all()
    expected = linear.matrix(*(x.astype(np.float64) for x in (q, k)), **options) @ v
    np.testing.assert_allclose(out, expected, rtol=0, atol=exponent_rounding(feature_map, q, k) * abs(v).max())
    grads = linear.backward(np.ones_like(out), saved)
    assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in grads[:3])


@exponential_maps
@backends
def test_gradients_where_the_scale_rises(kernels, feature_map, rng):
    """Many pieces, states handed from one to the next on different scales, in both directions."""
    q, k, v = draw_rising(rng, 30, 35, feature_map)
    options = {"feature_map": feature_map, "causal": True, "eps": 0.0}
    _, saved = linear.forward(q, k, v, **options, kernels=kernels)
    assert rises(saved) >= 1
    # weights that change by orders of magnitude between keys bend even more
    check = partial(check_directions, rng=rng, step=1e-7, rtol=1e-6)
    check(partial(linear.forward, **options, kernels=kernels), linear.backward, q, k, v).assert_ok()
    np.testing.assert_allclose(linear.matrix(q, k, **options) @ v, linear.forward(q, k, v, **options)[0], atol=1e-9)


@exponential_maps
@pytest.mark.parametrize("scale", [1, 30])
@in_either_dtype
def test_a_later_key_moves_no_earlier_output(kernels, dtype, feature_map, scale, rng):
    q, k, v = draw(rng, 100, 100, scale=scale, dtype=dtype)
    options = {"feature_map": feature_map, "causal": True, "eps": 0.0, "kernels": kernels}
    out, _ = linear.forward(q, k, v, **options)
    for factor in (1000, 0):  # the exponents of one map rise with the length of a key, those of another fall
        later = k.copy()
        later[:, 60:] *= dtype(factor)
        changed, _ = linear.forward(q, later, v, **options)
        if kernels is reference:  # to the bit: row by row
            np.testing.assert_array_equal(changed[:, :60], out[:, :60])
        assert_rounding_only(changed[:, :60], out[:, :60], feature_map)
        assert not np.allclose(changed[:, 60:], out[:, 60:])


@exponential_maps
@pytest.mark.parametrize("scale", [1, 30])
@in_either_dtype
def test_another_example_of_the_batch_moves_no_output(kernels, dtype, feature_map, scale, rng):
    q, k, v = draw(rng, 100, 100, leading=(3,), scale=scale, dtype=dtype)
    for causal in (False, True):
        options = {"feature_map": feature_map, "causal": causal, "eps": 0.0, "kernels": kernels}
        out, saved = linear.forward(q, k, v, **options)
        for factor in (1000, 0):
            others = k.copy()
            others[1:, 60:] *= dtype(factor)
            changed, changed_saved = linear.forward(q, others, v, **options)
            for x, y in zip(scaled(changed_saved), scaled(saved), strict=True):  # to the bit: a scale of its own
                np.testing.assert_array_equal(x[0], y[0])
            assert_rounding_only(changed[0], out[0], feature_map)


def scaled(saved):
    """The features of queries and keys, each on its scale."""
    return (saved.w, saved.phi) if hasattr(saved, "w") else (saved.phi.q, saved.phi.k)


def assert_rounding_only(changed, out, feature_map):
    """The same features, summed in pieces cut elsewhere: off by the rounding of a sum of 100 terms.

    With features of either sign the sum may be far smaller than its terms; there all but one row in ten has to agree.
    """
    agrees = abs(changed - out) <= 100 * np.finfo(out.dtype).eps * np.maximum(abs(out), 1)
    assert agrees.all() if feature_map.name not in EITHER_SIGN else agrees.mean() > 0.9


@pytest.mark.parametrize("feature_map", EXPONENTIAL[1:], ids=lambda m: m.name)  # the first has factors beyond it
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1e146, 1e155], ids=["a sum of two", "one"])
@backends
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_exponents_beyond_the_range(kernels, size, causal, feature_map):
    """Those of a query and of the scale of no key, or each: they count as the largest number, or the lowest."""
    options = {"feature_map": feature_map, "eps": 0.0, "kernels": kernels}
    large, ones, v = np.full((3, D), size), np.ones((3, D)), np.array([[1.0], [2.0], [4.0]])
    means = v.cumsum(axis=0) / [[1], [2], [3]] if causal else np.full((3, 1), 7 / 3)
    out, saved = linear.forward(large, large, v, causal=causal, key_mask=np.zeros(3, bool), **options)
    for x in (out, *linear.backward(np.ones_like(v), saved)[:3]):
        np.testing.assert_array_equal(x, 0)
    for q, k in ((large, large), *(() if feature_map.name in EITHER_SIGN else ((large, ones), (ones, large)))):
        np.testing.assert_allclose(linear.forward(q, k, v, causal=causal, **options)[0], means, rtol=1e-13)
        state = linear.init_state((), D, 1, feature_map=feature_map)
        for i in range(3 if causal else 0):
            out_i, state = linear.step(q[i], k[i], v[i], state, **options)
            np.testing.assert_allclose(out_i, means[i], rtol=1e-13)


@in_either_dtype
def test_one_maximum_for_all_features_would_not_do(kernels, dtype):
    """The query is large in feature 0, the loudest key in feature 1, by far more than the dtype's exp can express."""
    size = dtype(1 if dtype is np.float32 else 3)  # whose square multiplies exponents
    feature_map = feature_maps.favor_positive(20 * size * np.eye(2, dtype=dtype))
    k = size * np.array([[10.0, 0.0], [0.0, 20.0]], dtype)  # exponents (150, -50) and (-200, 200)
    q = size * np.array([[20.0, 0.0]], dtype)  # exponents (200, -200): similarities exp(350) and exp(0)
    v = np.array([[1.0], [2.0]], dtype)
    for causal in (False, True):
        out, _ = linear.forward(q, k, v, feature_map=feature_map, causal=causal, eps=0.0, kernels=kernels)
        np.testing.assert_array_equal(out, [[1.0]])  # the second key adds exp(-350)


@each_compiled_dtype
def test_ordinary_inputs_need_one_scale(dtype, rng):
    q, k, v = draw(rng, 3000, 3000, scale=1, leading=(4,), dtype=dtype)
    feature_map = feature_maps.favor_positive(OMEGA)
    _, saved = linear.forward(q, k, v, feature_map=feature_map, causal=True, eps=0.0, kernels=jit)
    assert len(saved.phi.pieces) == 1


def test_the_scale_of_a_backend_rises_where_and_only_where_it_has_to():
    """One feature, exponents ``-k^2/2``: at rows 3 and 5 they are more than RISE above the scale."""
    feature_map = feature_maps.favor_positive(np.zeros((1, 1)))
    exponents = np.array([-200, -200 + RISE - 1, -300, -200 + RISE + 1, -200, 0, -1.0])
    k = np.sqrt(-2 * exponents)[:, None]
    _, saved = linear.forward(k, k, k, feature_map=feature_map, causal=True, eps=0.0, kernels=jit)
    assert [piece.keys.start for piece in saved.phi.pieces] == [0, 3, 5]
    np.testing.assert_allclose(saved.state.log_scale, [0.0], atol=1e-12)


def test_no_rise_is_overlooked(rng):
    """At each place of the first windows of the search in turn; by 1000, so that its key would count infinitely."""
    feature_map, places = feature_maps.favor_positive(np.zeros((1, 1))), np.arange(2 * ROWS + 9)[:, None]
    q, v = rng.standard_normal((2, *places.shape))
    means = v.cumsum(axis=0) / (places + 1)
    for place in range(1, len(places)):
        k = np.where(places == place, 0, 2000**0.5)  # exponents 0 and -1000
        out, saved = linear.forward(q, k, v, feature_map=feature_map, causal=True, eps=0.0, kernels=jit)
        assert [piece.keys.start for piece in saved.phi.pieces] == [0, place]
        np.testing.assert_allclose(out, np.where(places < place, means, v[place]), rtol=0, atol=1e-13)


def test_the_scale_of_the_page_is_the_running_maximum(rng):
    """Equation (2) of ``exponential.py``, read off the state after each key."""
    feature_map = feature_maps.favor_positive(OMEGA)
    _, k, v = draw_rising(rng, 12, 12, feature_map)
    exponents, state = feature_map.split(k)[0], linear.init_state((2,), D, M, feature_map=feature_map)
    for i in range(12):
        _, state = linear.step(k[:, i], k[:, i], v[:, i], state, feature_map=feature_map, eps=0.0)
        np.testing.assert_allclose(state.log_scale, exponents[:, : i + 1].max(axis=1), rtol=1e-14)


STEP_ERRORS = {
    "q_t": [
        (lambda q: q.tolist(), TypeError, "q_t: expected a numpy.ndarray, got list"),
        (lambda q: q.astype(np.int64), TypeError, "q_t: expected float32 or float64, got int64"),
        (lambda q: np.array(q[0, 0]), ValueError, "q_t: expected at least 1 axes"),
        (lambda q: q[:, :-1], ValueError, r"k_t: expected shape"),
    ],
    "k_t": [
        (lambda k: k.astype(np.float32), TypeError, "k_t: expected float64"),
        (lambda k: k[:1], ValueError, r"k_t: expected shape"),
    ],
    "v_t": [
        (lambda v: v.astype(np.float32), TypeError, "v_t: expected float64"),
        (lambda v: v[:1], ValueError, "v_t: expected shape"),
        (lambda v: v[:, :-1], ValueError, r"state\.s: expected shape"),
        (lambda v: v[:, :0], ValueError, "v_t: every axis needs at least one entry"),
    ],
    "state": [
        (lambda state: tuple(state), TypeError, r"state: expected sums\.State, got tuple"),
        (lambda state: state._replace(s=state.s.astype(np.float32)), TypeError, r"state\.s: expected float64"),
        (lambda state: state._replace(s=state.s[:, :-1]), ValueError, r"state\.z: expected shape"),
        (lambda state: state._replace(z=state.z[:1]), ValueError, r"state\.z: expected shape"),
        (lambda state: state._replace(z=state.z.astype(np.float32)), TypeError, r"state\.z: expected float64"),
        (lambda state: state._replace(log_scale=state.z), ValueError, "state: expected a state made for elu_plus_one"),
    ],
    "feature_map": [(lambda _: feature_maps.quadratic, TypeError, "feature_map: expected a FeatureMap")],
    "eps": [(lambda _: -1.0, ValueError, "eps: expected a finite number of at least 0")],
    "kernels": [(lambda _: np, TypeError, "kernels: expected a backend with the page 'linear'")],
}


@pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize(
    ("name", "change", "error", "message"), [(name, *case) for name, cases in STEP_ERRORS.items() for case in cases]
)
def test_a_step_names_bad_arguments(name, change, error, message, room, rng):
    """The usual arguments are told from others by a quicker test: it lets none of these through."""
    q, k, v = draw(rng, 1, 1)
    given = {"q_t": q[:, 0], "k_t": k[:, 0], "v_t": v[:, 0], "state": linear.init_state((2,), D, M)}
    options = {"feature_map": feature_maps.elu_plus_one, "eps": 1e-6, "kernels": room}
    linear.step(**{**given, **options})
    with pytest.raises(error, match=message):
        linear.step(**{**given, **options, name: change({**given, **options}[name])})


@pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: x.astype(np.int64), TypeError, "q_t: expected float32 or float64, got int64"),
        (lambda x: x[:0], ValueError, "q_t: every axis needs at least one entry"),
    ],
    ids=["whole numbers", "no heads"],
)
def test_a_step_refuses_what_is_wrong_everywhere(change, error, message, room, rng):
    """Arrays and state agree with one another."""
    arrays = [change(x[:, 0]) for x in draw(rng, 1, 1)]
    s, z, *_ = linear.init_state((2,), D, M)
    with pytest.raises(error, match=message):
        linear.step(*arrays, linear.State(change(s), change(z)), kernels=room)


# --- Line by line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_a_class_can_step_through_it(causal, rng):
    """From the call of the page to its end: in calls within ``attention``, and in all, NumPy's among them.

    Not the two named tuples, whose making has no text to step into. For jit: ``kernels/test_calls.py``.
    """
    q, k, v = draw(rng, 8, 8)
    call, files = partial(linear.forward.page, q, k, v, causal=causal), []
    call()
    sys.setprofile(lambda frame, event, _: files.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    folder = str(Path(linear.__file__).parent)
    assert 0 < sum(file.startswith(folder) for file in files) <= 25
    assert sum(not file.startswith("<") for file in files) <= 99


# --- States ---------------------------------------------------------------------------------------------------------


@every_map
@backends
def test_steps_are_blocks_are_one_pass(kernels, feature_map, rng):
    q, k, v = draw_rising(rng, 40, 40, feature_map)
    options = {"feature_map": feature_map, "eps": eps_of(feature_map), "kernels": kernels}
    expected, saved = linear.forward(q, k, v, causal=True, **options)
    tolerance = {"rtol": 1e-7, "atol": 1e-7} if feature_map.name in EITHER_SIGN else {"rtol": 1e-11, "atol": 1e-11}

    state = linear.init_state((2,), D, M, feature_map=feature_map)
    steps = []
    for i in range(40):
        out_i, state = linear.step(q[:, i], k[:, i], v[:, i], state, **options)
        steps.append(out_i)
    np.testing.assert_allclose(np.stack(steps, axis=-2), expected, **tolerance)
    assert_same_state(state, saved.state)

    state, blocks = None, []
    for rows in (slice(0, 17), slice(17, 18), slice(18, 40)):  # prefill, one token, a block
        out, block_saved = linear.forward(q[:, rows], k[:, rows], v[:, rows], causal=True, state=state, **options)
        state = block_saved.state
        blocks.append(out)
    np.testing.assert_allclose(np.concatenate(blocks, axis=-2), expected, **tolerance)
    assert_same_state(state, saved.state)
    assert not feature_maps.is_exponential(feature_map) or rises(saved) >= 1  # a test of the rescaled state too


def assert_same_state(state, expected):
    """The same sums, whatever the scale they are kept on."""
    assert (state.log_scale is None) == (expected.log_scale is None)
    factor = 1.0 if state.log_scale is None else np.exp(state.log_scale - expected.log_scale)
    np.testing.assert_allclose(factor * state.z, expected.z, rtol=1e-10, atol=1e-10)
    factor = factor if state.log_scale is None else factor[..., None]
    np.testing.assert_allclose(factor * state.s, expected.s, rtol=1e-10, atol=1e-10)


@every_map
def test_a_state_and_keys_that_all_queries_see_and_a_mask(feature_map, rng):
    """Continuing with N < L and masked keys is one pass over everything under the joint mask."""
    q, k, v = draw(rng, 4, 20)
    key_mask = rng.random((2, 20)) < 0.6
    options = {"feature_map": feature_map, "causal": True, "eps": eps_of(feature_map)}
    expected, _ = linear.forward(q, k, v, key_mask=key_mask, **options)
    state = linear.summarise(k[:, :9], v[:, :9], feature_map=feature_map, key_mask=key_mask[:, :9])
    out, _ = linear.forward(q, k[:, 9:], v[:, 9:], key_mask=key_mask[:, 9:], state=state, **options)
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-10)


class StateGradients(NamedTuple):
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    s: np.ndarray
    z: np.ndarray


def forward_from(q, k, v, s, z, *, log_scale, **options):
    """Output and final state, from a state given as arrays; the final one on a scale that does not depend on k."""
    state = linear.State(s, z, log_scale)
    out, saved = linear.forward(q, k, v, causal=True, state=state, **options)
    return np.concatenate([x.reshape(-1) for x in (out, saved.state.s, saved.state.z)]), saved


def backward_from(d_flat, saved):
    shapes = [x.shape for x in (saved.out, saved.state.s, saved.state.z)]
    parts = np.split(d_flat, np.cumsum([np.prod(shape) for shape in shapes[:2]]))
    d_out, d_s, d_z = (x.reshape(shape) for x, shape in zip(parts, shapes, strict=True))
    grads = linear.backward(d_out, saved, d_state=linear.State(d_s, d_z, None))
    return StateGradients(grads.q, grads.k, grads.v, grads.state.s, grads.state.z)


@every_map
@pytest.mark.parametrize(("n", "length"), [(3, 3), (2, 4)])
def test_gradients_of_and_through_the_state(feature_map, n, length, rng):
    q, k, v = draw(rng, n, length)
    width = feature_map.width(D)
    s, z = rng.standard_normal((2, width, M)), rng.uniform(1, 2, (2, width))
    log_scale = (
        np.full((2, 1), 6.0) if feature_maps.is_exponential(feature_map) else None
    )  # above all exponents here: it stays
    pair = partial(forward_from, feature_map=feature_map, log_scale=log_scale, eps=eps_of(feature_map))
    check_elementwise(pair, backward_from, q, k, v, s, z, rng=rng).assert_ok()


@every_map
@pytest.mark.parametrize("continue_with_fewer_queries", [False, True])
@backends
def test_back_propagation_through_pieces_is_that_of_the_whole(kernels, feature_map, continue_with_fewer_queries, rng):
    q, k, v = draw_rising(rng, 40, 40, feature_map)
    queries = slice(30, None) if continue_with_fewer_queries else slice(23, None)
    d_out = rng.standard_normal((2, 40, M))
    if continue_with_fewer_queries:
        d_out[:, 23:30] = 0  # those queries are left out below
    options = {"feature_map": feature_map, "causal": True, "eps": eps_of(feature_map), "kernels": kernels}
    _, saved = linear.forward(q, k, v, **options)
    whole = linear.backward(d_out, saved)

    empty = linear.init_state((2,), D, M, feature_map=feature_map)
    _, saved_a = linear.forward(q[:, :23], k[:, :23], v[:, :23], state=empty, **options)
    _, saved_b = linear.forward(q[:, queries], k[:, 23:], v[:, 23:], state=saved_a.state, **options)
    grads_b = linear.backward(d_out[:, queries], saved_b)
    grads_a = linear.backward(d_out[:, :23], saved_a, d_state=grads_b.state)
    truncated = linear.backward(d_out[:, :23], saved_a)

    scale = max(abs(x).max() for x in whole[:3])
    for name in ("q", "k", "v"):
        a, b, expected = getattr(grads_a, name), getattr(grads_b, name), getattr(whole, name)
        start = queries.start if name == "q" else 23
        tolerance = {"rtol": 1e-8, "atol": (1e-7 if feature_map.name in EITHER_SIGN else 1e-11) * scale}
        np.testing.assert_allclose(a, expected[:, :23], **tolerance)
        np.testing.assert_allclose(b, expected[:, start:], **tolerance)
    assert not np.allclose(truncated.k, grads_a.k, rtol=1e-8)


def test_without_a_state_there_is_no_gradient_of_one(rng):
    q, k, v = draw(rng, 4, 4)
    _, saved = linear.forward(q, k, v, causal=True)
    assert linear.backward(np.ones((2, 4, M)), saved).state is None


def test_gradient_through_the_state_of_a_pass_that_is_not_causal(rng):
    """An encoder's state may be read again: both readings add up."""
    q, k, v = draw(rng, 5, 7)
    both = np.concatenate([q, 2 * q], axis=-2)
    d_out = rng.standard_normal((2, 10, M))
    whole = linear.backward(d_out, linear.forward(both, k, v)[1])
    _, saved = linear.forward(q, k, v)
    _, reader = linear.forward(2 * q, k, v)
    d_n = d_out[:, 5:] / reader.d
    d_d = -(d_n * reader.out).sum(axis=-1, keepdims=True)
    d_state = linear.State(reader.phi_q.mT @ d_n, (reader.phi_q * d_d).sum(axis=-2))  # (5) and (7)
    grads = linear.backward(d_out[:, :5], saved, d_state=d_state)
    np.testing.assert_allclose(grads.k, whole.k, rtol=0, atol=1e-13)
    np.testing.assert_allclose(grads.v, whole.v, rtol=0, atol=1e-13)


# --- Combining states -----------------------------------------------------------------------------------------------


@every_map
def test_states_of_pieces_combine_in_any_grouping(feature_map, rng):
    _, k, v = draw_rising(rng, 30, 30, feature_map)
    a, b, c = (
        linear.summarise(k[:, rows], v[:, rows], feature_map=feature_map)
        for rows in (slice(0, 11), slice(11, 12), slice(12, 30))
    )
    whole = linear.summarise(k, v, feature_map=feature_map)
    left, right = linear.combine(linear.combine(a, b), c), linear.combine(a, linear.combine(b, c))
    assert_same_state(left, right)
    assert_same_state(left, whole)
    empty = linear.init_state((2,), D, M, feature_map=feature_map)
    for state in (linear.combine(empty, a), linear.combine(a, empty)):
        np.testing.assert_array_equal(state.s, a.s)
        np.testing.assert_array_equal(state.z, a.z)
    nothing = linear.combine(empty, empty)
    assert not nothing.s.any()
    assert not nothing.z.any()


@exponential_maps
def test_combined_states_hold_in_float32_at_scale_30(feature_map, rng):
    _, k, v = draw(rng, 30, 30, scale=30, dtype=np.float32)
    a, b = (linear.summarise(k[:, i], v[:, i], feature_map=feature_map) for i in (slice(0, 13), slice(13, 30)))
    whole, combined = linear.summarise(k, v, feature_map=feature_map), linear.combine(a, b)
    np.testing.assert_array_equal(combined.log_scale, whole.log_scale)
    tolerance = {"rtol": 1e-5, "atol": exponent_rounding(feature_map, k, k) * abs(whole.s).max()}
    np.testing.assert_allclose(combined.s, whole.s, **tolerance)
    np.testing.assert_allclose(combined.z, whole.z, **tolerance)


def piece_forward(q, k, v, d_out, state, options):
    """On one machine: its output, and what its queries ask of the state they started from."""
    out, saved = linear.forward(q, k, v, causal=True, state=state, **options)
    return out, linear.backward(d_out, saved).state


def piece_backward(q, k, v, d_out, state, d_last, options):
    """On one machine: its gradients, given that of the state it handed on."""
    _, saved = linear.forward(q, k, v, causal=True, state=state, **options)
    return linear.backward(d_out, saved, d_state=d_last)[:3]


@pytest.mark.parametrize("feature_map", [feature_maps.elu_plus_one, feature_maps.favor_positive(OMEGA)])
def test_a_sequence_shared_by_two_processes(feature_map, rng):
    """Three rounds of messages, each a state a piece: summaries, what is asked of the states, and the gradients."""
    q, k, v = draw_rising(rng, 60, 60, feature_map)
    d_out = rng.standard_normal((2, 60, M))
    options = {"feature_map": feature_map, "eps": eps_of(feature_map)}
    expected, saved = linear.forward(q, k, v, causal=True, **options)
    whole = linear.backward(d_out, saved)
    rows = [slice(0, 20), slice(20, 40), slice(40, 60)]
    pieces = [[x[:, r] for x in (q, k, v, d_out)] for r in rows]

    with Parallel(n_jobs=2) as parallel:
        summaries = parallel(delayed(linear.summarise)(p[1], p[2], feature_map=feature_map) for p in pieces)
        starts = [linear.init_state((2,), D, M, feature_map=feature_map)]
        for summary in summaries:
            starts.append(linear.combine(starts[-1], summary))
        outs, asked = zip(
            *parallel(delayed(piece_forward)(*p, start, options) for p, start in zip(pieces, starts, strict=False)),
            strict=True,
        )
        d_lasts = [linear.combine_gradients(asked[1], asked[2]), asked[2], None]  # of what all later pieces ask
        parts = parallel(
            delayed(piece_backward)(*p, start, d_last, options)
            for p, start, d_last in zip(pieces, starts, d_lasts, strict=False)
        )
    np.testing.assert_allclose(np.concatenate(outs, axis=-2), expected, rtol=0, atol=1e-11)
    for part, gradient in zip(zip(*parts, strict=True), whole[:3], strict=True):
        np.testing.assert_allclose(np.concatenate(part, axis=-2), gradient, rtol=0, atol=1e-11 * abs(gradient).max())


# --- What is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feature_map", [feature_maps.elu_plus_one, feature_maps.favor_positive(OMEGA)])
@pytest.mark.parametrize("causal", [False, True])
@backends
def test_saved_grows_by_rows_and_holds_no_state_a_position(kernels, feature_map, causal, rng):
    kept = []
    for n in (500, 1000):
        q, k, v = draw(rng, n, n, leading=())
        options = {"feature_map": feature_map, "causal": causal, "eps": eps_of(feature_map), "kernels": kernels}
        _, saved = linear.forward(q, k, v, **options)
        kept.append(kept_bytes(saved))
    width = feature_map.width(D)
    factors = width if causal and kernels is reference and feature_maps.is_exponential(feature_map) else 0
    rows = 2 * width + 2 * D + 2 * M + 1 + factors  # phi and inputs, v, out, denominator; of the page one f a rise
    assert kept[1] - kept[0] <= 8 * 500 * rows


def test_inputs_are_not_written_to(rng):
    q, k, v = draw(rng, 20, 30, scale=4.0)
    for feature_map in PLAIN + EXPONENTIAL:
        copies = [x.copy() for x in (q, k, v)]
        state = linear.summarise(k, v, feature_map=feature_map)
        sums = [x for x in state[:3] if x is not None]
        state_copies = [x.copy() for x in sums]
        options = {"feature_map": feature_map, "eps": eps_of(feature_map)}
        for causal in (False, True):
            out, saved = linear.forward(q, k, v, causal=causal, state=state if causal else None, **options)
            d_out = np.ones_like(out)
            first = linear.backward(d_out, saved)
            linear.combine(state, saved.state)
            linear.step(q[:, 0], k[:, 0], v[:, 0], saved.state, **options)
            for x, copy in zip((q, k, v, *sums), copies + state_copies, strict=True):
                np.testing.assert_array_equal(x, copy)
            np.testing.assert_array_equal(d_out, 1)
            np.testing.assert_array_equal(linear.backward(d_out, saved).q, first.q)


@pytest.mark.parametrize("leading", [(), (3,), (2, 1, 2)], ids=str)
def test_leading_axes(leading, rng):
    q, k, v = draw(rng, 5, 7, leading=leading)
    for causal in (False, True):
        out, saved = linear.forward(q, k, v, causal=causal)
        grads = linear.backward(np.ones_like(out), saved)
        assert [x.shape for x in (out, *grads[:3])] == [(*leading, 5, M), q.shape, k.shape, v.shape]
        for head in np.ndindex(leading):
            alone, _ = linear.forward(q[head], k[head], v[head], causal=causal)
            np.testing.assert_allclose(out[head], alone, rtol=0, atol=1e-14)


# --- Errors ---------------------------------------------------------------------------------------------------------


def call(function, rng=None, **changed):
    q, k, v = draw(np.random.default_rng(0), 4, 4)
    return function(**({"q": q, "k": k, "v": v} | changed))


ELU_STATE = linear.init_state((2,), D, M)
FAVOR = feature_maps.favor_positive(OMEGA)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"v": np.ones((2, 3, M))}, ValueError, r"v: expected shape \(..., L, M\)"),
        ({"q": np.ones((2, 5, D)), "causal": True}, ValueError, "q: causal attention is aligned at the end"),
        ({"key_mask": np.ones((2, 4))}, TypeError, "key_mask: expected an array of bool"),
        ({"feature_map": feature_maps.taylor_exp}, TypeError, "feature_map: expected a FeatureMap"),
        ({"feature_map": FAVOR}, ValueError, "eps: must be 0 with the exponential map favor_positive"),
        ({"eps": -1.0}, ValueError, "eps: expected a finite number of at least 0, got -1.0"),
        ({"eps": "0"}, TypeError, "eps: expected a number, got '0'"),
        ({"kernels": np}, TypeError, "kernels: expected a backend with the page 'linear'"),
        ({"state": ELU_STATE}, ValueError, "state: continuing from a state needs causal=True"),
        ({"state": (1, 2), "causal": True}, TypeError, "state: expected sums.State, got tuple"),
        (
            {"state": linear.init_state((2,), D + 1, M), "causal": True},
            ValueError,
            r"state.s: expected C = 4 for elu_plus_one, got shape \(2, 5, 3\)",
        ),
        (
            {"state": linear.init_state((2,), D, M, dtype=np.float32), "causal": True},
            TypeError,
            "state.s: expected float64",
        ),
        (
            {"state": ELU_STATE._replace(log_scale=np.zeros((2, 1))), "causal": True},
            ValueError,
            "state: expected a state made for elu_plus_one, got one with a log_scale",
        ),
        (
            {
                "state": linear.init_state((2,), D, M, feature_map=FAVOR)._replace(log_scale=np.zeros((2, 5))),
                "causal": True,
                "feature_map": FAVOR,
                "eps": 0,
            },
            ValueError,
            r"state.log_scale: expected shape \(..., 1\|C\) = \(2, 6\), got \(2, 5\)",
        ),
    ],
)
def test_bad_arguments_are_named(changed, error, message):
    with pytest.raises(error, match=message):
        call(linear.forward, **changed)


def test_bad_arguments_of_the_others_are_named(rng):
    q, k, v = draw(rng, 4, 4)
    out, saved = linear.forward(q, k, v, causal=True)
    with pytest.raises(ValueError, match=r"d_out: expected shape \(..., N, M\) = \(2, 4, 3\), got \(2, 3, 3\)"):
        linear.backward(out[:, :3], saved)
    with pytest.raises(ValueError, match=r"d_state\.s: expected shape \(..., C, M\) = \(2, 4, 3\), got \(2, 4, 4\)"):
        linear.backward(out, saved, d_state=linear.init_state((2,), D, M + 1))
    with pytest.raises(ValueError, match="key_width: expected an integer of at least 1, got 0"):
        linear.init_state((2,), 0, M)
    with pytest.raises(TypeError, match="dtype: expected float32 or float64, got int64"):
        linear.init_state((2,), D, M, dtype=np.int64)
    with pytest.raises(ValueError, match="v_t: expected shape"):
        linear.step(q[:, 0], k[:, 0], v[:1, 0], ELU_STATE)
    with pytest.raises(ValueError, match="state_b: expected a state of the same"):
        linear.combine(ELU_STATE, ELU_STATE._replace(log_scale=np.zeros((2, 1))))
    with pytest.raises(TypeError, match=r"state_a: expected sums\.State, got numpy.ndarray"):
        linear.combine(q, ELU_STATE)
    with pytest.raises(ValueError, match="eps: must be 0"):
        linear.matrix(q, k, feature_map=FAVOR)


def test_other_forms_name_bad_arguments_too(rng):
    q, k, v = draw(rng, 4, 4)
    narrow = linear.init_state((2,), D, M, feature_map=feature_maps.favor_positive(OMEGA[:1]))
    for feature_map, options, error, message in (
        (FAVOR, {"causal": True, "state": narrow}, ValueError, r"state\.s: expected C = 6 for favor_positive"),
        (feature_maps.elu_plus_one, {}, TypeError, "feature_map: expected an exponential one .*, got elu_plus_one"),
        (feature_maps.favor_positive, {}, TypeError, "feature_map: expected a FeatureMap"),
    ):
        with pytest.raises(error, match=f"^{message}"):
            exponential.forward(q, k, v, feature_map, **options)
    for feature_map, error, message in (
        (FAVOR, ValueError, "expected one that is no exponential .*, got favor_positive"),  # before eps
        ("relu", TypeError, "expected a FeatureMap"),
    ):
        with pytest.raises(error, match=f"^feature_map: {message}"):
            chunked_linear.forward(q, k, v, feature_map=feature_map)


@pytest.mark.parametrize("name", ["combine", "combine_gradients"])
def test_states_of_two_kinds_are_not_combined(name):
    plain = linear.init_state((2,), 3, 4)
    scaled = plain._replace(log_scale=np.zeros((2, 1)))
    for state_a, state_b in ((plain, scaled), (scaled, plain)):
        with pytest.raises(ValueError, match=r"state_b: expected a state of the same feature map as .*state_a"):
            getattr(linear, name)(state_a, state_b)
    with pytest.raises(TypeError, match=r"state_b: expected sums\.State, got softmax\.State"):
        getattr(linear, name)(plain, softmax.init_state((2,), 3, 4, capacity=5))


@pytest.mark.parametrize("page", [linear, chunked_linear])
def test_the_gradient_of_a_state_is_a_state(page, rng):
    out, saved = page.forward(*draw(rng, 3, 3), causal=True, state=linear.init_state((2,), D, M))
    for d_state, error, message in (
        (tuple(saved.state), TypeError, r"d_state: expected sums\.State, got tuple"),
        (
            saved.state._replace(log_scale=np.zeros((2, 1))),
            ValueError,
            "d_state: expected a state of the same feature map",
        ),
    ):
        with pytest.raises(error, match=message):
            page.backward(out, saved, d_state=d_state)


def test_a_query_that_sees_nothing_gets_0_whatever_its_gradient():
    q, k, v = np.ones((3, 2, 4))
    key_mask, d_out = np.zeros(2, dtype=bool), np.full((2, 4), np.nan)
    out, saved = linear.forward(q, k, v, feature_map=feature_maps.relu, key_mask=key_mask, eps=0)
    for x in (out, *linear.backward(d_out, saved)[:3]):
        assert not x.any()


def test_what_makes_a_state_wants_a_feature_map():
    for make in (
        lambda **phi: linear.init_state((2,), D, M, **phi),
        lambda **phi: linear.summarise(*np.ones((2, 3, D)), **phi),
    ):
        with pytest.raises(TypeError, match=r"^feature_map: expected a FeatureMap such as .*, got 'relu'"):
            make(feature_map="relu")


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
def test_a_query_without_features_gets_0_and_passes_nothing_on(kernels):
    """elu + 1 of -1000 is 0, and so is the denominator: whatever the values, and whatever the gradient there."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 8, 3))
    q[5], v[2] = -1000, np.inf
    out, _ = linear.forward(q, k, v, causal=True, eps=0.0, kernels=kernels)
    assert (out[5] == 0).all()
    state = linear.init_state((), 3, 3, kernels=kernels)
    for row in range(6):
        out_t, state = linear.step(q[row], k[row], v[row], state, eps=0.0, kernels=kernels)
    assert (out_t == 0).all()
    v[2], d_out = 1, rng.standard_normal((8, 3))
    _, saved = linear.forward(q, k, v, causal=True, eps=0.0, kernels=kernels)
    d_out[5] = 0
    expected = linear.backward(d_out, saved)
    d_out[5] = np.nan
    for got, wanted in zip(linear.backward(d_out, saved)[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(got, wanted)
