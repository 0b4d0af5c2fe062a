"""A page of ``attention/`` as a reader has changed it: is its gradient still that of its forward pass?

The page's module is replaced by the changed text; `gradcheck` compares every entry of every gradient with differences
of the forward pass; `suspects` finds the lines that can be to blame.
"""

import importlib
import json
import linecache
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.gradcheck import Entry, Report, check_elementwise
from linattn_ref.lecture.run import examples
from linattn_ref.lecture.run.suspects import suspects
from linattn_ref.lecture.site import beside

__all__ = ["Text", "Workbench", "changed"]


class Workbench:
    """One page. ``send(kind, content)`` gets the verdict, as JSON."""

    def __init__(self, module: str, send: Callable[[str, str], object]) -> None:
        self.page, self.send = importlib.import_module(module), send
        self.source = Path(str(self.page.__file__)).read_text(encoding="utf-8")
        self.file = f"{module.replace('.', '/')}.py"  # as tracebacks name it
        self.calls = examples.calls(self.page)
        self.before = [self.page.forward(*call.arrays, **call.options)[0] for call in self.calls]

    def check(self, rows: Mapping[int, str]) -> None:
        """Check the page with other text in these rows of its web page, which their first line names."""
        text = changed(self.source, rows)
        _replace(self.page, text.source, self.file)
        vars(self.page).update(examples.SMALL.get(self.page.__name__.rpartition(".")[2], {}))
        reports, moved = [], ""
        for call, before in zip(self.calls, self.before, strict=True):
            forward = partial(self.page.forward, **call.options)
            reports.append(check_elementwise(forward, self.page.backward, *call.arrays, rng=0))
            moved = moved or _moved(forward(*call.arrays)[0], before)
        entries = [entry for report in reports for entry in report.worst_by_input]
        worst = {entry.name: entry for entry in Report.of("", entries, ()).worst_by_input}
        wrong = {name.partition("[")[0] for name, entry in worst.items() if entry.excess > 1}
        if moved:  # then the passes differ because of what was changed
            to_blame = {*rows}
        else:
            lines = suspects(text.source, getattr(self.page.Gradients, "_fields", ()), wrong)
            to_blame = {text.rows[line - 1] for line in lines}
        said = _sentences(worst, sum(report.checked for report in reports), moved)
        report = "\n".join(str(each) for each in reports)
        ok = not wrong and not moved
        self.send("checked", json.dumps({"ok": ok, "said": said, "report": report, "rows": sorted(to_blame)}))


# --- The text ---------------------------------------------------------------------------------------------------------


class Text(NamedTuple):
    """The text of a page, and of each line the row in which it stands: the number of the row's first line."""

    source: str
    rows: list[int]


def changed(source: str, rows: Mapping[int, str]) -> Text:
    """The text with other code in some rows. Docstrings, which stand beside the code, stay."""
    lines = source.splitlines()
    owners = [0] * len(lines)
    for part in reversed(beside.segments(source)):
        first, last = part.lines[0], part.lines[-1]
        new = lines[first - 1 : last]
        if first in rows:
            new = _with_docstring(part, lines, rows[first])
        lines[first - 1 : last] = new
        owners[first - 1 : last] = [first] * len(new)
    return Text("\n".join(lines) + "\n", owners)


def _with_docstring(part: beside.Segment, lines: list[str], text: str) -> list[str]:
    """What is written in a row, with what is not shown there: empty lines around it, and the docstring below a head."""
    shown = [lines[number - 1] for number in part.lines]
    code = [at for at, line in enumerate(shown) if line.strip()]
    hidden = [lines[number - 1] for number in range(part.lines[0], part.lines[-1]) if number not in part.lines]
    new = text.split("\n")
    head = next((at for at, line in enumerate(new, 1) if line.partition("#")[0].rstrip().endswith(":")), 0)
    return [*shown[: code[0]], *new[:head], *hidden, *new[head:], *shown[code[-1] + 1 :]]


def _replace(page: ModuleType, source: str, file: str) -> None:
    """Run the text in place of the module's, which others have imported."""
    code = compile(source, file, "exec")
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = vars(page)
    for name in [name for name in names if not name.startswith("__")]:
        del names[name]
    exec(code, names)


# --- In words ---------------------------------------------------------------------------------------------------------


def _moved(out: Any, before: Any) -> str:
    """Where the output is no longer what it was; "" for nowhere."""
    if np.shape(out) != before.shape:
        return f"forward returns an output of shape {np.shape(out)}; the page's has shape {before.shape}."
    off = abs(out - before)
    at = np.unravel_index(np.argmax(np.where(np.isnan(off), np.inf, off)), off.shape)
    if off[at] <= 1e-9 * abs(before).max():
        return ""
    where = ", ".join(map(str, at))
    return f"forward computes something else: out[{where}] was {before[at]:.4g} and is {out[at]:.4g}."


def _sentences(worst: Mapping[str, Entry], count: int, moved: str) -> list[str]:
    wrong = [entry for entry in worst.values() if entry.excess > 1]
    names = dict.fromkeys(name.partition("[")[0] for name in worst)
    right = [name for name in names if name not in {entry.name.partition("[")[0] for entry in wrong}]
    said = [moved] if moved else []
    for entry in wrong:
        where = f"{entry.name}[{', '.join(map(str, entry.index))}]"
        said.append(
            f"The gradient of {entry.name} is wrong. At {where} backward returns {entry.analytic:.4g}, differences of "
            f"forward give {entry.numeric:.4g}: off by {entry.absolute:.2g}, where {entry.tolerance:.1g} is allowed."
        )
    if not wrong:
        said.append(f"The gradient is right: {count} entries, of {_listed(right)}, agree with differences of forward.")
    elif right:
        said.append(f"Right: the gradient{'s' * (len(right) > 1)} of {_listed(right)}.")
    return said


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
