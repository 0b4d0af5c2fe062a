"""Feature maps: their gradients, the kernels they stand for, exactly or on average, and their range."""

import copy
import math
import pickle
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from linattn_ref.attention import feature_maps, linear, performer, rfa
from linattn_ref.attention.features import feature_maps_exact
from linattn_ref.gradcheck import check_elementwise

EPS64 = np.finfo(np.float64).eps
D = 4


def omega(m=6, d=D):
    return feature_maps.gaussian(m, d, np.random.default_rng(7))


MAPS = [
    feature_maps.elu_plus_one,
    feature_maps.relu,
    feature_maps.quadratic(0.7),
    feature_maps.quadratic(0.0),
    feature_maps.taylor_exp(0),
    feature_maps.taylor_exp(3),
    feature_maps.taylor_exp(4),
    feature_maps.taylor_gaussian(2, 1.3),
    feature_maps.taylor_gaussian(3),
    feature_maps.favor_trig(omega()),
    feature_maps.favor_positive(omega()),
    feature_maps.favor_hyperbolic(omega()),
    feature_maps.favor_relu(omega()),
    feature_maps.rfa_gaussian(omega()),
    feature_maps.rfa_arccos(omega()),
]
EXPONENTIAL = [feature_map for feature_map in MAPS if feature_maps.is_exponential(feature_map)]

FAVOR = [getattr(feature_maps, f"favor_{kind}") for kind in performer.KINDS]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


every_map = pytest.mark.parametrize("feature_map", MAPS, ids=lambda m: m.name)
every_exponential = pytest.mark.parametrize("feature_map", EXPONENTIAL, ids=lambda m: m.name)


@every_map
@pytest.mark.parametrize("leading", [(), (3,), (2, 1, 3)], ids=str)
def test_shapes_dtype_and_gradient(feature_map, leading, rng):
    x = rng.standard_normal((*leading, D))
    phi, _ = feature_map.forward(x)
    assert phi.shape == (*leading, feature_map.width(D))
    check_elementwise(feature_map.forward, feature_map.backward, x, rng=rng).assert_ok()

    small = x.astype(np.float32)
    before = small.copy()
    phi_small, saved = feature_map.forward(small)
    d_x = feature_map.backward(np.ones_like(phi_small), saved)
    assert phi_small.dtype == d_x.dtype == np.float32
    # |phi'| and phi are below 1e2 here: a few hundred roundings of float32 at most
    np.testing.assert_allclose(phi_small, phi, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(small, before)


def test_width_one(rng):
    x = rng.standard_normal((5, 1))
    for feature_map in (feature_maps.quadratic(1.0), feature_maps.taylor_exp(3), feature_maps.favor_trig(omega(3, 1))):
        assert feature_map.forward(x)[0].shape[-1] == feature_map.width(1)
        check_elementwise(feature_map.forward, feature_map.backward, x, rng=rng).assert_ok()


# --- Exact kernels --------------------------------------------------------------------------------------------------


def similarities(feature_map, x, y):
    """``phi(x_i) . phi(y_i)``, and a bound on its rounding error: C products and sums of entries this large."""
    phi_x, phi_y = feature_map.forward(x)[0], feature_map.forward(y)[0]
    rounding = 4 * phi_x.shape[-1] * EPS64 * (abs(phi_x) * abs(phi_y)).sum(axis=-1)
    return (phi_x * phi_y).sum(axis=-1), rounding


@pytest.mark.parametrize("c", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("d", [1, 2, 7])
def test_quadratic_is_exactly_its_kernel(c, d, rng):
    x, y = 3 * rng.standard_normal((2, 50, d))
    similarity, rounding = similarities(feature_maps.quadratic(c), x, y)
    assert (abs(similarity - ((x * y).sum(axis=-1) + c) ** 2) <= rounding).all()
    assert feature_maps.quadratic(c).width(d) == 1 + d + d * (d + 1) // 2


def series(t, order):
    return sum(t**p / math.factorial(p) for p in range(order + 1))


def remainder(t, order):
    """Lagrange's bound of ``|exp(t) - series(t)|``."""
    return abs(t) ** (order + 1) / math.factorial(order + 1) * np.maximum(1, np.exp(t))


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("d", [1, 3])
def test_taylor_is_the_series_and_as_close_to_exp_as_its_remainder(order, d, rng):
    x, y = rng.standard_normal((2, 50, d))
    t = (x * y).sum(axis=-1)
    similarity, rounding = similarities(feature_maps.taylor_exp(order), x, y)
    assert (abs(similarity - series(t, order)) <= rounding).all()
    assert (abs(similarity - np.exp(t)) <= remainder(t, order) + rounding).all()
    assert feature_maps.taylor_exp(order).width(d) == sum(d**p for p in range(order + 1))


@pytest.mark.parametrize("sigma", [0.8, 2.0])
@pytest.mark.parametrize("order", [0, 1, 4, 8])
def test_gaussian_kernel_by_taylor_features(order, sigma, rng):
    x, y = rng.standard_normal((2, 50, 2))
    similarity, rounding = similarities(feature_maps.taylor_gaussian(order, sigma), x, y)
    kernel = np.exp(-((x - y) ** 2).sum(axis=-1) / (2 * sigma**2))
    damping = np.exp(-(x**2 + y**2).sum(axis=-1) / (2 * sigma**2))
    bound = damping * remainder((x * y).sum(axis=-1) / sigma**2, order)
    assert (abs(similarity - kernel) <= bound + rounding).all()


def test_elu_plus_one_at_its_seam_and_far_out():
    x = np.array([-1e4, -30.0, -1e-20, 0.0, 1e-20, 2.0, 1e4])
    phi, saved = feature_maps.elu_plus_one.forward(x)
    np.testing.assert_array_equal(phi, np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))))
    assert saved is phi  # nothing but the features is kept
    np.testing.assert_array_equal(
        feature_maps.elu_plus_one.backward(np.ones(7), saved), [0, np.exp(-30.0), 1, 1, 1, 1, 1]
    )


