"""Random features: the closed forms beside Monte Carlo, with intervals that miss the truth with probability 1e-4."""

import math

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from linattn_ref.attention import feature_maps
from linattn_ref.theory import random_features as rf

CONFIDENCE = 1 - 1e-4
D = 4
X, Y = np.array([0.5, 0.1, -0.3, 0.2]), np.array([-0.1, 0.4, 0.2, 0.3])  # |x-y|^2 = 0.71, |x+y|^2 = 0.67
kinds = pytest.mark.parametrize("kind", rf.UNBIASED)


def pair(length, angle, width=D):
    """Two vectors of one length at an angle."""
    x, y = np.zeros((2, width))
    x[0], y[0], y[1] = length, length * math.cos(angle), length * math.sin(angle)
    return x, y


@pytest.fixture(scope="module")
def drawn_once():
    """Directions that an equal generator has drawn before are those, for other features too."""
    found, draw = {}, rf.draw_directions

    def known(m, width, trials, rng, **how):
        key = m, width, trials, str(rng.bit_generator.state), str(how)
        if key not in found:
            found[key] = draw(m, width, trials, rng, **how), rng.bit_generator.state
        directions, rng.bit_generator.state = found[key]
        return directions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rf, "draw_directions", known)
        yield


# --- The softmax kernel ---------------------------------------------------------------------------------------------


@kinds
@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize(("m", "orthogonal"), [(1, False), (5, False), (3, True), (6, True)])
def test_closed_form_is_what_monte_carlo_finds(kind, m, orthogonal):
    """The interval is narrow enough to tell independent from orthogonal, and a factor of 2 from none."""
    rng = np.random.default_rng(m)
    errors = rf.squared_errors(kind, X, Y, m, trials=6000 if orthogonal else 20_000, rng=rng, orthogonal=orthogonal)
    found = rf.mean_of(errors, confidence=CONFIDENCE)
    stated = rf.mse(kind, X, Y, m, orthogonal=orthogonal)
    assert found.low <= stated <= found.high
    assert found.high - found.low < 0.6 * stated


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.parametrize("kind", ["trig", "hyperbolic"])
def test_monte_carlo_tells_orthogonal_from_independent(kind):
    """The other closed form lies outside of the interval: the test above could fail."""
    rng = np.random.default_rng(0)
    errors = rf.squared_errors(kind, X, Y, D, trials=8000, rng=rng, orthogonal=True)
    assert rf.mse(kind, X, Y, D) > rf.mean_of(errors, confidence=CONFIDENCE).high


def test_closed_forms_as_the_paper_prints_them():
    """Choromanski et al. (2021), Lemma 2; and Lemma 1's (1 + exp(-..))-factor of the hyperbolic ones."""
    m, sm = 7, math.exp(X @ Y)
    plus, minus = ((X + Y) ** 2).sum(), ((X - Y) ** 2).sum()
    trig = math.exp(plus) * sm**-2 * (1 - math.exp(-minus)) ** 2 / (2 * m)
    positive = math.exp(plus) * sm**2 * (1 - math.exp(-plus)) / m
    stated = {"trig": trig, "positive": positive, "hyperbolic": (1 - math.exp(-plus)) * positive / 2}
    for kind, expected in stated.items():
        assert rf.mse(kind, X, Y, m) == pytest.approx(expected, rel=1e-13)


@kinds
def test_relative_error_is_a_function_of_one_distance(kind):
    """Turning the pair, or moving it along so that the distance stays, changes nothing."""
    rng = np.random.default_rng(1)
    s, other = rng.standard_normal((2, 6, D))
    sign = -1 if kind == "trig" else 1
    x = (s + other) / 2
    y = sign * (s - other) / 2  # x - y or x + y is s, whatever other is
    for orthogonal in (False, True):
        found = rf.relative_mse(kind, x, y, 5, orthogonal=orthogonal)
        np.testing.assert_allclose(found, rf.relative_mse(kind, s, np.zeros_like(s), 5, orthogonal=orthogonal))


