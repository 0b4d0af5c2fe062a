"""Figures of what training said, `figures/records`: their numbers are those that the committed records give now."""

import inspect
import json
from pathlib import Path

import pytest

from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing import catalogue, record


def read_by(name):
    """The committed records that a figure's ``compute`` reads unless it is given others."""
    parameters = inspect.signature(catalogue.module_of(name).compute).parameters.values()
    defaults = [x.default for x in parameters if isinstance(x.default, Path)]
    return {path.name for path in defaults if path.parent == runs.RECORDS}


READ = {name: read for name in catalogue.FIGURES if (read := read_by(name))}
# Beside them: what is said of the networks that come with the package, and of a page.
OTHERS = {"images_bits.json", "images_bits_softmax.json", "live_head.json"}
OTHERS |= {"conform_confusion.json"}  # what the judge found
OTHERS |= {"gpu_first_day.json", "gpu_profile.json"}  # `bench_cuda` of an earlier day; what a profiler counted
# Sums of few numbers of float64, whose last bits depend on the processor. Where a network is asked anew, in float32,
# weights are rounded to three digits, and of 512 words one may be told otherwise.
CLOSE = 1e-9
AT_MOST = {"duplication_attention": 1 / 400}


def test_no_record_of_runs_is_left_out():
    assert {path.name for path in runs.RECORDS.glob("*.json")} == OTHERS.union(*READ.values())


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow) if x in AT_MOST else x for x in READ])
def test_the_numbers_are_those_of_the_record(name):
    stored = json.loads((runs.RECORDS.parent / f"{name}.json").read_text(encoding="utf-8"))["results"]
    computed = record.plain(catalogue.module_of(name).compute())
    far = AT_MOST.get(name, 0.0)
    wrong = [place for place, *both in side_by_side(stored, computed) if not agree(*both, far)]
    assert not wrong, f"linattn-ref figures --only {name} gives others: {', '.join(wrong[:5])}"


def side_by_side(stored, computed, place="results"):
    """Each number of both, and where it stands; whole parts where they are not of one form."""
    if isinstance(stored, dict) and isinstance(computed, dict) and list(stored) == list(computed):
        pairs = [(f".{key}", stored[key], computed[key]) for key in stored]
    elif isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        pairs = [(f"[{i}]", *both) for i, both in enumerate(zip(stored, computed, strict=True))]
    else:
        yield place, stored, computed
        return
    for further, *both in pairs:
        yield from side_by_side(*both, place + further)


def agree(stored, computed, far):
    """Texts and whole numbers exactly; others nearly."""
    if isinstance(stored, float) and isinstance(computed, float):
        return computed == pytest.approx(stored, rel=CLOSE, abs=far)
    return type(stored) is type(computed) and stored == computed