# --- Kernels on average ---------------------------------------------------------------------------------------------


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def arccos_kernel(x, y):
    angle = np.arccos(np.clip((unit(x) * unit(y)).sum(axis=-1), -1, 1))
    return (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)


def exponential_kernel(x, y):
    return np.exp((x * y).sum(axis=-1))


def gaussian_kernel_of_unit_vectors(x, y):
    return np.exp(-((unit(x) - unit(y)) ** 2).sum(axis=-1) / 2)


@pytest.mark.parametrize(
    ("make", "kernel"),
    [
        (feature_maps.favor_trig, exponential_kernel),
        (feature_maps.favor_positive, exponential_kernel),
        (feature_maps.favor_hyperbolic, exponential_kernel),
        (feature_maps.rfa_gaussian, gaussian_kernel_of_unit_vectors),
        (feature_maps.rfa_arccos, arccos_kernel),
    ],
)
def test_random_features_estimate_their_kernel_without_bias(make, kernel, rng):
    m = 20_000
    x, y = rng.standard_normal((2, 10, D)) / 2
    feature_map = make(feature_maps.gaussian(m, D, rng))
    products = feature_map.forward(x)[0] * feature_map.forward(y)[0]  # (10, m or 2m)
    if products.shape[-1] == 2 * m:
        products = products[:, :m] + products[:, m:]  # the two features of one row of omega go together
    deviation = np.sqrt(m) * products.std(axis=-1)  # of their sum
    assert (abs(products.sum(axis=-1) - kernel(x, y)) < 5 * deviation).all()
    assert (deviation < 0.2 * kernel(x, y)).all()  # so that the line above says something


# --- Non-negativity -------------------------------------------------------------------------------------------------


def differently_long(rng, n=400):
    return rng.standard_normal((n, D)) * rng.choice([0.1, 1.0, 3.0], size=(n, 1))


@pytest.mark.parametrize("feature_map", [m for m in MAPS if m.positive], ids=lambda m: m.name)
def test_no_similarity_is_negative_where_the_map_claims_it(feature_map, rng):
    x, y = differently_long(rng), differently_long(rng)
    phi = feature_map.forward(x)[0]
    if feature_map.name.startswith(("quadratic", "taylor")):  # a positive kernel of features of either sign
        similarity, rounding = similarities(feature_map, x, y)
        assert (similarity >= -rounding).all()
    else:
        assert (phi >= 0).all()


@pytest.mark.parametrize("feature_map", [m for m in MAPS if not m.positive], ids=lambda m: m.name)
def test_some_similarity_is_negative_where_the_map_does_not(feature_map, rng):
    similarity, rounding = similarities(feature_map, differently_long(rng), differently_long(rng))
    assert (similarity < -rounding).any()


# --- Range ----------------------------------------------------------------------------------------------------------


@every_exponential
def test_the_split_is_the_map(feature_map, rng):
    x = rng.standard_normal((5, D))
    exponent, factor = feature_map.split(x)
    assert exponent.shape[-1] in (1, feature_map.width(D))
    phi = np.exp(exponent) * (1 if factor is None else factor)
    np.testing.assert_array_equal(phi, feature_map.forward(x)[0])