@pytest.mark.parametrize(("kind", "distance"), [("positive", 0.0), ("hyperbolic", 0.1), ("trig", 0.1)])
def test_relative_error_where_the_kernel_is_no_float(kind, distance):
    x = np.full(4, 15.0)
    y = (x + distance / 2) * (1 if kind == "trig" else -1)
    square, of_one = distance**2, {"positive": 1, "hyperbolic": -np.expm1(-(distance**2)) / 2}
    expected = np.expm1(square) * of_one.get(kind, of_one["hyperbolic"]) / 4
    assert rf.relative_mse(kind, x, y, 4) == pytest.approx(expected, rel=1e-9)
    assert rf.relative_mse(kind, x, y, 4, orthogonal=True) <= expected


def test_trig_fails_where_the_kernel_is_small_and_positive_where_it_is_large():
    angles = np.linspace(0, math.pi, 9)
    x, y = (np.stack(vectors) for vectors in zip(*(pair(1.5, angle) for angle in angles), strict=True))
    kernel = rf.softmax_kernel(x, y)
    trig, positive, hyperbolic = (rf.relative_mse(kind, x, y, 64) for kind in rf.UNBIASED)
    assert (np.diff(kernel) < 0).all()
    assert (np.diff(trig) > 0).all()
    assert (np.diff(positive) < 0).all()
    assert (hyperbolic <= positive).all()
    assert trig[0] == 0  # a query's own key: cos(0)
    assert positive[-1] < 1e-12  # y = -x: every feature has the same product
    assert trig[-1] > 60
    # of either sign: almost half of the estimates of the smallest weight are negative
    directions = rf.draw_directions(64, D, 2000, np.random.default_rng(2))
    assert 0.4 < (rf.estimates("trig", x[-1], y[-1], directions) < 0).mean() < 0.5
    assert (rf.estimates("positive", x[-1], y[-1], directions) > 0).all()


