"""What the benches on a CPU have in common: compare, time, tabulate, draw.

A bench runs *kernels*, calls by name, one of them ``"jit"``, and makes a row of each at each setting:

    *setting, kernel, median_ms, min_ms, ratio_median, ratio_min

Everything runs in this process on the same numbers, in turn: one call of each, and again, so that a machine whose speed
drifts is as fast for all. Measured is CPU time, on one thread. A ratio is a kernel's time over that of ``jit`` in the
same round, so above 1 ``jit`` is the faster; the median of the rounds' ratios says what to expect, the least what held
every time. Before any of it, all results are compared: a fast wrong answer is no answer.
"""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.measuring.timing import against_jit
from linattn_ref.experiments.publishing import labels, style

__all__ = [
    "BOTH",
    "FORWARD",
    "PASSES",
    "PER_TOKEN",
    "TOLD",
    "Call",
    "Curve",
    "check_counts",
    "compare",
    "compared",
    "draw",
    "find",
    "in_torch",
    "per_token",
    "table",
    "time",
]

PASSES = FORWARD, BOTH = "forward", "forward + backward"
Call = Callable[[], Sequence[Array]]  # out; and the gradients, if they are asked for
Row = TypeVar("Row", bound=tuple[Any, ...])


# --- Before the clock starts ----------------------------------------------------------------------------------------


def check_counts(**given: int | Sequence[int]) -> None:
    """Every number is at least 1."""
    for name, counts in given.items():
        for count in [counts] if isinstance(counts, int) else counts:
            if count < 1:
                raise ValueError(f"{name}: expected at least 1, got {count}")


def find(module: str) -> Any:
    """The module, or None where it, or what it needs, is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def in_torch(
    torch: Any, function: Callable[..., Any], arrays: Iterable[Array], d_out: Array, with_gradient: bool
) -> Sequence[Array]:
    """``out`` of a function of tensors, and gradients by PyTorch's automatic differentiation; no array is copied."""
    leaves = [torch.from_numpy(x).requires_grad_(with_gradient) for x in arrays]
    out = function(*leaves)
    if not with_gradient:
        return (out.numpy(),)
    out.backward(torch.from_numpy(d_out))
    return tuple(x.numpy() for x in (out.detach(), *(leaf.grad for leaf in leaves)))


def compare(
    what: str,
    results: Mapping[str, Sequence[Any]],
    tolerance: float,
    *,
    outputs: Sequence[str] = ("out", "d_q", "d_k", "d_v"),
    to: str = "jit",
) -> None:
    """All ``results`` are those of ``to``, as far as they go.

    Parameters
    ----------
    what : str
        What was computed, for the error.
    results : mapping from str to sequence of arrays
        By kernel; a kernel may leave out the last ones.
    tolerance : float
        Of each array's largest number.
    outputs : sequence of str
        The arrays' names.
    to : str

    Raises
    ------
    RuntimeError
        Two differ, or something is no number.
    """
    for name, arrays in results.items():
        for output, got, want in zip(outputs, arrays, results[to], strict=False):
            error = float(abs(got.reshape(want.shape) - want).max() / abs(want).max())
            if not error < tolerance:
                raise RuntimeError(f"{what}: {name} and {to} differ in {output} by {error:.1e} of its largest entry")


def time(
    row: Callable[..., Row],
    setting: tuple[Any, ...],
    kernels: Mapping[str, Callable[[], object]],
    repeats: int,
    calls: int = 1,
) -> list[Row]:
    """A row for each kernel, from ``repeats`` rounds; each does its work ``calls`` times when it is called."""
    return [
        row(*setting, name, median_ms / calls, min_ms / calls, *ratios)
        for name, (median_ms, min_ms, *ratios) in against_jit(kernels, repeats).items()
    ]


# --- Showing --------------------------------------------------------------------------------------------------------


