"""Names on the lines themselves, so that nobody has to look them up in a legend."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

APART = 1.25  # lines of text, from one name to the next
AXES_SHARE = 0.72  # of a figure's height that a row of axes has, about: the rest are titles and labels


def at_ends(axes: Axes, lines: Sequence[Line2D], names: Sequence[str], *, rows: int = 1, **look: Any) -> None:
    """Write each name beside the right end of its line, in its colour; names that would overlap move apart.

    To be called when the axes' limits are set.

    Parameters
    ----------
    axes : Axes
    lines, names : sequence
        A name a line; ``""`` is none.
    rows : int
        Of axes that the figure has below one another.
    **look
        Of the text.
    """
    named = [(line, name) for line, name in zip(lines, names, strict=True) if name]
    wanted = [_height_of_end(axes, line) for line, _ in named]
    figure: Any = axes.get_figure()
    points = AXES_SHARE * 72 * figure.get_figheight() / rows
    size = matplotlib.rcParams["legend.fontsize"]
    apart = max(APART * size / points * (1 + name.count("\n")) for _, name in named)
    for (line, name), height in zip(named, spread(wanted, apart), strict=True):
        axes.annotate(
            name,
            (1.0, height),
            xycoords="axes fraction",
            xytext=(4, 0),
            textcoords="offset points",
            **{"va": "center", "fontsize": size, "color": readable(line.get_color()), **look},
        )


def _height_of_end(axes: Axes, line: Line2D) -> float:
    """Where a line ends, from 0 at the bottom of the axes to 1 at their top."""
    y = np.asarray(line.get_ydata(), float)
    transform = axes.yaxis.get_transform()
    low, high, end = transform.transform(np.array([*axes.get_ylim(), y[np.isfinite(y)][-1]]))
    return float(np.clip((end - low) / (high - low), 0, 1))


def spread(heights: Sequence[float], apart: float) -> list[float]:
    """Heights that are at least ``apart`` from each other, in the same order, each near where it was."""
    order = np.argsort(heights, kind="stable")
    moved = np.array(heights, float)[order]
    groups: list[list[float]] = []  # neighbours that touch stand together about their mean
    for height in moved:
        groups.append([height])
        while len(groups) > 1 and _bottom(groups[-1], apart) - _top(groups[-2], apart) < apart:
            last = groups.pop()
            groups[-1] += last
    placed = [_bottom(group, apart) + apart * i for group in groups for i in range(len(group))]
    result = np.empty(len(heights))
    result[order] = placed
    return [float(height) for height in result]


def _bottom(group: list[float], apart: float) -> float:
    return float(np.mean(group)) - apart * (len(group) - 1) / 2


def _top(group: list[float], apart: float) -> float:
    return float(np.mean(group)) + apart * (len(group) - 1) / 2


def readable(colour: Any) -> tuple[float, ...]:
    """The colour, darker where it is pale: as text it is thinner than as a line."""
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    luminance = float(rgb @ (0.2126, 0.7152, 0.0722))
    return tuple(float(x) for x in rgb * min(1.0, 0.45 / max(luminance, 1e-9)))
