"""The mixture of logistics: a distribution, exact in its tails, and its sampler."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from linattn_ref.nn import logistic_mixture

PARAMS = np.array([[0.3, -0.5, -0.2, 0.6, -2.0, -3.5], [0.0, 1.0, 1.3, -1.3, -1.0, -4.0]])  # two components each


def exact_log_p(n, mu, log_s):
    """With 60 digits: (1) and (2) as they stand."""
    with localcontext() as context:
        context.prec = 200
        s, x, h = Decimal(log_s).exp(), Decimal(2 * n) / 255 - 1, Decimal(1) / 255

        def sigma(y):
            return 1 / (1 + (-y).exp())

        high = Decimal(1) if n == 255 else sigma((x + h - Decimal(mu)) / s)
        low = Decimal(0) if n == 0 else sigma((x - h - Decimal(mu)) / s)
        return float((high - low).ln())


@pytest.mark.parametrize(("mu", "log_s"), [(0.0, -2.0), (0.9, -5.0), (-1.5, -4.0), (0.1, 1.0)])
@pytest.mark.parametrize("n", [0, 1, 100, 254, 255])
def test_exact_in_the_tails(n, mu, log_s):
    """Also where the probability is 1e-100: the plain difference of (2) gives log 0 there."""
    loss, _ = logistic_mixture.forward(np.array([[0.0, mu, log_s]]), np.array([n]))
    assert -loss == pytest.approx(exact_log_p(n, mu, log_s), rel=1e-12)


def test_probabilities_sum_to_1():
    p = logistic_mixture.probabilities(PARAMS)
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-12)
    for row in range(2):
        for n in (0, 17, 255):
            loss, _ = logistic_mixture.forward(PARAMS[row : row + 1], np.array([n]))
            assert np.exp(-loss) == pytest.approx(p[row, n], rel=1e-12)


def test_samples_have_the_chances_of_the_loss():
    """Chi-squared over the values expected at least 10 times; the seed is fixed, so the test is repeatable."""
    draws = 20_000
    for params in PARAMS:
        values = logistic_mixture.sample(np.broadcast_to(params, (draws, 6)), np.random.default_rng(0))
        expected = draws * logistic_mixture.probabilities(params)
        often = expected >= 10
        counts = np.bincount(values, minlength=256)
        chi = (((counts - expected) ** 2 / expected)[often]).sum()
        freedom = often.sum()
        assert chi < freedom + 5 * np.sqrt(2 * freedom)  # five standard deviations


def test_samples_at_a_low_temperature_are_the_mode():
    values = logistic_mixture.sample(np.broadcast_to(PARAMS[0], (50, 6)), np.random.default_rng(0), temperature=1e-6)
    assert np.all(values == np.rint((PARAMS[0][2] + 1) * 127.5))


def test_how_far_the_switch_is_off():
    """By the number of the docstring in a tail; not at all where the probability is not small."""
    for log_s, n, rounded in ((logistic_mixture.LOWEST, 140, 2.1), (-3.0, 250, 0.001)):
        params, t = np.array([[0.0, 0.0, log_s]]), 2 / 255 * np.exp(-log_s)
        for value, off in ((n, t / 2 - np.log(t) + np.log(1 - np.exp(-t))), (128, 0)):
            exact, switched = (logistic_mixture.forward(params, np.array([value]), switch=x)[0] for x in (False, True))
            assert switched - exact == pytest.approx(off, abs=1e-6)
            assert off in (0, pytest.approx(rounded, rel=0.05))


def test_the_switch_has_its_own_gradient():
    from functools import partial

    from linattn_ref.gradcheck import check_elementwise

    params = np.array([[0.0, 0.0, -6.0], [0.1, -0.4, -3.0]])
    forward = partial(logistic_mixture.forward, switch=True)
    check_elementwise(forward, logistic_mixture.backward, params, np.array([140, 250]), rng=0).assert_ok()


def test_a_scale_at_its_lowest_gets_no_gradient():
    params = np.array([[0.0, 0.0, -9.0]])
    loss, saved = logistic_mixture.forward(params, np.array([127]))
    assert loss == logistic_mixture.forward(np.array([[0.0, 0.0, -7.0]]), np.array([127]))[0]
    assert logistic_mixture.backward(1.0, saved).params[0, 2] == 0


def test_a_scale_below_the_lowest_is_the_lowest():
    below, lowest = (np.array([[0.3, -0.5, -0.2, 0.6, x, x]]) for x in (-30, logistic_mixture.LOWEST))
    for made in (
        logistic_mixture.probabilities,
        lambda params: logistic_mixture.sample(np.repeat(params, 50, axis=0), np.random.default_rng(0), temperature=9),
    ):
        np.testing.assert_array_equal(made(below), made(lowest))


@pytest.mark.parametrize("log_s", [-30, -7, 5, 30])
def test_float32_is_finite(log_s):
    """Any scale and mean that a network may come to."""
    params = np.array([[0, mu, log_s] for mu in (-1e3, -1, 0, 1, 1e3)], np.float32)
    for n in (0, 127, 255):
        loss, saved = logistic_mixture.forward(params, np.full(5, n))
        assert np.isfinite(loss)
        assert np.isfinite(logistic_mixture.backward(np.float32(1), saved).params).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_component_that_is_infinitely_wide_has_no_share():
    both, alone = np.array([[0.5, 0.5, 0.2, 0.1, 800.0, -2.0]]), np.array([[0.5, 0.1, -2.0]])
    (loss, saved), (of_one, saved_alone) = (logistic_mixture.forward(x, np.array([127])) for x in (both, alone))
    assert loss == pytest.approx(of_one + np.log(2), rel=1e-14)
    found, expected = (logistic_mixture.backward(1.0, x).params[0] for x in (saved, saved_alone))
    np.testing.assert_allclose(found, [0.5, -0.5, 0, expected[1], 0, expected[2]], rtol=1e-14)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"params: expected w, mu and log s of K components, \(..., 3 K\)"):
        logistic_mixture.forward(PARAMS[:, :4], np.array([0, 1]))
    with pytest.raises(ValueError, match="values: expected numbers from 0 to 255, got 0 to 256"):
        logistic_mixture.forward(PARAMS, np.array([0, 256]))
    with pytest.raises(TypeError, match="values: expected an array of integers"):
        logistic_mixture.forward(PARAMS, np.array([0.0, 1.0]))
    for wrong in (0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"temperature: expected a finite number above 0, got {wrong}"):
            logistic_mixture.sample(PARAMS, np.random.default_rng(0), temperature=wrong)
    with pytest.raises(ValueError, match="params: expected numbers to draw from, got NaN"):
        logistic_mixture.sample(np.where(np.arange(6) == 3, np.nan, PARAMS[0]), np.random.default_rng(0))


@pytest.mark.parametrize("temperature", [1e-320, 1e-50, 1e-6])
def test_a_temperature_close_to_0_takes_the_middle_of_the_likeliest(temperature):
    """Without a warning, in float32."""
    rng = np.random.default_rng(0)
    params = np.concatenate(
        [rng.standard_normal((50, 4)), rng.uniform(-1, 1, (50, 4)), np.full((50, 4), -2.0)], axis=1
    ).astype(np.float32)
    likeliest = np.take_along_axis(params[:, 4:8], params[:, :4].argmax(axis=1)[:, None], axis=1)[:, 0]
    drawn = logistic_mixture.sample(params, rng, temperature=temperature)
    np.testing.assert_array_equal(drawn, np.rint((likeliest + 1) * 127.5))
