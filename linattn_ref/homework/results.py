"""What a submission got: lines for a terminal, JSON as Gradescope reads it, and a page for the student."""

import html
import json
from typing import NamedTuple

from linattn_ref.homework.grading import Result
from linattn_ref.homework.sheet import Sheet, template

__all__ = ["Report"]


class Report(NamedTuple):
    """A submission, graded."""

    sheet: Sheet
    results: tuple[Result, ...]
    protection: str

    @property
    def score(self) -> float:
        return sum(x.points for x in self.results)

    def __str__(self) -> str:
        lines = [f"{self.sheet.title}: {self.score:g} of {self.sheet.points:g} points"]
        for x in self.results:
            lines.append(f"  {x.points:4g}/{x.item.points:<4g} {x.item.title}")
            lines += [f"             {line}" for line in told(x)]
        return "\n".join([*lines, self.protection])

    def as_json(self) -> str:
        """Gradescope's ``results.json``, without times: the same submission gives the same file."""
        tests = [
            {
                "number": str(number),
                "name": x.item.title,
                "score": x.points,
                "max_score": x.item.points,
                "status": "passed" if x.points else "failed",
                "output": "\n".join(told(x)),
                "tags": list(x.named),
            }
            for number, x in enumerate(self.results, 1)
        ]
        found = {"score": self.score, "output": self.protection, "visibility": "visible", "tests": tests}
        return json.dumps(found, indent=1) + "\n"

    def as_html(self) -> str:
        rows = [
            f"<tr class={'ok' if x.points else 'lost'}><td>{x.points:g} of {x.item.points:g}"
            f"<td>{html.escape(x.item.title)}<td>{'<br>'.join(map(html.escape, told(x)))}"
            for x in self.results
        ]
        title = html.escape(f"{self.sheet.title}: {self.score:g} of {self.sheet.points:g} points")
        return template("page.html").format(title=title, rows="\n".join(rows), protection=html.escape(self.protection))


def told(x: Result) -> list[str]:
    """What is wrong, in words; mistakes that fit first."""
    if not x.why:
        return []
    words = [*x.says, x.why]
    return words if x.points else [*words, f"look at: {x.item.hint}"]
