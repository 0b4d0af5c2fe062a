"""What a gradient check found: the worst comparison of each input, not just whether all is well."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Entry", "GradientError", "Report"]


class GradientError(AssertionError):
    """A gradient that a check found wrong; the message is the report."""


@dataclass(frozen=True)
class Entry:
    """One comparison."""

    name: str  # of the input, as in "k"; "norm[0][1]" for a part of one that is a tuple
    index: tuple[int, ...]  # of the entry, or (number of the direction,)
    analytic: float  # what backward says
    numeric: float  # what forward says
    tolerance: float
    step: float
    noise: float = 0.0  # what of the tolerance is for rounding
    undecided: str = ""  # why nothing can be said, if so

    @classmethod
    def compare(
        cls, name: str, index: tuple[int, ...], analytic: Any, numeric: Any, step: float, rtol: float, noise: float
    ) -> "Entry":
        """Two values that may be off by ``noise + rtol * max(|analytic|, |numeric|)``."""
        analytic, numeric, noise = float(analytic), float(numeric), float(noise)
        none = "forward has no number at this point, or beside it" if math.isnan(numeric) else ""
        return cls(name, index, analytic, numeric, noise + rtol * max(abs(analytic), abs(numeric)), step, noise, none)

    @property
    def absolute(self) -> float:
        """``|analytic - numeric|``."""
        return abs(self.analytic - self.numeric)

    @property
    def relative(self) -> float:
        """The absolute error divided by the larger of the two values; 0 where both are 0."""
        size = max(abs(self.analytic), abs(self.numeric))
        return self.absolute / size if size else self.absolute

    @property
    def excess(self) -> float:
        """The error in units of the tolerance, infinite for NaN: the entry is right if this is at most 1."""
        if self.absolute == 0.0:
            return 0.0
        if not math.isfinite(self.absolute) or self.tolerance == 0.0:
            return math.inf
        return self.absolute / self.tolerance

    def __str__(self) -> str:
        return (
            f"{self.name}[{', '.join(map(str, self.index))}]: "
            f"backward {self.analytic:.6g}, numeric {self.numeric:.6g}, off by {self.absolute:.2g} "
            f"(relative {self.relative:.2g}), allowed {self.tolerance:.2g}, step {self.step:.2g}"
            f"{'; ' * bool(self.undecided)}{self.undecided}"
        )


class Report(NamedTuple):
    """What a check found; true where the gradient is right."""

    method: str
    worst_by_input: tuple[Entry, ...]  # one for each input that has a gradient
    checked: int  # comparisons made
    failed: int  # of them, off by more than the tolerance
    constants: tuple[str, ...]  # float inputs without a gradient: held fixed, not checked
    inconclusive: int = 0  # comparisons that say nothing, since a wrong gradient could have passed

    @classmethod
    def of(cls, method: str, entries: list[Entry], constants: tuple[str, ...]) -> "Report":
        """The report of all comparisons made."""
        worst: dict[str, Entry] = {}
        for entry in entries:
            if entry.name not in worst or _order(entry) > _order(worst[entry.name]):
                worst[entry.name] = entry
        failed = sum(entry.excess > 1.0 and not entry.undecided for entry in entries)
        undecided = sum(bool(entry.undecided) for entry in entries)
        return cls(method, tuple(worst.values()), len(entries), failed, constants, undecided)

    @property
    def ok(self) -> bool:
        """Whether every comparison is within its tolerance, and would not be were the gradient wrong."""
        return self.failed == 0 and self.inconclusive == 0

    @property
    def reason(self) -> str:
        """Why nothing can be said; empty where something can."""
        return next((entry.undecided for entry in self.worst_by_input if entry.undecided), "")

    @property
    def worst(self) -> Entry:
        """The comparison that is off by the most, in units of its tolerance; then one that says nothing."""
        return max(self.worst_by_input, key=_order)

    def assert_ok(self) -> None:
        """Raise :class:`GradientError`, with the report as its message, unless ``ok``."""
        if not self.ok:
            raise GradientError(str(self))

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        found = (("WRONG", self.failed), ("INCONCLUSIVE", self.inconclusive))
        verdict = ", ".join(f"{word} in {count} of {self.checked}" for word, count in found if count)
        lines = [f"{self.method}: {verdict or f'ok, {self.checked} compared'}"]
        lines += [f"  {entry}" for entry in self.worst_by_input]
        if self.constants:
            lines.append(f"  without a gradient, held fixed: {', '.join(self.constants)}")
        return "\n".join(lines)


def _order(entry: Entry) -> tuple[bool, bool, float]:
    """The worst last: right, undecided, wrong."""
    return entry.excess > 1.0 and not entry.undecided, bool(entry.undecided), entry.excess
