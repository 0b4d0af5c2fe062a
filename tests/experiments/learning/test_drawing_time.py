"""What a pixel costs, along an image: what is run and added up. No time is tested."""

import numpy as np
import pytest

from linattn_ref.experiments.learning import drawing_time
from linattn_ref.experiments.publishing import style


def test_an_image_is_the_sum_of_straight_lines():
    """By ten pixels: 2 at the first, 4 at the fifth, as much from there on."""
    size = drawing_time.Size(1, 1, 4, 4, 10, (1, 5, 10))
    row = drawing_time._row("MNIST", "linear", 2, size, [lambda: 2.0, lambda: 4.0, lambda: 4.0], 3)
    assert row.image == pytest.approx(2 + 2.5 + 3 + 3.5 + 4 * 6)
    assert row.images_per_second == pytest.approx(2 / row.image)


@pytest.mark.slow
def test_every_way_is_timed_with_both_networks():
    results = drawing_time.compute(rng=np.random.default_rng(0), quick=True, rounds=1)
    ways = {(row.network, row.way, row.batch) for row in results.rows}
    stateful = {(name, way, b) for name in drawing_time.QUICK for way in drawing_time.STATEFUL for b in (1, 4, 16)}
    assert len(ways) == len(results.rows) == 2 * (2 * 2 + 3)
    assert {row for row in ways if row[1] in drawing_time.STATEFUL} <= stateful
    with style.use():
        drawing_time.draw(results)
