"""The probability of a shared bucket: closed forms, and hashes that are drawn."""

import math

import numpy as np
import pytest

from linattn_ref.theory.lsh_collision import asymptotic_exponent, collision_probability, measured_collisions


@pytest.mark.parametrize("cosine", [-0.9, -0.3, 0.0, 0.5, 0.9, 0.99])
def test_two_buckets_are_a_hyperplane(cosine):
    """The midpoint rule's error is of the order of the step's square, 2e-4."""
    assert collision_probability(cosine, 2) == pytest.approx(1 - math.acos(cosine) / math.pi, abs=2e-4)


@pytest.mark.parametrize("n_buckets", [2, 8, 64, 256])
def test_orthogonal_vectors_share_one_bucket_in_b(n_buckets):
    """Their hashes are independent."""
    assert collision_probability(0.0, n_buckets) == pytest.approx(1 / n_buckets, rel=1e-3)


@pytest.mark.parametrize(("cosine", "expected"), [(1, 1.0), (-1, 0.0)])
def test_the_same_direction_and_the_opposite(cosine, expected):
    assert collision_probability(cosine, 16) == expected


@pytest.mark.parametrize("n_buckets", [4, 16, 64])
@pytest.mark.parametrize("cosine", [-0.4, 0.3, 0.8, 0.95])
@pytest.mark.parametrize("width", [2, 20])
def test_drawn_hashes_collide_as_often(cosine, n_buckets, width):
    """Within four standard errors of 4000 draws, whatever the width."""
    p = collision_probability(cosine, n_buckets)
    found = measured_collisions(cosine, n_buckets, width, 4000, np.random.default_rng(0))
    assert abs(found - p) < 4 * math.sqrt(p * (1 - p) / 4000) + 2e-4


def test_it_grows_with_the_cosine_and_falls_with_the_number_of_buckets():
    table = [[collision_probability(cosine, b) for cosine in (-0.5, 0, 0.5, 0.9)] for b in (4, 16, 64)]
    assert (np.diff(table, axis=1) > 0).all()
    assert (np.diff(table, axis=0) < 0).all()


@pytest.mark.parametrize("cosine", [0.2, 0.5, 0.8])
def test_exponent_for_many_buckets(cosine):
    """The slope of log p against log B comes down to it, slowly: the rest is of the order of log log B / log B."""
    logs = [math.log(collision_probability(cosine, b)) for b in (4, 16, 64, 256, 1024)]
    slopes = -np.diff(logs) / math.log(4)
    assert (np.diff(abs(slopes - asymptotic_exponent(cosine))) < 0).all()
    assert slopes[-1] == pytest.approx(asymptotic_exponent(cosine), abs=0.08)


@pytest.mark.parametrize(
    ("bad", "named"),
    [((1.1, 4), "cosine"), ((0.5, 5), "n_buckets"), ((0.5, 4.0), "n_buckets"), ((0.5, 4, 0), "points")],
)
def test_bad_arguments(bad, named):
    with pytest.raises(ValueError, match=f"^{named}: expected"):
        collision_probability(*bad[:2], **dict(zip(["points"], bad[2:], strict=False)))


def test_bad_vectors_and_trials():
    for cosine, width, trials, named in ((2.0, 4, 9, "cosine"), (0.5, 1, 9, "width"), (0.5, 4, 0, "trials")):
        with pytest.raises(ValueError, match=f"^{named}: expected"):
            measured_collisions(cosine, 4, width, trials, np.random.default_rng(0))
    assert asymptotic_exponent(-1.0) == math.inf
