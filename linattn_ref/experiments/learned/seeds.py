"""Runs that differ in their seed alone: put side by side, and drawn as their median in a band.

A run's name ends with its seed: ``linear-0``, ``linear-1`` are two of one kind, ``linear``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linattn_ref.experiments.learning.runs import Run
from linattn_ref.experiments.publishing.kit import Array, Axes, Line2D, Results

__all__ = ["draw", "kinds", "put_together", "stacked", "told"]

MAY_DIFFER = ("command", "seed", "versions", "machine", "result")  # facts of two runs of one kind


def kinds(found: Mapping[str, Run]) -> dict[str, list[Run]]:
    """The runs of each kind, by the name without its seed.

    Raises
    ------
    ValueError
        A name does not end with the run's seed, or runs of one kind differ in more than that: the run is named.
    """
    of: dict[str, list[Run]] = {}
    for name, run in found.items():
        kind, _, seed = name.rpartition("-")
        if not kind or seed != str(run.facts["seed"]):
            raise ValueError(f"record: {name} should end with the seed of its run, as in {name}-{run.facts['seed']}")
        others = of.setdefault(kind, [])
        if others and not np.array_equal(run.steps, others[0].steps):
            raise ValueError(f"record: {name} was not evaluated after the steps of the others of its kind")
        if others and (differs := _differs(run, others[0])):
            raise ValueError(f"record: {name} differs from the others of its kind in {', '.join(differs)}")
        others.append(run)
    return of


def _differs(one: Run, other: Run) -> list[str]:
    """The facts that are not the same, of those that runs of one kind share."""
    told = sorted({*one.facts, *other.facts} - set(MAY_DIFFER))
    return [name for name in told if one.facts.get(name) != other.facts.get(name)]


def put_together(names: str, of_one_kind: Sequence[Run], **known: Any) -> Results:
    """Collect what has these names in runs of one kind; what is ``known`` is taken from there.

    seeds        (S,)
    steps        (T,), the same for all
    cpu_seconds  (S, T): one row per seed, one column per evaluation
    processor    what did the work: CPU seconds of different processors are not to be compared
    any other    the curve of that name, (S, T)
    """
    of_all = {
        "seeds": tuple(run.facts["seed"] for run in of_one_kind),
        "steps": of_one_kind[0].steps,
        "cpu_seconds": np.array([run.cpu_seconds for run in of_one_kind]),
        "processor": " and ".join(sorted({run.facts.get("machine", {}).get("processor", "") for run in of_one_kind})),
        **known,
    }
    return Results({name: of_all[name] if name in of_all else stacked(of_one_kind, name) for name in names.split()})


def stacked(of_one_kind: Sequence[Run], name: str) -> Array:
    """The curves of that name, ``(S, T)``."""
    return np.array([run.curves[name] for run in of_one_kind])


def told(by_seed: Array, digits: int = 0) -> str:
    """Return the numbers of all seeds in words."""
    return " and ".join(f"{x:.{digits}f}" for x in by_seed)


def draw(axes: Axes, x: Array, values: Array, colour: Any, line: str = "-", middle: Array | None = None) -> Line2D:
    """The median of ``values (S, T)`` over the seeds, or ``middle``, in a band from the least to the greatest."""
    (drawn,) = axes.plot(x, np.median(values, axis=0) if middle is None else middle, line, color=colour)
    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    return drawn
