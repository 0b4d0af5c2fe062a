"""The filterbank against loops over windows, frequencies and bands, with nothing but ``math``."""

import cmath
import math

import numpy as np
import pytest

from linattn_ref.data import filterbank


def by_loops(x, rate, channels):
    """Equations (1)-(5) as they stand."""
    x = [x[0]] + [x[n] - 0.97 * x[n - 1] for n in range(1, len(x))]
    window, step = round(0.025 * rate), round(0.010 * rate)
    size = 1
    while size < window:
        size *= 2

    def mel(f):
        return 1127 * math.log(1 + f / 700)

    corner = [mel(rate / 2) * c / (channels + 1) for c in range(channels + 2)]
    rows = []
    for first in range(0, len(x) - window + 1, step):
        weighted = [x[first + n] * (0.54 - 0.46 * math.cos(2 * math.pi * n / (window - 1))) for n in range(window)]
        power = [
            abs(sum(w * cmath.exp(-2j * math.pi * n * k / size) for n, w in enumerate(weighted))) ** 2
            for k in range(size // 2 + 1)
        ]
        row = []
        for c in range(1, channels + 1):
            total = 0.0
            for k, p in enumerate(power):
                m = mel(k * rate / size)
                rise = (m - corner[c - 1]) / (corner[c] - corner[c - 1])
                fall = (corner[c + 1] - m) / (corner[c + 1] - corner[c])
                total += max(0.0, min(rise, fall)) * p
            row.append(math.log(max(total, 1e-10)))
        rows.append(row)
    return np.array(rows)


def test_it_is_what_loops_say():
    x = np.random.default_rng(0).standard_normal(470)  # 3 windows of 100 samples and a rest
    found = filterbank.log_mel(x, 4000, channels=6)
    assert found.shape == (10, 6)
    np.testing.assert_allclose(found, by_loops(x.tolist(), 4000, 6), rtol=2e-6)  # float32


def test_treble_is_not_lost_in_the_rounding_of_what_is_loud():
    """Of a slow swell next to nothing is left in the high bands; in float32 (1) would be off by 3e-5 in them."""
    x = (0.9 * np.exp(-(((np.arange(400) - 200) / 60) ** 2))).astype(np.float32)
    expected = by_loops(x.astype(np.float64).tolist(), 4000, 10)
    np.testing.assert_allclose(filterbank.log_mel(x, 4000, channels=10), expected, rtol=0, atol=3e-6)  # float32


def test_silence_is_a_number():
    assert (filterbank.log_mel(np.zeros(500), 16000) == np.float32(np.log(1e-10))).all()


def test_normalised_over_all_that_a_speaker_says():
    rng = np.random.default_rng(0)
    said = [rng.standard_normal((n, 3)) * [1, 2, 3] + 5 for n in (10, 30)]
    found = np.concatenate(filterbank.normalise(said))
    np.testing.assert_allclose([found.mean(axis=0), found.std(axis=0)], [[0] * 3, [1] * 3], atol=1e-6)
    assert abs(filterbank.normalise(said)[0].mean()) > 1e-3  # not each by itself


def test_a_channel_that_says_nothing_is_0():
    """A constant one has no variance to be divided by; so is a speaker's only frame."""
    rng = np.random.default_rng(0)
    said = [np.stack([rng.standard_normal(n), np.full(n, -23.025850929940457)], axis=1) for n in (10, 30)]
    found = np.concatenate(filterbank.normalise([each.astype(np.float32) for each in said]))
    np.testing.assert_array_equal(found[:, 1], 0)
    assert found[:, 0].std() == pytest.approx(1, abs=1e-6)
    np.testing.assert_array_equal(filterbank.normalise([said[0][:1]])[0], [[0, 0]])


def test_sums_are_float64_and_features_float32():
    """In float32 a sum of so many frames, or what is left of a sound once the level is taken away, has few digits."""
    rng = np.random.default_rng(0)
    level = 1e4 + rng.standard_normal((20000, 2))
    found = filterbank.normalise([level.astype(np.float32)])[0]
    exact = level.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(found, (exact - exact.mean(axis=0)) / exact.std(axis=0), rtol=0, atol=1e-6)
    assert found.dtype == np.float32
    x = np.linspace(-0.9, 0.9, 1600, dtype=np.float32)
    given = x.copy()
    features = filterbank.log_mel(x, 16000)
    np.testing.assert_array_equal(features, filterbank.log_mel(x.astype(np.float64), 16000))
    np.testing.assert_array_equal(x, given)
    assert features.dtype == np.float32


@pytest.mark.parametrize("shape", [(399,), (500, 2)])
def test_what_is_no_sound(shape):
    with pytest.raises(ValueError, match="samples: expected one channel of at least 400 samples"):
        filterbank.log_mel(np.zeros(shape), 16000)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rate": 99}, "rate: expected an integer of at least 100, got 99"),
        ({"rate": 16000, "channels": 0}, "channels: expected an integer of at least 1, got 0"),
    ],
)
def test_sizes_that_are_too_small_are_named(given, told):
    with pytest.raises(ValueError, match=told):
        filterbank.log_mel(np.zeros(400), **given)