# --- Orthogonal directions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 4, 16, 64])
def test_orthogonal_is_never_worse_for_positive_features(width):
    """And better by at least what Theorem 2 says, ``2 (m-1) / (m (D+2)) (SM - exp(-(|x|^2+|y|^2)/2))^2``."""
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 200, width)) * rng.uniform(0.1, 2, (200, 1)) / math.sqrt(width)
    for m in {1, max(1, width // 2), width}:
        gain = rf.mse("positive", x, y, m) - rf.mse("positive", x, y, m, orthogonal=True)
        both = ((x**2).sum(axis=-1) + (y**2).sum(axis=-1)) / 2
        theorem = 2 * (m - 1) / (m * (width + 2)) * (rf.softmax_kernel(x, y) - np.exp(-both)) ** 2
        rounding = 1e-12 * rf.mse("positive", x, y, m)  # hyp1f1 is good to some 1e-14
        assert (gain >= theorem - rounding).all()
        hyperbolic = rf.mse("hyperbolic", x, y, m) - rf.mse("hyperbolic", x, y, m, orthogonal=True)
        np.testing.assert_allclose(hyperbolic, gain, atol=rounding.max())


@pytest.mark.parametrize("kind", ["trig", "hyperbolic"])
@pytest.mark.parametrize("length", [1e-5, 1e-3, 0.01])
def test_the_orthogonal_error_of_near_points_has_all_digits(kind, length):
    """By the first terms of (4), (6) and (8): ``|s|^4 / 2m`` and ``|s|^4 / (2D + 4)``, of which a part is left."""
    x, m = np.r_[length, np.zeros(63)], 64
    expected = length**4 / 2 * (1 / m - m * (m - 1) / m**2 / 66)
    found = rf.relative_mse(kind, x, np.zeros(64), m, orthogonal=True)
    assert found == pytest.approx(expected, rel=length**2 + 1e-12, abs=0)


def test_the_gain_is_one_where_its_two_formulas_meet():
    for edge in (-0.05, 0.05):
        inside, outside = (rf.orthogonal_gain(np.array(edge * (1 + to)), 6) for to in (-1e-12, 1e-12))
        assert inside == pytest.approx(outside, rel=1e-10, abs=0)


def test_orthogonal_trig_features_can_be_worse():
    near, far = pair(0.5, math.pi), pair(2.0, math.pi)  # |x - y| = 1 and 4
    assert rf.mse("trig", *near, D, orthogonal=True) < rf.mse("trig", *near, D)
    assert rf.mse("trig", *far, D, orthogonal=True) > rf.mse("trig", *far, D)


def test_blocks_are_independent_of_each_other():
    for m in (1, 3, 4, 5, 9):
        blocks = np.arange(m) // D
        same = (blocks[:, None] == blocks) & ~np.eye(m, dtype=bool)
        assert rf.pairs_in_blocks(m, D) == same.sum()


def test_product_of_orthogonal_directions_term_by_term():
    """1F1(D; D/2; t) against its definition, and two features of one block against both."""
    t = ((X + Y) ** 2).sum() / 2
    terms = [
        math.prod(range(D, D + n)) / math.prod(D / 2 + i for i in range(n)) * t**n / math.factorial(n)
        for n in range(30)
    ]
    assert rf.product_of_orthogonal(t, D) == pytest.approx(sum(terms), rel=1e-14)
    directions = rf.draw_directions(2, D, 10_000, np.random.default_rng(4), orthogonal=True)
    products = np.cosh(directions @ (X + Y)).prod(axis=-1)  # the same mean, less spread
    found = rf.mean_of(products, confidence=CONFIDENCE)
    assert found.low <= sum(terms) <= found.high
    assert math.exp(2 * t) > found.high


def test_regular_lengths_are_biased():
    directions = rf.draw_directions(D, D, 10_000, np.random.default_rng(5), orthogonal=True, regular=True)
    for kind in ("positive", "hyperbolic"):
        found = rf.mean_of(rf.estimates(kind, X, Y, directions), confidence=CONFIDENCE)
        assert found.low <= rf.regular_mean(X, Y) <= found.high
        assert found.high < rf.softmax_kernel(X, Y)
    wide_x, wide_y = (np.concatenate([x, np.zeros(60)]) for x in (X, Y))
    bias, wide_bias = (rf.regular_mean(x, y) / rf.softmax_kernel(x, y) - 1 for x, y in ((X, Y), (wide_x, wide_y)))
    # the first term in which (9) and exp(|s|^2/2) differ is -|s|^4 / 4 (D+2)
    assert wide_bias / bias == pytest.approx((D + 2) / (64 + 2), rel=0.15)


@pytest.mark.parametrize(("width", "length"), [(2048, 50.0), (4096, 12.0), (512, 30.0), (64, 100.0), (3, 0.0)])
def test_regular_lengths_where_a_factor_is_beyond_float64(width, length):
    """(9) by its series, in logarithms: 0F1(; b; w) is the sum of w^n / ((b)_n n!)."""
    x, _ = pair(length / 2, 0.0, width)
    b, n = width / 2, np.arange(5000)
    with np.errstate(divide="ignore", invalid="ignore"):  # log of length 0
        powers = np.where(n == 0, 0, n * np.log(width * length**2 / 4))
    terms = powers - gammaln(b + n) + gammaln(b) - gammaln(n + 1)
    assert rf.regular_mean(x, x) == pytest.approx(np.exp(logsumexp(terms) - length**2 / 4), rel=1e-9)


@kinds
@pytest.mark.parametrize("length", [27.0, 38.0, 40.0, 200.0])
def test_an_error_beyond_float64_is_infinite_and_not_nan(kind, length):
    x, y = pair(length / 2, math.pi if kind == "trig" else 0.0)
    with np.errstate(over="ignore"):
        for orthogonal in (False, True):
            assert rf.relative_mse(kind, x, y, 16, orthogonal=orthogonal) == math.inf


def haar_or_not(signs, draws, rng):
    """Blocks as ``orthogonal_gaussian`` makes them, with or without the signs of R's diagonal."""
    q, r = np.linalg.qr(rng.standard_normal((draws, D, D)))
    return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[:, None, :] if signs else q


def test_orthogonal_blocks_are_haar_distributed():
    """The trace of a uniform orthogonal matrix has the moments 0, 1, 0, 3 of a normal variable (Diaconis, Shahshahani).

    Without the signs of R's diagonal it has not, and the estimate of the kernel is off by a third.
    """
    rng = np.random.default_rng(6)
    directions = rf.draw_directions(D, D, 8000, rng, orthogonal=True, regular=True) / math.sqrt(D)
    for block, uniform in ((directions, True), (haar_or_not(False, 8000, rng), False)):
        trace = np.trace(block, axis1=-2, axis2=-1)
        inside = []
        for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
            found = rf.mean_of(trace**power, confidence=CONFIDENCE)
            inside.append(found.low <= moment <= found.high)
        assert all(inside) == uniform

    x, y = np.zeros((2, D))
    x[0], y[0] = 1.0, 0.0  # exp(x.y) = 1; without the signs the first entry of q is never positive
    lengths = np.sqrt(rng.chisquare(D, (20_000, D, 1)))
    means = []
    for signs in (True, False):
        found = rf.mean_of(rf.estimates("positive", x, y, lengths * haar_or_not(signs, 20_000, rng)))
        means.append(found.mean)
    assert means[0] == pytest.approx(1, abs=0.03)
    assert abs(means[1] - 1) > 0.15


def test_row_lengths_follow_both_rules():
    rng = np.random.default_rng(7)
    squares = (rf.draw_directions(D, D, 5000, rng, orthogonal=True) ** 2).sum(axis=-1).ravel()
    found = rf.mean_of(squares, confidence=CONFIDENCE)  # chi-squared with D degrees of freedom
    assert found.low <= D <= found.high
    assert squares.var() == pytest.approx(2 * D, rel=0.1)
    regular = rf.draw_directions(6, D, 10, rng, orthogonal=True, regular=True)
    np.testing.assert_allclose((regular**2).sum(axis=-1), D, rtol=1e-13)


# --- Kernels of x - y -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", rf.KERNELS)
def test_bochner(name):
    """Unbiased, and with the mean squared error of (2), for every kernel and its distribution."""
    kernel, rng, m, trials = rf.KERNELS[name], np.random.default_rng(8), 8, 20_000
    for delta in (np.array([0.3, -0.2, 0.1]), np.array([1.0, 2.0, -0.5])):
        omega = kernel.draw(trials * m, 3, rng).reshape(trials, m, 3)
        x = rng.standard_normal(3)
        phi_x, phi_y = (np.stack([fn(omega @ z) for fn in (np.sin, np.cos)]) for z in (x, x - delta))
        found = (phi_x * phi_y).sum(axis=(0, -1)) / m  # (trials,)
        mean = rf.mean_of(found, confidence=CONFIDENCE)
        assert mean.low <= kernel.kappa(delta) <= mean.high
        error = rf.mean_of((found - kernel.kappa(delta)) ** 2, confidence=CONFIDENCE)
        assert error.low <= rf.fourier_mse(kernel, delta, m) <= error.high
        assert error.high - error.low < 0.2 * error.mean

        one = kernel.draw(m, 3, np.random.default_rng(9))
        product = rf.fourier_features(x, one) @ rf.fourier_features(x - delta, one)
        assert product == pytest.approx(np.cos(one @ delta).mean(), abs=1e-14)


def test_gaussian_features_are_trig_ones_and_their_error_is_lemma_2():
    omega = feature_maps.gaussian(6, D, np.random.default_rng(10))
    phi, _ = feature_maps.favor_trig(omega).forward(X)
    np.testing.assert_allclose(phi, math.exp(X @ X / 2) * rf.fourier_features(X, omega), rtol=1e-13)
    scale = math.exp(X @ X + Y @ Y)
    assert scale * rf.fourier_mse(rf.KERNELS["gaussian"], X - Y, 6) == pytest.approx(rf.mse("trig", X, Y, 6), rel=1e-12)


def test_not_every_kernel_is_positive():
    """A semi-definite kernel may be negative, and then its estimate has to be: no weights of an average."""
    assert rf.KERNELS["sinc"].kappa(np.array([4.0])) < 0
    points = np.random.default_rng(11).standard_normal((30, 2))
    for kernel in rf.KERNELS.values():
        eigenvalues = np.linalg.eigvalsh(kernel.kappa(points[:, None] - points))
        assert eigenvalues[0] > -1e-13 * eigenvalues[-1]


# --- ReLU, and bad arguments ----------------------------------------------------------------------------------------


def test_relu_features_estimate_the_arc_cosine_kernel():
    """Not softmax's: the error against ``exp(x.y)`` does not fall with ``m``."""
    angle = math.acos(X @ Y / np.linalg.norm(X) / np.linalg.norm(Y))
    kernel = (
        np.linalg.norm(X) * np.linalg.norm(Y) * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / 2 / math.pi
    )
    eps = feature_maps.favor_relu(np.zeros((1, D))).forward(X)[0].item()  # what is added to each feature
    kernel += eps * (np.linalg.norm(X) + np.linalg.norm(Y)) / math.sqrt(2 * math.pi) + eps**2
    directions = rf.draw_directions(16, D, 5000, np.random.default_rng(12))
    found = rf.mean_of(rf.estimates("relu", X, Y, directions), confidence=CONFIDENCE)
    assert found.low <= kernel <= found.high
    assert found.high < rf.softmax_kernel(X, Y) / 4


def test_blocks_of_trials_change_nothing(monkeypatch):
    """Of independent directions, which are drawn one after the other."""
    whole = rf.squared_errors("positive", X, Y, 3, trials=20, rng=np.random.default_rng(13))
    monkeypatch.setattr(rf, "BLOCK", 3 * D * 7)
    by_sevens = rf.squared_errors("positive", X, Y, 3, trials=20, rng=np.random.default_rng(13))
    np.testing.assert_allclose(by_sevens, whole, rtol=1e-9)  # another order of sums, then a difference


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rf.mse("relu", X, Y, 3), ValueError, "kind: expected one of trig, positive, hyperbolic, got 'relu'"),
        (lambda: rf.mse("trig", X, Y, 0), ValueError, "m: expected an integer of at least 1, got 0"),
        (lambda: rf.mse("trig", [1.0], Y, 2), TypeError, "x: expected a numpy.ndarray, got list"),
        (lambda: rf.fourier_mse(rf.KERNELS["sinc"], X, 0), ValueError, "m: expected an integer of at least 1"),
        (lambda: rf.draw_directions(2, D, 0, np.random.default_rng()), ValueError, "trials: expected an integer"),
        (lambda: rf.mse("trig", X, Y[:1], 2), ValueError, "y: expected 4 columns like x, got 1"),
        (lambda: rf.pairs_in_blocks(3, 0), ValueError, "width: expected an integer of at least 1, got 0"),
        (lambda: rf.squared_errors("trig", X, Y, 0, trials=1, rng=np.random.default_rng()), ValueError, "m: expected"),
        (lambda: rf.squared_errors("trig", X, Y, 1, trials=0, rng=np.random.default_rng()), ValueError, "trials: exp"),
        (lambda: rf.mean_of(np.ones((3, 100))), ValueError, r"samples: expected a vector \(n,\), got shape \(3, 100\)"),
        (lambda: rf.mean_of(np.ones(1)), ValueError, "samples: expected at least 2, got 1"),
        (lambda: rf.mean_of(np.ones(3), confidence=2), ValueError, "confidence: expected a probability"),
        (
            lambda: rf.draw_directions(2, 2, 2, np.random.default_rng(0), regular=True),
            ValueError,
            "regular: expected orthogonal=True with it",
        ),
        (lambda: rf.estimates("cos", X, Y, np.ones((2, 3, D))), ValueError, "kind: expected one of trig, positive,"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
