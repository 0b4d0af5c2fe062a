"""What fine-tuning made of a pretrained network, run by run, from the record of `linattn-ref train finetune`.

A run of the name ``imdb-linformer-64-fitted`` is one on IMDB's reviews, ``imdb256-linformer-64-fitted`` one on more of
each; ``imdb-start``, ``imdb256-start`` and ``rt-start`` are those with softmax attention from which the others go on;
``rate-1e-4`` is one of those that chose the learning rate. Where everything was run with several seeds, names end with
the seed: ``rt-softmax-2`` goes on from ``rt-start-2``.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing.kit import Axes, Results, style

__all__ = ["SOURCES", "draw_rows", "read", "source_of", "told"]

SOURCES = {"imdb": "IMDB", "imdb256": "IMDB", "rt": "Rotten Tomatoes"}  # of the first, 128 tokens per text


def read(record: Path = runs.RECORDS / "finetune.json") -> Results:
    """All sources in a file of `runs.gather` of which a network was begun, and others went on from it."""
    found = runs.gathered(record)

    def has(key: str, start: bool) -> bool:
        return any(x.startswith(f"{key}-") and x.startswith(f"{key}-start") == start for x in found)

    return Results({key: source_of(key, found) for key in SOURCES if has(key, True) and has(key, False)})


def source_of(key: str, found: dict[str, runs.Run]) -> Results:
    """The runs whose names begin with ``key``; those that differ only in their seed are one network."""
    mine = {name.removeprefix(f"{key}-"): run for name, run in found.items() if name.startswith(f"{key}-")}
    starts = [mine.pop(name) for name in [*mine] if name.startswith("start")]
    one = next(iter(mine.values())).facts
    begun: dict[int, str] = {}  # by seed, what its runs go on from
    networks: dict[str, list[runs.Run]] = {}
    for name, run in mine.items():
        seed = run.facts["seed"]
        expected = one | {"start": begun.setdefault(seed, run.facts["start"])}
        for fact in ("steps", "peak", "start", "data", "model", "shape"):
            if run.facts[fact] != expected[fact]:
                raise ValueError(f"{key}-{name}: {fact} is {run.facts[fact]}, not {expected[fact]} as in the others")
        networks.setdefault(name.removesuffix(f"-{seed}") if len(starts) > 1 else name, []).append(run)
    for name, each in networks.items():
        if (seeds := [run.facts["seed"] for run in each]) != [*begun]:
            raise ValueError(f"{key}-{name}: its seeds are {seeds}, not {[*begun]} as in the others")
    return Results(
        name=SOURCES[key],
        length=one["shape"]["length"],  # tokens
        batch=one["shape"]["batch"],
        peak=one["peak"],  # the highest learning rate
        first_steps=starts[0].facts["steps"],  # with softmax attention, for all
        steps=one["steps"],  # then, each with its own
        texts=one["result"]["texts"],  # of the test
        start=_network(starts),
        networks={name: _network(each) for name, each in networks.items()},  # in the order of their names
    )


def _network(each: list[runs.Run]) -> Results:
    facts = each[0].facts
    fit = facts["result"].get("fit") or {"pooled": None, "fitted": None}
    return Results(
        attention=facts["attention"],
        k=facts["k"],  # None where a mechanism has no such price
        fitted=bool(facts.get("fitted")),
        sharing=facts["sharing"],  # of Linformer
        before=_measured(each, "before"),  # put in, nothing learned yet
        after=_measured(each, "after"),
        pooled_error=fit["pooled"],  # of a head's output, with mean pooling; for those that were fitted
        fitted_error=fit["fitted"],
        step_seconds=float(np.mean([run.cpu_seconds[-1] / run.steps[-1] for run in each])),  # CPU
    )


def _measured(each: list[runs.Run], when: str) -> Results | None:
    """A share of the test texts, the interval of 95 % of one run by the choice of texts, and the share of each seed."""
    found = [run.facts["result"][when] for run in each]
    if found[0] is None:
        return None
    shares = tuple(one["accuracy"] for one in found)
    low, high = np.mean([one["interval"] for one in found], axis=0).tolist()
    return Results(accuracy=float(np.mean(shares)), low=low, high=high, by_seed=shares)


# --- Telling and drawing --------------------------------------------------------------------------------------------


def told(found: Results | None) -> str:
    """Per cent, with the interval."""
    return "–" if found is None else f"{found.accuracy:.1%} ({found.low:.1%} to {found.high:.1%})"


def draw_rows(axis: Axes, source: Results, rows: Mapping[str, Results]) -> None:
    """One row per network, by its title: accuracy before and after, with the intervals, and that of each seed."""
    for place, one in enumerate(rows.values()):
        for found, colour, shift in ((one.before, style.GREY, -0.14), (one.after, style.BLUE, 0.14)):
            if found is not None:
                axis.plot([100 * found.low, 100 * found.high], [place + shift] * 2, color=colour)
                axis.plot(100 * found.accuracy, place + shift, "o", color=colour)
                if len(found.by_seed) > 1:
                    axis.plot(100 * np.array(found.by_seed), [place + shift] * len(found.by_seed), "|", color=colour)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.invert_yaxis()
    axis.set_title(f"{source.name}, {source.length} tokens")
    axis.grid(axis="y", visible=False)
