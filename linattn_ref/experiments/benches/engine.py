"""What the benches on a CPU have in common: compare, time, tabulate, draw.

A bench is a table of cases and peers. A case is a *setting* and *kernels*, calls by name, one of them ``"jit"``; each
kernel gets a row at each setting: the setting's own names, ``kernel``, and its times. `bench` makes ``compute`` of a
function that goes through the cases, here one for each length::

    @engine.bench("heads", "repeats", settings={"lengths": 1})
    def compute(*, lengths=(256, 512), heads=8, repeats=7, seed=0) -> engine.Measured:
        for length in lengths:
            yield from engine.measure({"length": length}, {"jit": ours, "pytorch": theirs}, repeats, tolerance=1e-4)
        return {"versions": {"PyTorch": ...}}

Everything runs in this process on the same numbers, in turn: one call of each, and again, so that a machine whose speed
drifts is as fast for all. Measured is CPU time, on one thread. A ratio is a kernel's time over that of ``jit`` in the
same round, so above 1 ``jit`` is the faster; the median of the rounds' ratios says what to expect, the least what held
every time. Before any of it, all results are compared: a fast wrong answer is no answer. For a step that goes
on from its own state the second results are compared: they depend on the state that the first one left.
"""

import functools
import importlib
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator
from tqdm import tqdm

from linattn_ref.experiments.measuring.points import check_counts
from linattn_ref.experiments.measuring.timing import against_jit, one_thread
from linattn_ref.experiments.publishing.kit import Array, Figure, Results, labels, markdown, style
from linattn_ref.kernels import jit, reference

__all__ = ["BACKENDS", "BOTH", "BY_PASSES", "FORWARD", "PASSES", "TOLD", "Call", "Lines", "Measured"]
__all__ += ["bench", "causal_lines", "check_counts", "compare", "compared", "draw", "find", "going_on", "measure"]
__all__ += ["ours", "page", "per_token", "rows_of", "run", "table"]

BACKENDS = {"jit": jit, "reference": reference}
PASSES = FORWARD, BOTH = "forward", "forward + backward"
OUTPUTS = ("out", "d_q", "d_k", "d_v")
Call = Callable[[], Sequence[Array]]  # out; and the gradients, if they are asked for
Measured = Generator[Results, None, dict[str, Any]]  # the rows; in the end, what else the results have, by name


# --- Before the clock starts ----------------------------------------------------------------------------------------


def find(module: str) -> Any:
    """The module, or None where it, or what it needs, is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def run(page: Any, arrays: Sequence[Any], d_out: Array, passes: str, **options: Any) -> Sequence[Array]:
    """The output of a page's ``forward``, and with ``BOTH`` passes the gradients."""
    out, saved = page.forward(*arrays, **options)
    return (out, *page.backward(d_out, saved)) if passes == BOTH else (out,)


def ours(page: Any, arrays: Sequence[Array], d_out: Array, passes: str, **options: Any) -> dict[str, Call]:
    """A page by each of this package's backends; see `run`."""
    options |= {"page": page, "arrays": arrays, "d_out": d_out, "passes": passes}
    return {name: functools.partial(run, kernels=backend, **options) for name, backend in BACKENDS.items()}


def compare(
    what: str, results: Mapping[str, Any], tolerance: float, *, outputs: Sequence[str] = OUTPUTS, to: str = "jit"
) -> None:
    """Raise unless all ``results`` are those of ``to``, as far as they go.

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


def bench(*told: str, settings: Mapping[str, int] = {}) -> Callable[[Callable[..., Measured]], Callable[..., Results]]:
    """Make ``compute`` of a generator of rows: it runs on one thread, and a terminal shows how much is left.

    ``rows`` of its results are last, unless the generator says where they stand.

    Parameters
    ----------
    *told : str
        The options that are kept in the results. All that are numbers, but for the seed, must be at least 1.
    settings : mapping
        Of options that are several numbers, how many settings each of these has; of two options, written with a space
        between them, each pair.
    """

    def of(cases: Callable[..., Measured]) -> Callable[..., Results]:
        @functools.wraps(cases)
        def compute(**options: Any) -> Results:
            options = {**(cases.__kwdefaults__ or {}), **options}
            check_counts(**{n: x for n, x in options.items() if n != "seed" and not isinstance(x, (bool, str))})
            facts: dict[str, Any] = {}
            count = 0
            for names, each in settings.items():
                count += each * math.prod(len(options[name]) for name in names.split())

            def rows() -> Generator[Results, None, None]:
                facts.update((yield from cases(**options)))

            with one_thread(find("torch")), tqdm(total=count or None, unit="setting", disable=None) as bar:
                measured = []
                for row in rows():
                    measured.append(row)
                    bar.update("jit" in row.values())  # of each setting the first
            return Results({**{name: options[name] for name in told}, **facts, "rows": tuple(measured)})

        compute.__annotations__ = {"return": Results}
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
    outputs: Sequence[str] = OUTPUTS,
    called: str = "kernel",
    often: int = 1,
) -> list[Results]:
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
    called : str
        The field of a row that has the kernel's name.
    often : int
        How often a kernel is called each time; its times are those of one call. If more than once, second results
        are compared.
    """
    if tolerance is not None:
        results = expected or {
            name: [np.asarray(x) for x in _often(kernel, min(often, 2))]
            for name, kernel in kernels.items()
            if name not in apart
        }
        words = (x if isinstance(x, str) else f"{name}={x}" for name, x in setting.items())
        compare(", ".join(words), results, tolerance, outputs=outputs)
    many = {name: functools.partial(_often, kernel, often) for name, kernel in kernels.items()}
    times = against_jit(many, repeats, work=often)
    return [Results(**setting, **{called: name}, **one) for name, one in times.items()]


