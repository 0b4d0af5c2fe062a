"""The record of fine-tuned networks as rows: what belongs together, in which order, and what must not."""

import numpy as np
import pytest

from linattn_ref.experiments.learned import downstream, every_mechanism, finetune_result, mechanism_time
from linattn_ref.experiments.learning.runs import Run
from linattn_ref.experiments.measuring import points
from linattn_ref.experiments.publishing import style


def run(attention, before, after, **more):
    """A run of 40 updates, with 100 test texts."""
    fitted = more.get("fitted", False)
    facts = {"attention": attention, "k": None if attention == "softmax" else 4, "sharing": None, "steps": 40}
    facts |= {"peak": 1e-4, "seed": 1, "start": "a", "data": {}, "model": "m"}
    facts |= {"shape": {"length": 16, "batch": 8}} | more
    measured = [None if x is None else {"accuracy": x, "interval": [x - 0.1, x + 0.1]} for x in (before, after)]
    fit = {"pooled": 0.7, "fitted": 0.5} if fitted else None
    facts["result"] = {"before": measured[0], "after": measured[1], "texts": 100, "fit": fit}
    return Run(facts, np.array([40]), np.array([20.0]), {"loss": np.array([0.5])})


@pytest.fixture
def found():
    return {
        "imdb-start": run("softmax", None, 0.8, start=None, steps=150),
        "imdb-softmax": run("softmax", 0.8, 0.81),
        "imdb-linear": run("linear", 0.6, 0.7),
        "imdb-linformer": run("linformer", 0.65, 0.75, sharing="headwise"),
        "imdb-linformer-4-fitted": run("linformer", 0.7, 0.76, sharing="headwise", fitted=True),
        "imdb-linformer-8": run("linformer", 0.7, 0.77, sharing="layerwise", k=8),
        "rate-1": run("softmax", None, 0.9, peak=1),
    }


def test_every_mechanism_stands_once_the_best_first(found):
    source = finetune_result.source_of("imdb", found)
    assert (source.first_steps, source.steps, source.texts, source.length) == (150, 40, 100, 16)
    assert list(every_mechanism.ordered(source)) == ["softmax", "linformer", "linear"]
    assert every_mechanism.table_rows(source)[1] == (
        "Linformer",
        "65.0% (55.0% to 75.0%)",
        "75.0% (65.0% to 85.0%)",
        "-6.0",
        "0.50",
    )


def test_seeds_of_one_mechanism_are_one_row_and_compared_seed_by_seed():
    found = {}
    for seed, (soft, linear) in enumerate(((0.8, 0.7), (0.9, 0.6))):
        own = {"seed": seed, "start": f"learned {seed}"}
        found[f"rt-start-{seed}"] = run("softmax", None, 0.8, seed=seed, start=None, steps=150)
        found[f"rt-softmax-{seed}"] = run("softmax", 0.8, soft, **own)
        found[f"rt-linear-{seed}"] = run("linear", 0.5, linear, **own)
    source = finetune_result.source_of("rt", found)
    one = source.networks["linear"]
    assert one.after.by_seed == (0.7, 0.6)
    np.testing.assert_allclose([one.after.accuracy, one.after.low, one.after.high], [0.65, 0.55, 0.75])
    assert every_mechanism.table_rows(source)[1][3] == "-10.0, -30.0"
    with pytest.raises(ValueError, match=r"rt-linear: its seeds are \[0\], not \[0, 1\] as in the others"):
        finetune_result.source_of("rt", {name: run for name, run in found.items() if name != "rt-linear-1"})
    found["rt-linear-1"].facts["start"] = "learned 0"
    with pytest.raises(ValueError, match=r"rt-linear-1: start is learned 0, not learned 1"):
        finetune_result.source_of("rt", found)


def test_linformers_stand_by_k_softmax_first(found):
    source = finetune_result.source_of("imdb", found)
    titles = ["softmax", "k = 8, pooled, all layers share", "k = 4, pooled", "k = 4, fitted"]
    assert list(downstream.rows_of(source)) == titles
    assert [row[3] for row in downstream.table_rows(source)] == ["–", "–", "–", "0.70 to 0.50"]
    with style.use():
        axes = downstream.draw({"imdb": source}).axes
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["4", "8"]
    drawn = {each.get_label(): each.lines[0].get_xdata() for each in axes[0].containers}
    assert {name: len(x) for name, x in drawn.items()} == {
        f"{way}, {when}": 1 for way in ("fitted", "pooled") for when in ("trained", "at once")
    }


def test_a_record_of_some_of_the_runs(found, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune_result.runs, "gathered", lambda _: found)
    del found["imdb-linformer-4-fitted"]
    with style.use():
        (axis,) = downstream.draw(finetune_result.read()).axes
    assert [each.get_label() for each in axis.containers] == ["pooled, trained", "pooled, at once"]
    del found["imdb-softmax"]
    with pytest.raises(ValueError, match="record: IMDB, 16 tokens, has no run with softmax attention"):
        downstream.draw(finetune_result.read())
    for name in ("imdb-linear", "imdb-linformer", "imdb-linformer-8"):
        assert "imdb" in finetune_result.read()
        del found[name]
    assert finetune_result.read() == {}  # the start alone


def test_runs_of_other_settings_do_not_stand_together(found):
    found["imdb-linear"].facts["steps"] = 41
    with pytest.raises(ValueError, match=r"imdb-linear: steps is 41, not 40 as in the others"):
        finetune_result.source_of("imdb", found)


@pytest.mark.slow
def test_both_passes_are_timed_with_every_mechanism(monkeypatch):
    monkeypatch.setattr(points, "in_new_process", lambda function, *arguments, malloc: function(*arguments))
    results = mechanism_time.compute(quick=True)
    assert set(results.seconds) == set(every_mechanism.TITLES)
    assert results.ratio["softmax"] == (1.0,)
    with style.use():
        assert len(mechanism_time.draw(results).axes) == 1
    with pytest.raises(ValueError, match="rounds: expected at least 1, got 0"):
        mechanism_time.compute(rounds=0)
