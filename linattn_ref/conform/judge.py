"""Asks a target, and compares what comes back with the right answer, entry by entry, in units of the budget."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.conform.budget import allowed, is_blind
from linattn_ref.conform.questions import OPS, Arrays, Question, answer, ask
from linattn_ref.conform.target import Answer, Target

__all__ = ["Judge", "Place", "Trial", "compare"]


class Place(NamedTuple):
    """One array, at the entry that is off by the most and at the first that is off by more than is allowed."""

    array: str
    worst: float  # in units of the budget
    at: tuple[int, ...]  # the first that is off by too much, or else the worst
    got: float
    expected: float
    allowed: float
    trial: str
    by_token: tuple[float, ...] = ()  # the worst of each token
    blind: bool = False

    @property
    def ok(self) -> bool:
        return self.worst <= 1 and not self.blind

    def __str__(self) -> str:
        if self.blind:
            return f"{self.array}: cannot be judged, zeros would pass"
        at = ", ".join(map(str, self.at))
        off = f"off by {abs(self.got - self.expected):.2g}, allowed {self.allowed:.2g}"
        return f"{self.array}[{at}]: got {self.got:.6g}, expected {self.expected:.6g}, {off}"


class Trial(NamedTuple):
    """A question that was answered."""

    note: str  # what is special
    question: Question
    got: Answer
    right: Arrays
    places: list[Place]


class Judge:
    """Asks a target, and compares."""

    def __init__(self, target: Target, seed: int = 0, full: bool = False) -> None:
        self.target, self.full = target, full
        self.rng = np.random.default_rng(seed)
        self.compare = partial(compare, dtype=target.dtype)

    @property
    def dtype(self) -> str:
        """What inputs are rounded to."""
        return self.target.dtype

    def ask(self, **options: Any) -> Question:
        """A question with what the target has built in."""
        fixed = self.target.mapping.fixed
        kept = {name: x for name, x in options.items() if name not in fixed}
        if "causal" in kept and not self.target.offers("causal"):
            del kept["causal"]
        normalise = {"normalise": True} if self.target.offers("normalise") else {}
        given = {"gate_per": self.target.mapping.gate, "dtype": self.dtype, **normalise, **fixed, **kept}
        if given.get("state") and "causal" in OPS[self.target.op].options:
            given["causal"] = True
        if self.target.mapping.layout == "packed":
            given.setdefault("leading", (1, 4))
        if self.target.mapping.widths == "same":
            given["m"] = given.get("d", 8)
        if groups := fixed.get("groups"):
            *batch, heads = given.get("leading", (2, 4))
            given["leading"] = (*batch, groups * max(1, heads // groups))
        return ask(self.target.op, self.rng, **given)

    def trial(self, note: str, question: Question, only: tuple[str, ...] | None = None) -> Trial:
        """Ask, and compare all that came back, or the arrays of these names only."""
        return self.compared(note, question, self.target.answer(question), only)

    def compared(self, note: str, question: Question, got: Answer, only: tuple[str, ...] | None = None) -> Trial:
        """What came back with what it should be."""
        right = answer(question)
        budget = allowed(question, right, self.target.dtype)
        names = [name for name in right if name in got.arrays and (only is None or name in only)]
        places = [self.compare(note, name, got.arrays[name], right[name], budget[name], question) for name in names]
        return Trial(note, question, got, right, places)

    def same(self, trial: Trial, name: str, got: np.ndarray, expected: np.ndarray, budget: Any = 0.0) -> Trial:
        """Something else that must hold of a trial's answer."""
        question = trial.question if name in trial.right else None
        return trial._replace(places=[self.compare(trial.note, name, got, expected, budget, question)])


def compare(
    note: str,
    name: str,
    got: np.ndarray,
    right: np.ndarray,
    budget: Any = 0.0,
    question: Question | None = None,
    dtype: str = "",
) -> Place:
    """One array with what it should be."""
    if got.shape != right.shape:
        raise ValueError(f"{name}: expected shape {right.shape} (heads before tokens), got {got.shape}")
    budget = np.broadcast_to(np.asarray(budget, float), right.shape)
    off = abs(got - right)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(off == 0, 0.0, off / budget)
    ratio = np.where(np.isfinite(got), ratio, np.inf)
    if not ratio.size:
        return Place(name, 0.0, (), 0.0, 0.0, 0.0, note)
    at = int((ratio > 1).argmax()) if (ratio > 1).any() else int(ratio.argmax())
    index = tuple(map(int, np.unravel_index(at, ratio.shape)))
    by_token: tuple[float, ...] = ()
    if question is not None and name not in ("s", "z", "d_s", "d_z"):
        axis = question.axis("d_out" if name == "out" else name.removeprefix("d_")) % ratio.ndim
        by_token = tuple(ratio.max(axis=tuple(i for i in range(ratio.ndim) if i != axis)).tolist())
    first, expected, most = (float(x[index]) for x in (got, right, budget))
    blind = is_blind(right, budget, dtype)
    return Place(name, float(ratio.max()), index, first, expected, most, note, by_token, blind)