@every_exponential
def test_the_gradient_takes_scaled_features(feature_map, rng):
    x, d_phi = rng.standard_normal((5, D)), rng.standard_normal((5, feature_map.width(D)))
    phi, _ = feature_map.forward(x)
    scaled = feature_map.backward(d_phi, (x, phi / 1024))
    np.testing.assert_array_equal(1024 * scaled, feature_map.backward(d_phi, (x, phi)))  # a power of 2: no rounding


@pytest.mark.parametrize("make", [feature_maps.rfa_gaussian, feature_maps.rfa_arccos])
@pytest.mark.parametrize("length", [1e-30, 1e-3, 1e30])
def test_rfa_maps_see_the_direction_only(make, length, rng):
    feature_map, x = make(omega()), rng.standard_normal((5, D)).astype(np.float32)
    phi, saved = feature_map.forward(x)
    far, far_saved = feature_map.forward(np.float32(length) * x)
    np.testing.assert_allclose(far, phi, atol=1e-6)  # a few roundings of float32, of numbers up to 3
    d_phi = np.ones_like(phi)
    near_gradient, far_gradient = feature_map.backward(d_phi, saved), feature_map.backward(d_phi, far_saved)
    np.testing.assert_allclose(far_gradient * np.float32(length), near_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [feature_maps.rfa_gaussian, feature_maps.rfa_arccos])
def test_the_zero_vector_stays_zero(make):
    feature_map = make(omega())
    x = np.zeros((2, D))
    phi, saved = feature_map.forward(x)
    assert np.isfinite(phi).all()
    np.testing.assert_array_equal(feature_map.backward(np.ones_like(phi), saved), x)


# --- Directions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 4, 6, 11])
@pytest.mark.parametrize("regular", [False, True])
def test_orthogonal_in_blocks(m, regular, rng):
    directions = feature_maps.orthogonal_gaussian(m, D, rng, regular)
    assert directions.shape == (m, D)
    for start in range(0, m, D):
        block = unit(directions[start : start + D])
        np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=8 * D * EPS64)
    if regular:
        np.testing.assert_allclose(np.linalg.norm(directions, axis=-1), math.sqrt(D), rtol=8 * D * EPS64)


def test_orthogonal_rows_are_uniformly_distributed(rng):
    """Without the signs of R's diagonal the mean of ``omega_11`` is far from 0, and the kernel estimate biased."""
    draws = np.stack([feature_maps.orthogonal_gaussian(D, D, rng) for _ in range(2000)])  # (2000, D, D)
    standard_error = draws.std(axis=0) / math.sqrt(len(draws))
    assert (abs(draws.mean(axis=0)) < 5 * standard_error).all()
    x, y = np.array([1.0, 0.3, -0.2, 0.0]), np.array([0.6, -0.5, 0.1, 0.2])
    estimates = np.empty(len(draws))
    for i, directions in enumerate(draws):
        feature_map = feature_maps.favor_positive(directions)
        estimates[i] = feature_map.forward(x)[0] @ feature_map.forward(y)[0]
    assert abs(estimates.mean() - np.exp(x @ y)) < 5 * estimates.std() / math.sqrt(len(draws))


def test_lengths_of_orthogonal_rows_are_those_of_gaussian_ones(rng):
    squares = (feature_maps.orthogonal_gaussian(8000, D, rng) ** 2).sum(axis=-1)  # chi-squared: mean D, variance 2D
    assert abs(squares.mean() - D) < 5 * math.sqrt(2 * D / 8000)
    assert abs(squares.var() - 2 * D) < 5 * math.sqrt((48 * D + 8 * D**2) / 8000)  # from its fourth moment


