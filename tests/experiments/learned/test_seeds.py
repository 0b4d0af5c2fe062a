"""Runs of one kind: put together by their names, in step; drawn as a median in a band."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from linattn_ref.experiments.learned import seeds
from linattn_ref.experiments.learning.runs import Run


def run_of(seed, steps=(10, 20)):
    seconds, loss = np.array([1.0, 2.0]), np.array([3.0, 1.0])
    return Run({"seed": seed}, np.array(steps), seconds + seed, {"loss": loss * (seed + 1)})


def test_kinds_are_named_without_the_seed():
    found = {"lsh-4-0": run_of(0), "linear-0": run_of(0), "lsh-4-1": run_of(1)}
    kinds = seeds.kinds(found)
    named = {name: [run.facts["seed"] for run in of] for name, of in kinds.items()}
    assert named == {"lsh-4": [0, 1], "linear": [0]}


def test_runs_out_of_step_are_an_error():
    with pytest.raises(ValueError, match="record: linear-1 was not evaluated after the steps of the others"):
        seeds.kinds({"linear-0": run_of(0), "linear-1": run_of(1, (10, 21))})


def test_names_that_lack_the_seed_are_an_error():
    for found in ({"linear": run_of(0)}, {"linear-1": run_of(0)}, {"lsh-4": run_of(0)}):
        with pytest.raises(ValueError, match=r"record: \S+ should end with the seed of its run, as in \S+-0"):
            seeds.kinds(found)


def test_runs_of_one_kind_differ_in_their_seed_alone():
    one, other = run_of(0), run_of(1)
    seeds.kinds({"a-0": one, "a-1": other._replace(facts={**other.facts, "command": "another"})})
    with pytest.raises(ValueError, match="record: a-1 differs from the others of its kind in peak"):
        seeds.kinds({"a-0": one, "a-1": other._replace(facts={**other.facts, "peak": 1.0})})


def test_runs_of_one_kind_are_put_together():
    """A row a seed; each processor is named once."""
    found = [
        run_of(seed)._replace(facts={"seed": seed, "machine": {"processor": name}}) for seed, name in enumerate("bab")
    ]
    curve = seeds.put_together("name seeds steps cpu_seconds loss processor", found, name="x")
    assert [*curve] == ["name", "seeds", "steps", "cpu_seconds", "loss", "processor"]
    assert (curve.name, curve.seeds, curve.processor) == ("x", (0, 1, 2), "a and b")
    np.testing.assert_array_equal(curve.steps, [10, 20])
    np.testing.assert_array_equal(curve.cpu_seconds, [[1, 2], [2, 3], [3, 4]])
    np.testing.assert_array_equal(curve.loss, [[3, 1], [6, 2], [9, 3]])


def test_the_band_holds_every_seed():
    axes = Figure().subplots()
    values = np.random.default_rng(0).random((3, 5))
    line = seeds.draw(axes, np.arange(5.0), values, "black")
    np.testing.assert_array_equal(line.get_ydata(), np.median(values, axis=0))
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    for x in range(5):
        there = corners[corners[:, 0] == x, 1]
        assert (there.min(), there.max()) == (values[:, x].min(), values[:, x].max())
