"""Lines of medians, each with a band: how far sentences and heads lie apart."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from linattn_ref.experiments.publishing import labels, style

__all__ = ["band", "over_reduced"]


def band(axes: Axes, x: Any, found: Any, line: str = "o-", *, colour: Any, **look: Any) -> Line2D:
    """The median over ``x``, and a band from a tenth to nine tenths of all sentences and heads; at one ``x`` a bar.

    ``found`` has ``low``, ``median`` and ``high``, as `linattn_ref.experiments.measuring.heads.Spread` has them.
    """
    (median,) = axes.plot(x, found.median, line, color=colour, **look)
    if len(x) > 1:
        axes.fill_between(x, found.low, found.high, color=colour, alpha=0.15, linewidth=0)
    else:
        axes.vlines(x, found.low, found.high, color=colour, alpha=0.5)
    return median


def over_reduced(
    axes: Axes,
    reduced: Sequence[int],
    errors: Mapping[str, Any],
    ways: Mapping[str, tuple[str, str]],
    *,
    level: tuple[float, str] | None = None,
) -> None:
    """Errors over ``R``, both logarithmic: a band a way, and its name at the line's end; in two rows of axes.

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
    lines = [band(axes, reduced, errors[way], colour=colour) for way, (_, colour) in ways.items()]
    names = [textwrap.fill(label, 17) for label, _ in ways.values()]
    if level is not None:
        lines += axes.plot(reduced, [level[0]] * len(reduced), ":", color=style.GREY)
        names.append(level[1])
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(reduced, [str(r) for r in reduced])
    axes.minorticks_off()
    labels.at_ends(axes, lines, names, rows=2)