def by_setting(rows: Iterable[Row]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Each setting's rows by kernel."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        *setting, kernel = row[:-4]
        found.setdefault(tuple(setting), {})[kernel] = row
    return found


def table(
    header: Sequence[str],
    rows: Iterable[Row],
    order: Iterable[str],
    *,
    cells: Callable[[tuple[Any, ...]], Sequence[Any]] = tuple,
    unit: tuple[str, float] = ("ms", 1.0),
) -> list[str]:
    """The lines of a Markdown table, one a setting: ``jit``'s time, and the others' times it, median (least).

    Parameters
    ----------
    header : sequence of str
        Of the setting's cells.
    rows : iterable of rows
    order : iterable of str
        Kernels that come first; those that have no row are left out.
    cells : callable
        What is shown of a setting; all of it unless given.
    unit : (str, float)
        And how many of it are a millisecond.
    """
    found = by_setting(rows)
    names = dict.fromkeys([*order, *(name for kernels in found.values() for name in kernels)])
    others = [name for name in names if name != "jit" and any(name in kernels for kernels in found.values())]
    lines = []
    for setting, kernels in found.items():
        time = f"{unit[1] * kernels['jit'].median_ms:.2f} {unit[0]}"
        ratios = (f"{row.ratio_median:.2f} ({row.ratio_min:.2f})" if row else "" for row in map(kernels.get, others))
        shown = [{True: "yes", False: "no"}[cell] if isinstance(cell, bool) else str(cell) for cell in cells(setting)]
        lines.append([*shown, time, *ratios])
    rule = ["---"] * len(header) + ["---:"] * (1 + len(others))
    return [f"| {' | '.join(line)} |" for line in ([*header, "jit", *others], rule, *lines)]


TOLD = "jit: CPU time, median; the others: times jit's, median (least)."


def compared(versions: Mapping[str, str], wanted: Iterable[str]) -> str:
    """Which packages took part, and which of ``wanted`` are missing."""
    there = ", ".join(f"{name} {version}" for name, version in versions.items())
    missing = ", ".join(name for name in wanted if name not in versions)
    parts = (there and f"{there}.", missing and f"Not installed, so not compared: {missing}.")
    return " ".join(filter(None, parts))


class Curve(NamedTuple):
    label: str
    colour: str
    look: str  # matplotlib's marker and line
    points: list[tuple[int, float]]  # length and value; none: not drawn


def draw(panels: Mapping[str, Sequence[Curve]], label: str, *, log: bool = True) -> Figure:
    """A panel for each title, values against the length."""
    figure, axes = style.figure(1, len(panels), height=0.45, sharey=True)
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        axis.set(title=title, xlabel="N = L", xscale="log", **({"yscale": "log"} if log else {}))
        lengths = sorted({length for curve in curves for length, _ in curve.points})
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
    drawn = [_draw_lines(axis, curves) for axis, curves in zip(axes, panels.values(), strict=True)]
    axes[0].set_ylabel(label)
    if log:
        axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[0].yaxis.set_major_formatter("{x:g}")
    else:
        axes[0].set_ylim(bottom=0)  # after all are drawn: they share the axis
    for axis, lines in zip(axes, drawn, strict=True):
        axis.set_ylim(axis.get_ylim())
        _name_lines(axis, lines)
    return figure


def _draw_lines(axis: Axes, curves: Sequence[Curve]) -> list[tuple[Line2D, Curve]]:
    there = [curve for curve in curves if curve.points]
    return [(axis.plot(*zip(*curve.points, strict=True), curve.look, color=curve.colour)[0], curve) for curve in there]


def _name_lines(axis: Axes, lines: Sequence[tuple[Line2D, Curve]]) -> None:
    """At their ends; what was run at one length alone, beside its point."""
    for _, curve in lines:
        if len(curve.points) == 1:
            look: dict[str, Any] = {"ha": "left", "va": "center", "xytext": (6, 0)}
            labels.at(axis, *curve.points[0], f"{curve.label}:\nno longer one was run", curve.colour, **look)
    long = [(line, curve.label) for line, curve in lines if len(curve.points) > 1]
    labels.at_ends(axis, [line for line, _ in long], [textwrap.fill(name, 20) for _, name in long])


PER_TOKEN = "µs a token, all heads, one thread"


def per_token(row: Any, length: int) -> tuple[int, float]:
    """A point of a curve: microseconds."""
    return length, 1e3 * row.median_ms / length
