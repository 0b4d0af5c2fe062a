"""Lines that several figures have: medians with a band, and formulas through what was counted."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from linattn_ref.experiments.measuring.scaling import growth_exponent
from linattn_ref.experiments.publishing import labels, style

__all__ = ["band", "by_formula", "over_reduced"]


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


def by_formula(
    axes: Sequence[Axes],
    lengths: Any,
    costs: Mapping[str, tuple[Any, str, str]],
    units: Mapping[str, float],
) -> None:
    """Costs over the length, both logarithmic: points that were counted or measured, and the formula as a line.

    Parameters
    ----------
    axes : sequence of Axes
        One for each of ``units``.
    lengths : array
    costs : mapping
        By the name that stands at the line's end, before the slope between the two greatest lengths: as
        `linattn_ref.experiments.measuring.counting.Costs` has them, a colour and a marker.
    units : mapping
        By which field of the costs is drawn, in what it is counted.
    """
    for name, (found, colour, marker) in costs.items():
        for axis, (field, unit) in zip(axes, units.items(), strict=True):
            measured = np.array(getattr(found, field))
            axis.plot(lengths, measured / unit, marker, color=colour, zorder=3)
            slope = growth_exponent(lengths, measured)
            formula = np.array(getattr(found, f"{field}_formula")) / unit
            axis.plot(lengths, formula, "-", color=colour, label=f"{name}slope {slope:.2f}")
    for axis in axes:
        axis.set(xscale="log", yscale="log")
