"""The four panels, from a record of runs that were never run."""

import json

import numpy as np
import pytest

from linattn_ref.experiments.learned import mlm_curves
from linattn_ref.experiments.publishing import catalogue, style
from linattn_ref.experiments.publishing import record as saving

KINDS = [  # attention, length, k, sharing, pooled, rate of E and F, perplexity at the end by seed
    ("softmax", 8, None, None, None, None, (300, 320)),
    ("linformer", 8, 2, "headwise", True, 1 / 8, (500,)),
    ("linformer", 8, 2, "headwise", True, 0, (450,)),
    ("linformer", 8, 2, "headwise", True, 1, (550,)),
    ("softmax", 16, None, None, None, None, (400,)),
    ("linformer", 16, 4, "headwise", True, 1 / 16, (600, 620)),
    ("linformer", 16, 8, "headwise", True, 1 / 16, (590,)),
    ("linformer", 16, 4, "layerwise", True, 1 / 16, (610,)),
    ("linformer", 16, 4, "headwise", False, 1 / 16, (790,)),
    ("linformer", 32, 4, "headwise", True, 1 / 32, (700,)),
]


@pytest.fixture
def made_up():
    """As `runs.gather` writes it."""
    found = {}
    for attention, length, k, sharing, pooled, own_rate, ends in KINDS:
        for seed, end in enumerate(ends):
            facts = {"attention": attention, "k": k, "sharing": sharing, "pooled": pooled, "seed": seed, "steps": 20}
            facts |= {
                "own_rate": own_rate,
                "peak": 0.01,
                "shape": {"length": length, "width": 4},
                "text": {"pieces": 99},
                "vocabulary": "v",
            }
            facts["yardsticks"] = {"pieces alone": float(np.log(800)), "pairs of pieces": float(np.log(100))}
            masked = np.log([800, end]).tolist()
            curves = {"loss": [0.9 * x for x in masked], "masked": masked, "accuracy": [0.1, 0.2]}
            name = f"{attention}-{length}-{k}-{sharing}-{pooled}-{own_rate}-{seed}"
            found[name] = {"facts": facts, "steps": [10, 20], "cpu_seconds": [1.0, 2.0], "curves": curves}
    usual = found["softmax-16-None-None-None-None-0"]
    masked = {"loss": [6.0, 6.0], "masked": [6.7, 6.7], "accuracy": [0.0, 0.1]}
    found["softmax-16-drawn-0"] = {**usual, "facts": {**usual["facts"], "drawn": True}, "curves": masked}
    return found


@pytest.fixture
def results(made_up, tmp_path):
    return _computed(made_up, tmp_path)


def _computed(made_up, tmp_path):
    path = tmp_path / "mlm.json"
    path.write_text(json.dumps(made_up), encoding="utf-8")
    return mlm_curves.compute(record=path)


def test_each_curve_is_in_its_panels(results):
    found = {panel: list(curves) for panel, curves in mlm_curves.panels(results).items()}
    assert found == {
        "a": ["softmax", "k = 2, E, F fixed", "k = 2", "k = 2, E, F rate 1"],
        "b": ["softmax", "softmax, usual start", "k = 4", "k = 8"],
        "c": ["heads share", "one for all", "drawn"],
        "d": ["n = 16", "n = 32"],
    }
    assert mlm_curves.panels(results)["b"]["k = 4"] is mlm_curves.panels(results)["d"]["n = 16"]
    (soft,) = results.find(attention="softmax", length=8)
    np.testing.assert_allclose(soft.perplexity, [300, 320])
    assert mlm_curves.table_rows(results, "a")[0] == ("softmax", "300 and 320", "170 and 180", "2 and 2")


def test_what_is_stored_is_what_was_computed(results):
    again = catalogue.results_of("mlm_curves", {"results": saving.plain(results)})
    for panel in "abcd":
        assert mlm_curves.table_rows(again, panel) == mlm_curves.table_rows(results, panel)
    assert {**again, "curves": ()} == {**results, "curves": ()}


def test_drawn(results):
    with style.use("paper"):
        drawn = mlm_curves.draw(results).axes
    assert [len(axes.lines) - 1 for axes in drawn] == [4, 4, 3, 2]  # and the dashed one
    names = [text.get_text().replace("\n", " ") for text in drawn[0].texts]
    assert names == ["softmax", "k = 2, E, F fixed", "k = 2", "k = 2, E, F rate 1"]


@pytest.mark.parametrize(
    ("left_out", "error"),
    [
        ("softmax-8", r"softmax attention at two lengths, got \[16\]"),
        ("linformer", "Linformer with E and F shared in another way than by heads"),
        ("linformer-16-4-layerwise", "Linformer with E and F shared in another way than by heads"),
        (("linformer-16-4-headwise-True", "linformer-32"), "Linformer whose heads share E and F at k = 4"),
    ],
)
def test_a_record_without_what_is_compared_is_told(made_up, tmp_path, left_out, error):
    some = {name: run for name, run in made_up.items() if not name.startswith(left_out)}
    with pytest.raises(ValueError, match=f"^record: expected {error}"):
        mlm_curves.draw(_computed(some, tmp_path))


def test_runs_that_cannot_be_compared_are_told(made_up, tmp_path):
    made_up["softmax-8-None-None-None-None-1"]["facts"]["peak"] = 0.02
    with pytest.raises(ValueError, match="record: softmax-8-None-None-None-None-1 is not of the size"):
        _computed(made_up, tmp_path)
