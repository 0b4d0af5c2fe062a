"""The figure of what a state holds: errors are the formulas', and what the caption says is so."""

import numpy as np
import pytest
from quick import quick

from linattn_ref.experiments.recurrence import write_fade_erase


@pytest.fixture(scope="module")
def results():
    return quick("write_fade_erase")


def test_errors_are_the_formulas(results):
    for rule, errors in results.stream.items():
        expected = write_fade_erase.expected_error(rule, results.ages, results.length, results.width)
        # An error of size 1 is a sum over 64 channels, and its deviation about a fifth: of 4 draws a tenth
        np.testing.assert_allclose(errors, expected, rtol=0.35, atol=0.05, err_msg=rule)


def test_the_delta_rule_keeps_what_is_recent_and_not_more(results):
    once, again = results.once, results.again
    assert (once["add"] >= once["delta"]).all()
    assert once["delta"][-1] < 0.6 < once["add"][-1]
    assert again["delta"].min() > 0.99
    assert again["add"][-1] < 0.8
    assert again["fade"][-1] < 0.05
    assert results.stream["delta"][0] < 1e-20


def test_a_small_beta_holds_as_many_keys_as_the_sum_and_a_large_one_the_last_value(results):
    small, large = results.betas.argmin(), results.betas.argmax()
    assert results.betas[small] == 0.1 < 0.5 < results.betas[large]
    for n, recall in results.by_beta.items():
        assert recall[small] == pytest.approx(results.sums[n], abs=0.03)
    assert results.by_beta[128][large] < results.sums[128] - 0.1
    assert results.last[large] > 0.9 > results.last[small]


def test_the_table(results):
    *_, stream = results.tasks.values()
    assert stream["delta"].error < 0.25
    assert stream["delta"].recall == 1
    assert stream["add"].recall < 0.7
    assert results.tasks["64 keys once"]["add"].error == pytest.approx(63 / 64, rel=0.1)
    three = results.tasks["32 keys, three values each, the last counts"]
    assert three["softmax"].recall == pytest.approx(1 / 3, abs=0.1)  # it answers the mean of the three
