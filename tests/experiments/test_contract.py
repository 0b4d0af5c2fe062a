"""What every figure keeps to: it is committed in full, and its record gives it back, as its quick size does."""

import inspect
import json
from functools import cache
from pathlib import Path

import pytest
from quick import assert_comes_back, assert_drawn_as_it_comes_back, quick

from linattn_ref.experiments.publishing import catalogue, gallery, record, style

FIGURES = Path(__file__).parents[2] / "figures"
ALL = (*catalogue.FIGURES, *catalogue.BENCHES, *catalogue.COMPILED)
# Those that have one; but for the spectrum, which reads a network in that too, and for what is measured in processes
# of its own, which `cost/` holds to the same.
ELSEWHERE = {"spectrum", "resources", "model_resources", "linformer_savings", "layer_savings"}
QUICK = [x for x in catalogue.FIGURES if hasattr(catalogue.module_of(x), "QUICK") and x not in ELSEWHERE]
OF_THE_MACHINE = {"decoding", "attention_cost", "causal_cost"}  # they have some of these:
MEASURED = {"seconds", "ratio", "at_once", "peak"}  # times, and bytes in use at once; all else is counted
COMMANDS = {"bench_cuda": "linattn-ref bench cuda --resume"}  # a machine was lent for minutes
LONG = {"write_fade_erase", "moving_content", "rfa_decay"}  # seconds


@pytest.mark.parametrize("name", ALL)
def test_every_figure_has_what_the_gallery_needs(name):
    module = catalogue.module_of(name)
    assert len(catalogue.caption_of(name)) > 80
    for parameter in inspect.signature(module.compute).parameters.values():
        given = parameter.name in {"seed", "rng", "quick", "workers"} or parameter.kind is parameter.VAR_KEYWORD
        assert given or parameter.default is not parameter.empty, f"{name}.compute needs {parameter.name}"
    assert list(inspect.signature(module.draw).parameters) == ["results"]


@pytest.mark.parametrize("name", ALL)
def test_every_figure_is_committed_in_full(name):
    stored = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))
    assert stored["command"] == COMMANDS.get(name, f"linattn-ref figures --only {name}")
    assert stored["caption"] == catalogue.caption_of(name)
    for ending in ("svg", "png", "pdf"):
        assert (FIGURES / f"{name}.{ending}").stat().st_size > 1000


@pytest.mark.parametrize("name", ALL)
def test_a_record_gives_the_results_back_and_the_drawing(name):
    stored = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))
    results = catalogue.results_of(name, stored)
    assert record.plain(results) == stored["results"]
    with style.use():
        assert any(axes.has_data() for axes in catalogue.module_of(name).draw(results).axes)


@pytest.fixture(autouse=True, scope="module")
def _an_integral_once():
    """One for each angle at which two vectors share a bucket, whatever the seed."""
    module = catalogue.module_of("lsh_recall")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "collision_probability", cache(module.collision_probability))
        yield


@pytest.mark.parametrize("name", QUICK)
def test_the_quick_size_comes_back(name):
    assert_comes_back(name, quick(name))


@pytest.mark.slow  # the full size is drawn above
@pytest.mark.parametrize("name", QUICK)
def test_the_quick_size_is_drawn_as_it_is_and_as_it_comes_back(name):
    assert_drawn_as_it_comes_back(name, quick(name))


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.slow] * (x in LONG)) for x in QUICK if x not in OF_THE_MACHINE],
)
def test_the_same_seed_gives_the_same_and_another_gives_another(name):
    """Of what is measured of the machine nothing is the same twice."""
    text = json.dumps(record.plain(quick(name)), allow_nan=False)
    assert json.dumps(record.plain(gallery.compute(name, quick=True))) == text
    assert json.dumps(record.plain(quick(name, seed=1))) != text


@pytest.mark.parametrize("name", sorted(OF_THE_MACHINE))
def test_what_a_record_counted_is_what_this_code_counts(name):
    """At the lengths of the quick size, with which the record begins."""
    stored = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))["results"]
    assert_begins_with(stored, record.plain(quick(name)))


def assert_begins_with(stored, found):
    if isinstance(found, dict):
        for key in found.keys() - MEASURED:
            assert_begins_with(stored[key], found[key])
    else:
        assert (stored[: len(found)] if isinstance(found, list) else stored) == found


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("rewind", {"lengths": (64, 32)}, "lengths: expected positive ascending ones"),
        ("moving_content", {"reduced": (4,)}, "reduced: expected at least two"),
        ("pinv_convergence", {"landmarks": (10**6,)}, "landmarks: expected one of at most"),
        ("lsh_recall", {"top": 10**6}, "top: expected at least 1 and fewer than the"),
        ("spectrum", {"arrays": "a.npz", "text": "b.txt"}, "arrays: they are their own matrices"),
    ],
)
def test_options_that_cannot_be_computed_are_named(name, options, told):
    module = catalogue.module_of(name)
    with pytest.raises(ValueError, match=f"^{told}"):
        module.compute(**getattr(module, "QUICK", {}) | options)
