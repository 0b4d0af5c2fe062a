"""Names on the lines themselves, so that nobody has to look them up in a legend; and numbers along the axes."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy.optimize import isotonic_regression

from linattn_ref.experiments.publishing import style

__all__ = ["at", "at_ends", "over_reduced", "ticks", "with_range"]

APART = 1.2  # lines of text, from one name to the next
AXES_SHARE = 0.8  # of a figure's height that a row of axes has, about: the rest are titles and labels


def ticks(axes: Axes, values: Any, names: Sequence[str] | None = None, *, along: str = "x") -> None:
    """Numbers along an axis, the horizontal one or ``"y"``, at these values and nowhere else, or these names."""
    getattr(axes, f"set_{along}ticks")(values, names or [str(x) for x in values])
    axes.minorticks_off()


def at_ends(
    axes: Axes, lines: Sequence[Line2D] | None = None, names: Sequence[str] = (), *, rows: int = 1, width: int = 0
) -> None:
    """Write each name next to the right end of its line, in its colour; names that would overlap move apart.

    To be called when the axes' limits are set.

    Parameters
    ----------
    axes : Axes
    lines, names : sequence, optional
        A name per line; ``""`` is none, and a line without a number gets none. All lines of the axes that have a
        label, and that, unless given.
    rows : int
        Of axes that the figure has below one another.
    width : int
        Letters to a line of text, where names are long; 0: they stay as they are.
    """
    lines = axes.lines if lines is None else lines
    names = names or [str(line.get_label()) for line in lines]
    named = [
        (line, name)
        for line, name in zip(lines, names, strict=True)
        if name and not name.startswith("_") and np.isfinite(line.get_ydata()).any()
    ]
    if width:
        named = [(line, textwrap.fill(name, width)) for line, name in named]
    wanted = [_height_of_end(axes, line) for line, _ in named]
    figure: Any = axes.get_figure()
    points = AXES_SHARE * 72 * figure.get_figheight() / rows
    size = matplotlib.rcParams["legend.fontsize"]
    heights = [APART * size / points * (1 + name.count("\n")) for _, name in named]
    where: Any = {"xycoords": "axes fraction", "xytext": (4, 0), "textcoords": "offset points", "va": "center"}
    for (line, name), height in zip(named, spread(wanted, heights), strict=True):
        axes.annotate(name, (1.0, height), fontsize=size, color=readable(line.get_color()), **where)


def at(axes: Axes, x: float, y: float, name: str, colour: Any, **look: Any) -> None:
    """Write a name at a place in the axes, in its line's colour; above it, unless ``look`` says otherwise."""
    size = matplotlib.rcParams["legend.fontsize"]
    given = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    axes.annotate(name, (x, y), fontsize=size, color=readable(colour), **{**given, **look})


def _height_of_end(axes: Axes, line: Line2D) -> float:
    """Where a line ends, from 0 at the bottom of the axes to 1 at their top."""
    y = np.asarray(line.get_ydata(), float)
    low, high, end = axes.yaxis.get_transform().transform(np.array([*axes.get_ylim(), y[np.isfinite(y)][-1]]))
    return float(np.clip((end - low) / (high - low), 0, 1))


def spread(middles: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return places for names of these heights, as near to ``middles`` as they can be, in their order, and apart."""
    order = np.argsort(middles, kind="stable")
    tall = np.array(heights, float)[order]
    stacked = np.append(0, np.cumsum((tall[1:] + tall[:-1]) / 2))  # if each stood on the one before
    shifts = isotonic_regression(np.array(middles, float)[order] - stacked).x  # of names that touch one: the mean
    placed = np.empty(len(order))
    placed[order] = stacked + shifts
    return placed.tolist()


def readable(colour: Any) -> tuple[float, ...]:
    """The colour, darker where it is pale: as text it is thinner than as a line."""
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    luminance = float(rgb @ (0.2126, 0.7152, 0.0722))
    return tuple(float(x) for x in rgb * min(1.0, 0.45 / max(luminance, 1e-9)))


# --- Lines of medians, each with a bar: how far sentences and heads lie apart ----------------------------------------


def with_range(
    axes: Axes, x: Any, found: Any, line: str = "o-", *, colour: Any, at: float | None = None, **look: Any
) -> Line2D:
    """The median over ``x``, and for the last ``x`` a bar from a tenth to nine tenths of all sentences and heads.

    ``found`` has ``low``, ``median`` and ``high``, as `linattn_ref.experiments.measuring.heads.Spread` has them. The
    bar stands at ``at``, where bars next to one another can be told apart, or at the last ``x``.
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
    ticks(axes, reduced)
    at_ends(axes, lines, names, rows=2)
