"""What people get wrong, by name: mistakes of outputs (`wrong_outputs`) and of gradients (`wrong_gradients`).

A hypothesis computes what a kernel with one mistake would return. For outputs, it changes the question or one line of
the formula. For gradients, which are asked for once the outputs are right, it changes one line of the derivation.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from linattn_ref.conform.formulas import Inapplicable
from linattn_ref.conform.questions import ALL, Arrays, Question, answer

__all__ = ["HYPOTHESES", "Hypothesis", "gradient", "output"]

Words = tuple[str, ...]


class Hypothesis(NamedTuple):
    """One mistake. ``guess`` returns the arrays that it changes, or None where it changes none."""

    name: str
    sentence: str  # "agrees if ..."
    ops: tuple[str, ...]
    of: str  # output or gradient
    guess: Callable[[Question, Arrays], Arrays | None]


HYPOTHESES: dict[str, Hypothesis] = {}


def output(name: str, sentence: str, ops: Words = ALL, needs: str = "", without: str = "") -> Callable[[Any], Any]:
    """A mistake of the forward pass, which turns a question into the one that is answered, or into ``out`` itself.

    It shows only in questions that have the options ``needs``, and none of ``without``. States are options here.
    """

    def register(mistake: Callable[[Question], Any]) -> Any:
        def guess(x: Question, right: Arrays) -> Arrays | None:
            found = mistake(x)
            return None if found is None else answer(found) if isinstance(found, Question) else {"out": found}

        return gradient(name, sentence, ops, needs, without, "output")(guess)

    return register


def gradient(
    name: str, sentence: str, ops: Words = ALL, needs: str = "", without: str = "", of: str = "gradient"
) -> Callable[[Any], Any]:
    """A mistake of the backward pass: the gradients that it changes."""

    def register(mistake: Callable[[Question, Arrays], Arrays | None]) -> Any:
        def guess(x: Question, right: Arrays) -> Arrays | None:
            if x.given.issuperset(needs.split()) and x.given.isdisjoint(without.split()):
                with contextlib.suppress(Inapplicable):
                    return mistake(x, right)
            return None

        HYPOTHESES[name] = Hypothesis(name, sentence, ops, of, guess)
        return mistake

    return register