def test_same_generator_same_directions():
    for draw in (feature_maps.gaussian, feature_maps.orthogonal_gaussian):
        first, second = (draw(6, D, np.random.default_rng(3)) for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert draw(6, D, np.random.default_rng(3), dtype=np.float32).dtype == np.float32


# --- Errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: feature_maps.quadratic(-1.0), ValueError, "c: expected a number of at least 0, got -1.0"),
        (lambda: feature_maps.quadratic("1"), TypeError, "c: expected a number, got '1'"),
        (lambda: feature_maps.quadratic(math.nan), ValueError, "c: expected a finite number, got nan"),
        (lambda: feature_maps.quadratic(10**400), ValueError, "c: expected a finite number, got 1000"),
        (lambda: feature_maps.taylor_exp(-1), ValueError, "order: expected an integer of at least 0, got -1"),
        (lambda: feature_maps.taylor_exp(1.5), ValueError, "order: expected an integer of at least 0, got 1.5"),
        (lambda: feature_maps.taylor_gaussian(2, 0.0), ValueError, "sigma: expected a number above 0, got 0.0"),
        (lambda: feature_maps.favor_positive(np.ones(3)), ValueError, "omega: expected at least 2 axes"),
        (lambda: feature_maps.favor_trig(np.ones((1, 2, 3))), ValueError, r"omega: expected shape \(m, D\)"),
        (lambda: feature_maps.rfa_arccos(np.ones((2, 3), int)), TypeError, "omega: expected float32 or float64"),
        (
            lambda: feature_maps.favor_relu(omega()).forward(np.ones((2, D + 1))),
            ValueError,
            r"omega: expected one column per entry of x, D = 5, got shape \(6, 4\)",
        ),
        (lambda: feature_maps.gaussian(0, 3, np.random.default_rng()), ValueError, "m: expected an integer"),
        (lambda: feature_maps.orthogonal_gaussian(3, 0, np.random.default_rng()), ValueError, "D: expected an integer"),
        (lambda: feature_maps.gaussian(3, 3, 0), TypeError, "rng: expected a numpy.random.Generator, got int"),
        *(
            (partial(draw, 2, 2, np.random.default_rng(), dtype=int), TypeError, "dtype: expected float32 or float64")
            for draw in (feature_maps.gaussian, feature_maps.orthogonal_gaussian)
        ),
        *(
            (partial(make, omega(), scale), error, f"scale: expected a {expected}, got ")
            for make in FAVOR
            for scale, error, expected in (("2", TypeError, "number"), (math.nan, ValueError, "finite number"))
        ),
        (
            lambda: feature_maps.check_feature_map(feature_maps.quadratic),
            TypeError,
            "feature_map: expected a FeatureMap such as feature_maps.elu_plus_one",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(("order", "error"), [(52, MemoryError), (70, ValueError)])
@pytest.mark.parametrize("make", [feature_maps.taylor_exp, feature_maps.taylor_gaussian])
def test_too_many_features_are_an_error_at_once(monkeypatch, order, error, make):
    """Before the powers are computed, of which all but the last few fit."""
    monkeypatch.setattr(feature_maps_exact, "_tensor_powers", None)
    with pytest.raises(error, match="Unable to allocate" if error is MemoryError else "^order: .* with order 70 and D"):
        make(order).forward(np.ones((1, 2)))


@every_map
def test_maps_are_data(feature_map, rng):
    """They travel to other processes, and are copied."""
    x = rng.standard_normal((3, D))
    phi, saved = feature_map.forward(x)
    for there in (pickle.loads(pickle.dumps(feature_map)), copy.deepcopy(feature_map)):
        assert type(there) is type(feature_map)
        assert there.name == feature_map.name
        np.testing.assert_array_equal(there.forward(x)[0], phi)
        np.testing.assert_array_equal(there.backward(phi, saved), feature_map.backward(phi, saved))


@pytest.mark.parametrize("make", [feature_maps.favor_positive, feature_maps.favor_relu, feature_maps.rfa_gaussian])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_directions_are_finite(make, wrong):
    directions = omega()
    directions[2, 1] = wrong
    for recurrent in (performer, rfa):
        with pytest.raises(ValueError, match=r"^omega: expected finite numbers"):
            recurrent.init_state((), 2, 2, np.full((3, 2), wrong))
    with pytest.raises(ValueError, match=rf"^omega: expected finite numbers, got {wrong} among them"):
        make(directions)
    x = np.ones((2, 5, D))
    for module in (performer, rfa):
        with pytest.raises(ValueError, match=r"^omega: expected finite numbers"):
            module.forward(x, x, x, directions)
    make(np.full((4, D), 1e308))  # whose sum is infinite


def test_a_map_of_ones_own(rng):
    """Any object with the members: here the features are squares."""
    squares = SimpleNamespace(
        name="squares",
        positive=True,
        width=lambda d: d,
        forward=lambda x: (x**2, x),
        backward=lambda d_phi, x: 2 * x * d_phi,
    )
    q, k, v = rng.standard_normal((3, 2, 7, D))
    for causal in (False, True):
        forward = partial(linear.forward, feature_map=squares, causal=causal)
        check_elementwise(forward, linear.backward, q, k, v, rng=rng).assert_ok()
    with pytest.raises(TypeError, match=r"^feature_map: expected a FeatureMap .*name, positive, width, forward, back"):
        linear.forward(q, k, v, feature_map=SimpleNamespace(forward=squares.forward))
