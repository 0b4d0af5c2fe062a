"""The call of every mechanism: there is one for each, and what it counts is right."""

import pytest

from linattn_ref.experiments.cost import comparison_calls
from linattn_ref.experiments.publishing import tables

SMALL, SIZES = comparison_calls.Sizes(n=640, heads=2, width=8), comparison_calls.BESIDE


def test_every_mechanism_has_a_call():
    assert {row.name for row in tables.mechanisms()} == set(comparison_calls.NAMES)


@pytest.mark.parametrize(
    ("name", "learned", "drawn"),
    [
        ("softmax", 0, 0),
        ("linformer", 2 * SIZES["reduced"] * SMALL.n, 0),
        ("performer", 0, SIZES["features"] * SMALL.width),
        ("nystromformer", SMALL.heads * comparison_calls.TAPS, 0),
        ("bigbird", 0, 10 * 3),  # blocks of 64 in 640 tokens, 3 drawn for each
        ("long_short", SMALL.width * SIZES["landmarks"] + 8 * SMALL.width, 0),
        ("reformer", 0, SIZES["rounds"] * SMALL.width * SIZES["buckets"] // 2),
    ],
)
def test_parameters_are_counted(name, learned, drawn):
    cost = comparison_calls.cost(name, SMALL)
    assert (cost.learned, cost.drawn) == (learned, drawn)


def test_softmax_keeps_a_row_and_two_numbers_per_query():
    assert comparison_calls.cost("softmax", SMALL).saved == 4 * SMALL.heads * SMALL.n * (SMALL.width + 2)
