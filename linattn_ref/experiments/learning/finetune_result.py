"""What fine-tuning made of a pretrained network, run by run, from the record of `linattn-ref train finetune`.

A run of the name ``imdb-linformer-64-fitted`` is one on IMDB's reviews, ``imdb256-linformer-64-fitted`` one on more of
each; ``imdb-start``, ``imdb256-start`` and ``rt-start`` are those with softmax attention from which the others go on;
``rate-1e-4`` is one of those that chose the learning rate.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes

from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing import style

__all__ = ["SOURCES", "Measured", "Network", "Source", "draw_rows", "read", "source_of", "told"]

SOURCES = {"imdb": "IMDB", "imdb256": "IMDB", "rt": "Rotten Tomatoes"}  # of the first, 128 tokens a text


class Measured(NamedTuple):
    """A share of the test texts, with its interval of 95 %."""

    accuracy: float
    low: float
    high: float


class Network(NamedTuple):
    """A run."""

    attention: str
    k: int | None  # None where a mechanism has no such price
    fitted: bool
    sharing: str | None  # of Linformer
    before: Measured | None  # put in, nothing learned yet
    after: Measured
    pooled_error: float | None  # of a head's output, with mean pooling; for those that were fitted
    fitted_error: float | None
    step_seconds: float  # CPU


class Source(NamedTuple):
    """The runs on one kind of texts."""

    name: str
    length: int  # tokens
    batch: int
    peak: float  # the highest learning rate
    first_steps: int  # with softmax attention, for all
    steps: int  # then, each with its own
    texts: int  # of the test
    start: Network
    networks: dict[str, Network]  # in the order of their names


def read(record: Path = runs.RECORDS / "finetune.json") -> dict[str, Source]:
    """All sources in a file of `runs.gather`."""
    found = runs.gathered(record)
    return {key: source_of(key, found) for key in SOURCES if f"{key}-start" in found}


def source_of(key: str, found: dict[str, runs.Run]) -> Source:
    """The runs whose names begin with ``key``."""
    mine = {name.removeprefix(f"{key}-"): run for name, run in found.items() if name.startswith(f"{key}-")}
    start = mine.pop("start")
    one = next(iter(mine.values())).facts
    for name, run in mine.items():
        for fact in ("steps", "peak", "start", "data", "model", "shape"):
            if run.facts[fact] != one[fact]:
                raise ValueError(f"{key}-{name}: {fact} is {run.facts[fact]}, not {one[fact]} as in the others")
    return Source(
        SOURCES[key],
        one["shape"]["length"],
        one["shape"]["batch"],
        one["peak"],
        start.facts["steps"],
        one["steps"],
        one["result"]["texts"],
        _network(start),
        {name: _network(run) for name, run in mine.items()},
    )


def _network(run: runs.Run) -> Network:
    facts, result = run.facts, run.facts["result"]
    before, after = (
        Measured(found["accuracy"], *found["interval"]) if found else None
        for found in (result["before"], result["after"])
    )
    assert after is not None
    fit = result.get("fit") or {"pooled": None, "fitted": None}
    return Network(
        facts["attention"],
        facts["k"],
        bool(facts.get("fitted")),
        facts["sharing"],
        before,
        after,
        fit["pooled"],
        fit["fitted"],
        float(run.cpu_seconds[-1] / run.steps[-1]),
    )


# --- Telling and drawing --------------------------------------------------------------------------------------------


def told(found: Measured | None) -> str:
    """Per cent, with the interval."""
    return "–" if found is None else f"{found.accuracy:.1%} ({found.low:.1%} to {found.high:.1%})"


def draw_rows(axis: Axes, source: Source, rows: Mapping[str, Network]) -> None:
    """A row a network, by its title: accuracy before and after, with the intervals."""
    for place, one in enumerate(rows.values()):
        for found, colour, shift in ((one.before, style.GREY, -0.14), (one.after, style.BLUE, 0.14)):
            if found is not None:
                axis.plot([100 * found.low, 100 * found.high], [place + shift] * 2, color=colour)
                axis.plot(100 * found.accuracy, place + shift, "o", color=colour)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.invert_yaxis()
    axis.set_title(f"{source.name}, {source.length} tokens")
    axis.grid(axis="y", visible=False)
