"""What the judge found: a table for the terminal, JSON, and a page with the error of each token."""

import html
import json
import math
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from linattn_ref import __version__, atomic
from linattn_ref.conform.budget import FACTOR

__all__ = ["Outcome", "Report"]

# What errors are measured in.
UNITS = f"the budget, {FACTOR:g} times the error of an honest implementation in this precision"

PASSED, FAILED, NOT_OFFERED, RAISED, HUNG = "passed", "FAILED", "not offered", "RAISED", "HUNG"


class Outcome(NamedTuple):
    """One check."""

    name: str
    why: str
    verdict: str
    worst: float = 0.0  # of all arrays, in units of the budget
    where: str = ""  # the first place that is off by more than its budget, or why nothing was checked
    diagnosis: tuple[str, ...] = ()  # the mistakes that fit, best first
    named: tuple[str, ...] = ()  # their names
    by_token: tuple[tuple[str, tuple[float, ...]], ...] = ()  # the worst of each token, by trial and array
    traceback: tuple[str, ...] = ()  # of the target, where it raised

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict in (PASSED, NOT_OFFERED)

    @property
    def told(self) -> str:
        """The worst error; nothing where nothing was compared."""
        return f"{self.worst:.3g}" if self.verdict in (PASSED, FAILED) else ""


class Report(NamedTuple):
    """All checks of a target."""

    target: str
    op: str
    dtype: str
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether all that is offered passes."""
        return all(outcome.ok for outcome in self.outcomes)

    def __bool__(self) -> bool:
        return self.ok

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, str):
            return {outcome.name: outcome for outcome in self.outcomes}[name]
        return tuple.__getitem__(self, name)

    def assert_ok(self) -> None:
        """Raise an AssertionError that says what is wrong."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        width = max(len(outcome.name) for outcome in self.outcomes)
        lines = [f"{self.target} as {self.op}, {self.dtype}"]
        first: dict[Any, str] = {}  # the check that found a mistake, by what it is
        for outcome in self.outcomes:
            more = [*outcome.traceback, *(f"agrees if {sentence}" for sentence in outcome.diagnosis)]
            more += [f"why: {outcome.why}"] * (not outcome.ok)
            what = outcome.diagnosis or (outcome.verdict == RAISED and outcome.where)
            if what and first.setdefault(what, outcome.name) != outcome.name:
                more = [f"as {first[what]}"]
            where = outcome.where if more != [f"as {first.get(what)}"] or outcome.verdict != RAISED else ""
            lines.append(f"  {outcome.name:{width}}  {outcome.verdict:11}  {outcome.told:>9}  {where}".rstrip())
            lines += [f"  {'':{width}}  {line}" for line in more]
        count = {verdict: sum(x.verdict == verdict for x in self.outcomes) for verdict in (PASSED, NOT_OFFERED)}
        failed = len(self.outcomes) - sum(count.values())
        lines.append(
            f"{count[PASSED]} passed, {failed} failed, {count[NOT_OFFERED]} not offered; errors in units of {UNITS}"
        )
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON has it; infinity as null."""
        outcomes = [outcome._asdict() for outcome in self.outcomes]
        return clean({"linattn_ref": __version__, **self._asdict(), "outcomes": outcomes, "ok": self.ok})

    def save(self, path: Path, page: bool = False) -> None:
        """Write it as JSON, or as a page of HTML."""
        atomic.write_all({path: self.as_html() if page else json.dumps(self.as_json(), indent=1) + "\n"})

    def as_html(self) -> str:
        """The report as a page."""
        rows = [
            f"<tr class={'ok' if x.ok else 'bad'}><td>{x.name}<td>{x.verdict}<td>{x.told}<td>"
            + "<br>".join([html.escape(x.where), *(f"<b>agrees if {html.escape(y)}</b>" for y in x.diagnosis)])
            + f"<pre>{html.escape(chr(10).join(x.traceback))}</pre>" * bool(x.traceback)
            + f"<td>{html.escape(x.why)}"
            for x in self.outcomes
        ]
        plots = [
            figure(f"{x.name}: {title}", tokens)
            for x in self.outcomes
            for title, tokens in x.by_token
            if not x.ok or x.name in ("gates", "lengths")
        ]
        by_gate = [
            figure(array, tuple(worst.values()), tuple(worst))
            for x in self.outcomes
            if x.name == "gates"
            for array, worst in worst_by_gate(x).items()
        ]
        if by_gate:
            by_gate.insert(0, "<h2>Error by log gate</h2>\n<p>The worst of all tokens, each gate the same for all.</p>")
        title = html.escape(f"{self.target} as {self.op}, {self.dtype}")
        verdict = "all that is offered passes" if self.ok else "not everything passes"
        parts = {"rows": rows, "gates": by_gate, "plots": plots}
        joined = {name: "\n".join(lines) for name, lines in parts.items()}
        page = Template(files("linattn_ref.conform").joinpath("page.html").read_text(encoding="utf-8"))
        return page.substitute(title=title, verdict=verdict, units=UNITS, **joined)


def worst_by_gate(outcome: Outcome) -> dict[str, dict[str, float]]:
    """The largest error of each array, by the gate that was asked."""
    found: dict[str, dict[str, float]] = {}
    for title, tokens in outcome.by_token:
        if title.startswith("log gate "):
            gate, array = title.removeprefix("log gate ").split()
            found.setdefault(array, {})[gate] = max(tokens)
    return found


def figure(caption: str, tokens: tuple[float, ...], names: tuple[str, ...] = ()) -> str:
    """Error in units of the budget by token or by ``names``, from 0.001 to a million, logarithmic, as SVG."""
    low, high, width, height = -3.0, 6.0, 260, 90

    def y(x: float) -> float:
        log = high if not math.isfinite(x) else math.log10(max(x, 10.0**low))
        return min(max(height * (high - log) / (high - low), 2.0), height - 2.0)  # whole dots

    step = width / max(len(tokens), 1)
    dots = "".join(f'<circle cx="{(i + 0.5) * step:.1f}" cy="{y(x):.1f}" r="2"/>' for i, x in enumerate(tokens))
    budget = f'<line x2="{width}" y1="{y(1):.1f}" y2="{y(1):.1f}"/>'
    texts = "".join(f'<text x="{(i + 0.5) * step:.1f}" y="{height - 3}">{name}</text>' for i, name in enumerate(names))
    svg = f'<svg width="{width}" height="{height}" role="img">{budget}{dots}{texts}</svg>'
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def clean(x: Any) -> Any:
    """With null for what JSON has no number for."""
    if isinstance(x, dict):
        return {name: clean(y) for name, y in x.items()}
    if isinstance(x, (tuple, list)):
        return [clean(y) for y in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