def _often(call: Callable[[], Any], times: int) -> Any:
    """The last result; no other is kept."""
    for _ in range(times - 1):
        call()
    return call()


def going_on(step: Callable[[Any], tuple[Array, Any]], state: Any) -> Call:
    """Return a call of a step of the recurrent form, which goes on from the state that the call before returned."""

    def call() -> Sequence[Array]:
        nonlocal state
        out, state = step(state)
        return (out,)

    return call


# --- Showing --------------------------------------------------------------------------------------------------------


def rows_of(results: Any, **wanted: Any) -> list[Results]:
    """The rows, of results or of a list of them, with these values."""
    rows = results.rows if isinstance(results, Results) else results
    return [row for row in rows if wanted.items() <= row.items()]


def table(
    header: Sequence[str],
    rows: Iterable[Results],
    order: Iterable[str],
    *,
    cells: Callable[[tuple[Any, ...]], Sequence[Any]] = tuple,
    unit: tuple[str, float] = ("ms", 1.0),
) -> list[str]:
    """The lines of a Markdown table, one per setting: ``jit``'s time, and the others' times it, median (least).

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
    found: dict[tuple[Any, ...], dict[str, Results]] = {}
    for row in rows:
        *setting, kernel = list(row.values())[:-4]
        found.setdefault(tuple(setting), {})[kernel] = row
    there = dict.fromkeys(name for kernels in found.values() for name in kernels)
    others = [name for name in dict.fromkeys([*order, *there]) if name in there and name != "jit"]
    lines = []
    for key, kernels in found.items():
        time = f"{unit[1] * kernels['jit'].median_ms:.2f} {unit[0]}"
        ratios = (f"{row.ratio_median:.2f} ({row.ratio_min:.2f})" if row else "" for row in map(kernels.get, others))
        shown = [{True: "yes", False: "no"}[cell] if isinstance(cell, bool) else str(cell) for cell in cells(key)]
        lines.append([*shown, time, *ratios])
    return markdown.table([*header, "jit", *others], lines, "l" * len(header) + "r")


TOLD = "jit: CPU time, median; the others: times jit's, median (least)."


def compared(versions: Mapping[str, str], wanted: Iterable[str]) -> str:
    """Which packages took part, and which of ``wanted`` did not."""
    there = ", ".join(f"{name} {version}" for name, version in versions.items())
    missing = ", ".join(name for name in wanted if name not in versions)
    parts = (there and f"{there}.", missing and f"Not compared here: {missing}.")
    return " ".join(filter(None, parts))


def page(*tables: Sequence[str], note: Sequence[str]) -> str:
    """Tables, and sentences below them."""
    return "\n\n".join("\n".join(lines) for lines in (*tables, [" ".join(note)]))


def per_token(row: Results) -> float:
    """Microseconds, where a row is of so many tokens."""
    return float(1e3 * row.median_ms / _length(row))


def _length(row: Results) -> int:
    return int(row.get("length") or row["size"])


Lines = Mapping[str, tuple[str, str, Mapping[str, Any]]]  # by label: colour, matplotlib's format, which rows
BY_PASSES = {passes: {"passes": passes} for passes in PASSES}


def causal_lines(colours: Mapping[str, str], called: str = "kernel") -> Lines:
    """Two lines per kernel, solid and, where it is causal, dashed."""
    return {
        f"{name}, causal" if causal else name: (colour, "o--" if causal else "o-", {called: name, "causal": causal})
        for name, colour in colours.items()
        for causal in (False, True)
    }


def draw(
    rows: Any,
    panels: Mapping[str, Mapping[str, Any]],
    lines: Lines,
    label: str = "µs per token, all heads, one thread",
    *,
    value: Callable[[Results], float] = per_token,
    log: bool = True,
) -> Figure:
    """A panel for each title, of those rows that have its values: a value against the length, one line per kernel."""
    figure, axes = style.figure(1, len(panels), height=0.45, sharey=True)
    beside: dict[str, Any] = {"ha": "left", "va": "center", "xytext": (6, 0)}
    for axis, (title, where) in zip(axes, panels.items(), strict=True):
        axis.set(title=title, xlabel="N = L", xscale="log", yscale="log" if log else "linear")
        lengths: set[int] = set()
        for name, (colour, look, which) in lines.items():
            points = [(_length(row), value(row)) for row in rows_of(rows, **where, **which)]
            if points:
                axis.plot(*zip(*points, strict=True), look, color=colour, label=name if len(points) > 1 else "")
            if len(points) == 1:
                labels.at(axis, *points[0], f"{name}:\nno longer one was run", colour, **beside)
            lengths |= {length for length, _ in points}
        labels.ticks(axis, sorted(lengths))
    axes[0].set_ylabel(label)
    if log:
        axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[0].yaxis.set_major_formatter("{x:g}")
    else:
        axes[0].set_ylim(bottom=0)  # after all are drawn: they share the axis
    for axis in axes:
        labels.at_ends(axis, width=20)
    return figure
