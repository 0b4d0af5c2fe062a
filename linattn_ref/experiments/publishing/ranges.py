"""Lines of medians, each with a bar at its right: how far sentences and heads lie apart."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from linattn_ref.experiments.publishing import labels, style

__all__ = ["over_reduced", "with_range"]


def with_range(
    axes: Axes, x: Any, found: Any, line: str = "o-", *, colour: Any, at: float | None = None, **look: Any
) -> Line2D:
    """The median over ``x``, and for the last ``x`` a bar from a tenth to nine tenths of all sentences and heads.

    ``found`` has ``low``, ``median`` and ``high``, as `linattn_ref.experiments.measuring.heads.Spread` has them. The
    bar stands at ``at``, where bars beside one another can be told apart, or at the last ``x``.
    """
    (median,) = axes.plot(x, found.median, line, color=colour, **look)
    axes.vlines(x[-1] if at is None else at, found.low[-1], found.high[-1], color=colour, alpha=0.6)
    return median


def over_reduced(
    axes: Axes,
    reduced: Sequence[int],
    errors: Mapping[str, Any],
    ways: Mapping[str, tuple[str, str]],
    *,
    level: tuple[float, str] | None = None,
) -> None:
    """Errors over ``R``, both logarithmic: each way's name at the end of its line; in two rows of axes.

    Parameters
    ----------
    axes : Axes
    reduced : sequence of int
    errors : mapping
        By way.
    ways : mapping
        Of those drawn: label and colour.
    level : tuple, optional
        An error for comparison, dotted, and its name.
    """
    places = [reduced[-1] * 1.18 ** (i + 1) for i in range(len(ways))]
    lines = [
        with_range(axes, reduced, errors[way], colour=colour, at=place)
        for place, (way, (_, colour)) in zip(places, ways.items(), strict=True)
    ]
    names = [textwrap.fill(label, 17) for label, _ in ways.values()]
    if level is not None:
        lines += axes.plot([reduced[0], places[-1]], [level[0]] * 2, ":", color=style.GREY)
        names.append(level[1])
    axes.set(xscale="log", yscale="log")
    labels.ticks(axes, reduced)
    labels.at_ends(axes, lines, names, rows=2)
