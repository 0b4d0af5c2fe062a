"""What people get wrong, by name: mistakes of outputs (`wrong_outputs`) and of gradients (`wrong_gradients`).

A hypothesis makes the answer that a kernel with one mistake would give. Of outputs it changes the question, or the one
line of the formula that is mistaken; of gradients, once outputs are right, the line of the derivation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from linattn_ref.conform.questions import Arrays, Question, answer

__all__ = ["ALL", "DELTAS", "GATED", "HYPOTHESES", "RULES", "SCALED", "Hypothesis", "gradient", "output"]

SCALED = "softmax", "gated_linear", "delta", "gated_delta"
RULES = "gated_linear", "delta", "gated_delta"
GATED = "gated_linear", "gated_delta"
DELTAS = "delta", "gated_delta"
ALL = "softmax", "linear", *RULES


class Hypothesis(NamedTuple):
    """One mistake. ``guess`` gives the arrays that it changes, or None where it changes none."""

    name: str
    sentence: str  # "agrees if ..."
    ops: tuple[str, ...]
    of: str  # output or gradient
    guess: Callable[[Question, Arrays], Arrays | None]


HYPOTHESES: dict[str, Hypothesis] = {}


def output(name: str, sentence: str, ops: tuple[str, ...] = ALL) -> Callable[[Any], Any]:
    """A mistake of the forward pass, which turns a question into the one that is answered, or into ``out`` itself."""

    def register(mistake: Callable[[Question], Any]) -> Any:
        def guess(question: Question, right: Arrays) -> Arrays | None:
            found = mistake(question)
            if found is None:
                return None
            return (
                answer(found) if isinstance(found, Question) else found if isinstance(found, dict) else {"out": found}
            )

        HYPOTHESES[name] = Hypothesis(name, sentence, ops, "output", guess)
        return mistake

    return register


def gradient(name: str, sentence: str, ops: tuple[str, ...] = ALL) -> Callable[[Any], Any]:
    """A mistake of the backward pass: the gradients that it changes."""

    def register(mistake: Callable[[Question, Arrays], Arrays | None]) -> Any:
        HYPOTHESES[name] = Hypothesis(name, sentence, ops, "gradient", mistake)
        return mistake

    return register
