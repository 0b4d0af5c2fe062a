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

    @classmethod
    def compare(
        cls, name: str, index: tuple[int, ...], analytic: Any, numeric: Any, step: float, rtol: float, atol: float
    ) -> "Entry":
        """Two values that may be off by ``atol + rtol * max(|analytic|, |numeric|)``."""
        analytic, numeric = float(analytic), float(numeric)
        return cls(name, index, analytic, numeric, atol + rtol * max(abs(analytic), abs(numeric)), step)

    @property
    def absolute(self) -> float:
        """``|analytic - numeric|``."""
        return abs(self.analytic - self.numeric)

    @property
    def relative(self) -> float:
        """The absolute error beside the larger of the two values; 0 where both are 0."""
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
        )


class Report(NamedTuple):
    """What a check found; true where the gradient is right."""

    method: str
    worst_by_input: tuple[Entry, ...]  # one for each input that has a gradient
    checked: int  # comparisons made
    failed: int  # of them, off by more than the tolerance
    constants: tuple[str, ...]  # float inputs without a gradient: held fixed, not checked

    @classmethod
    def of(cls, method: str, entries: list[Entry], constants: tuple[str, ...]) -> "Report":
        """The report of all comparisons made."""
        worst: dict[str, Entry] = {}
        for entry in entries:
            if entry.name not in worst or entry.excess > worst[entry.name].excess:
                worst[entry.name] = entry
        failed = sum(entry.excess > 1.0 for entry in entries)
        return cls(method, tuple(worst.values()), len(entries), failed, constants)

    @property
    def ok(self) -> bool:
        """Whether every comparison is within its tolerance."""
        return self.failed == 0

    @property
    def worst(self) -> Entry:
        """The comparison that is off by the most, in units of its tolerance."""
        return max(self.worst_by_input, key=lambda entry: entry.excess)

    def assert_ok(self) -> None:
        """Raise :class:`GradientError`, with the report as its message, unless ``ok``."""
        if not self.ok:
            raise GradientError(str(self))

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = f"ok, {self.checked} compared" if self.ok else f"WRONG in {self.failed} of {self.checked}"
        lines = [f"{self.method}: {verdict}", *(f"  {entry}" for entry in self.worst_by_input)]
        if self.constants:
            lines.append(f"  without a gradient, held fixed: {', '.join(self.constants)}")
        return "\n".join(lines)
