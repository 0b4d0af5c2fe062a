"""What every figure keeps to: its committed record gives the results back, and the drawing."""

import json
from pathlib import Path

import pytest

from linattn_ref.experiments.publishing import catalogue, record, style

FIGURES = Path(__file__).parents[2] / "figures"


@pytest.mark.parametrize("name", [*catalogue.FIGURES, *catalogue.BENCHES, *catalogue.COMPILED])
def test_a_record_gives_the_results_back_and_the_drawing(name):
    stored = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))
    results = catalogue.results_of(name, stored)
    assert record.plain(results) == stored["results"]
    with style.use():
        catalogue.module_of(name).draw(results).draw_without_rendering()
