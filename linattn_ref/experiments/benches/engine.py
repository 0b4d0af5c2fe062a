"""What the benches on a CPU have in common: compare, time, tabulate, draw.

A bench is a table of cases and peers. A case is a *setting* and *kernels*, calls by name, one of them ``"jit"``; each
kernel gets a :class:`Row` at each setting. `bench` makes ``compute`` of a function that goes through the cases::

    @engine.bench("heads", "repeats")
    def compute(*, lengths=(256, 512), heads=8, repeats=7, seed=0) -> engine.Measured:
        for length in lengths:
            yield from engine.measure({"length": length}, {"jit": ours, "pytorch": theirs}, repeats, tolerance=1e-4)
        return {"versions": {"PyTorch": ...}}

Everything runs in this process on the same numbers, in turn: one call of each, and again, so that a machine whose speed
drifts is as fast for all. Measured is CPU time, on one thread. A ratio is a kernel's time over that of ``jit`` in the
same round, so above 1 ``jit`` is the faster; the median of the rounds' ratios says what to expect, the least what held
every time. Before any of it, all results are compared: a fast wrong answer is no answer.
"""

from __future__ import annotations

import functools
import importlib
import textwrap
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from linattn_ref.experiments.measuring.timing import against_jit, one_thread
from linattn_ref.experiments.publishing import labels, style
from linattn_ref.op import Array

__all__ = ["BOTH", "FORWARD", "PASSES", "PER_TOKEN", "TOLD", "Call", "Curve", "Fields", "Measured", "Results", "Row"]
__all__ += ["bench", "check_counts", "compare", "compared", "draw", "find", "measure", "page", "per_token"]
__all__ += ["rows_of", "table"]

PASSES = FORWARD, BOTH = "forward", "forward + backward"
Call = Callable[[], Sequence[Array]]  # out; and the gradients, if they are asked for


class Fields(SimpleNamespace):
    """Numbers and words by name, as they stand in a record."""

    def _asdict(self) -> dict[str, Any]:
        return vars(self)


class Row(Fields):
    """A kernel at a setting: the setting's own names, then ``kernel``, then its times."""

    median_ms: float  # CPU time
    min_ms: float
    ratio_median: float  # its time over jit's in the same round
    ratio_min: float


class Results(Fields):
    """What a bench was asked for and found, by name."""

    versions: dict[str, str]  # of the packages compared with
    rows: tuple[Row, ...]


Measured = Generator[Row, None, dict[str, Any]]  # the rows; in the end, what else the results have, by name


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


# --- Measuring ------------------------------------------------------------------------------------------------------


def bench(*told: str, results: type[Results] = Results) -> Callable[[Callable[..., Measured]], Callable[..., Results]]:
    """Make ``compute``, which returns `Results`, of a generator of rows; on one thread.

    Parameters
    ----------
    *told : str
        The options that are kept in the results. All that are numbers, but for the seed, must be at least 1.
    results : type, optional
        One whose annotations say what else it has. The rows are last, unless the generator says where they stand.
    """

    def of(cases: Callable[..., Measured]) -> Callable[..., Results]:
        @functools.wraps(cases)
        def compute(**options: Any) -> Results:
            options = {**(cases.__kwdefaults__ or {}), **options}
            check_counts(**{n: x for n, x in options.items() if n != "seed" and not isinstance(x, (bool, str, type))})
            facts: dict[str, Any] = {}

            def rows() -> Generator[Row, None, None]:
                facts.update((yield from cases(**options)))

            with one_thread(find("torch")):
                measured = tuple(rows())
            return results(**{**{name: options[name] for name in told}, **facts, "rows": measured})

        compute.__annotations__ = {"return": results}
        return compute

    return of


def measure(
    setting: Mapping[str, Any],
    kernels: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    tolerance: float | None = None,
    apart: Iterable[str] = (),
    expected: Mapping[str, Sequence[Any]] | None = None,
    outputs: Sequence[str] = ("out", "d_q", "d_k", "d_v"),
    what: str | None = None,
    called: str = "kernel",
    often: int = 1,
    calls: int | None = None,
) -> list[Row]:
    """Compare what the kernels return, then time them in turn: a row for each.

    Parameters
    ----------
    setting : mapping
        What the rows have in common.
    kernels : mapping
        By name; one of them is ``"jit"``.
    repeats : int
        Rounds, after one that is not counted.
    tolerance : float, optional
        See `compare`; without it nothing is compared.
    apart : iterable of str
        Kernels whose result is another one.
    expected : mapping, optional
        Results to be compared in the place of those that the kernels return.
    outputs : sequence of str
    what : str, optional
        For the error; by default the setting's words.
    called : str
        The field of a row that has the kernel's name.
    often : int
        How often a kernel is called each time; its times are those of one call.
    calls : int, optional
        How often a kernel does its work when it is called once.
    """
    if tolerance is not None:
        results = expected or {name: kernel() for name, kernel in kernels.items() if name not in apart}
        words = [f"{name}={x}" if isinstance(x, bool) else x for name, x in setting.items() if type(x) is not int]
        compare(what or ", ".join(words), results, tolerance, outputs=outputs)
    many = {name: functools.partial(_often, kernel, often) if often > 1 else kernel for name, kernel in kernels.items()}
    times = against_jit(many, repeats, work=calls or often)
    return [Row(**setting, **{called: name}, **one._asdict()) for name, one in times.items()]


def _often(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


# --- Showing --------------------------------------------------------------------------------------------------------


def rows_of(results: Any, **wanted: Any) -> list[Row]:
    """The rows, of results or of a list of them, with these values."""
    rows = getattr(results, "rows", results)
    return [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]


def by_setting(rows: Iterable[Row]) -> dict[tuple[Any, ...], dict[str, Row]]:
    """Each setting's rows by kernel."""
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        *setting, kernel = list(vars(row).values())[:-4]
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


def page(*tables: Sequence[str], note: Sequence[str]) -> str:
    """Tables, and sentences below them."""
    return "\n\n".join("\n".join(lines) for lines in (*tables, [" ".join(note)]))


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


def per_token(rows: Iterable[Row]) -> list[tuple[int, float]]:
    """The points of a curve: microseconds against the length."""
    lengths = ((row.length if hasattr(row, "length") else row.size, row.median_ms) for row in rows)
    return [(length, 1e3 * median_ms / length) for length, median_ms in lengths]
