"""Calls that nobody thought of: ``random_calls.py`` draws them by number. A failure says how to make its call again."""

import pytest
import random_calls

CALLS, PART = 200, 10  # of a default run
ALL, LARGE_PART = 50_000, 250


@pytest.mark.parametrize("first", range(0, CALLS, PART))
def test_random_calls(first):
    for seed in range(first, first + PART):
        random_calls.check(seed)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, ALL, LARGE_PART))
def test_very_many_random_calls(first):
    """In both dtypes in every room."""
    for seed in range(first, first + LARGE_PART):
        random_calls.check(seed, everything=True)
