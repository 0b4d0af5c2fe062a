"""What is wrong where a check fails: every known mistake is tried, and those that fit what came back are named.

A mistake fits if what the kernel returned is much nearer to the answer with this mistake than to the right one. Two
mistakes cannot be made again, because what they lose is noise or NaN. They are recognised by that.
"""

import numpy as np

from linattn_ref.conform import wrong_gradients, wrong_outputs  # noqa: F401  # which fill HYPOTHESES
from linattn_ref.conform.formulas import alone
from linattn_ref.conform.hypotheses import HYPOTHESES
from linattn_ref.conform.questions import Arrays, Question

__all__ = ["HYPOTHESES", "diagnose"]

FITS = 0.05  # of the distance from the right answer, at most


def diagnose(
    question: Question, got: Arrays, right: Arrays, failed: set[str], unit_error: float
) -> list[tuple[str, str, float]]:
    """Name and sentence of the hypotheses that fit, best first, each with its distance relative to the right answer's.

    ``failed`` has the arrays that were found wrong; ``unit_error`` is one rounding in the precision asked.
    """
    of = "output" if failed & {"out", "s", "z"} else "gradient"
    found = []
    for each in HYPOTHESES.values():
        if each.of != of or question.op not in each.ops:
            continue
        with np.errstate(all="ignore"):
            guess = each.guess(question, right)
        if guess is None or not all(np.isfinite(x).all() for x in guess.values()):
            continue
        names = [name for name in right if name in got and name.startswith("d_") == (of == "gradient")]
        names = [name for name in names if name in guess or (of == "gradient" and name in failed)]
        left = distance(got, {**right, **guess}, names, right) / max(distance(got, right, names, right), 1e-300)
        if left < FITS:
            found.append((each.name, each.sentence, left))
    noise = failed == {"d_log_gate"} and cancels(question, got, right, unit_error)
    lost = np.isneginf(question.inputs.get("log_gate", 0.0)).any() and np.isnan(got["out"]).any()
    for name in () if found else ("gate_by_cancellation",) * noise + ("gates_summed_up",) * bool(lost):
        found.append((name, HYPOTHESES[name].sentence, 0.0))
    return sorted(found, key=lambda x: x[2])


@np.errstate(over="ignore")
def distance(got: Arrays, other: Arrays, names: list[str], right: Arrays) -> float:
    """Between two answers, each array by its own size; infinite where one has a number and the other none."""
    total = 0.0
    for name in names:
        if got[name].shape != other[name].shape:
            return np.inf
        both = np.isfinite(got[name]) & np.isfinite(other[name])
        if (np.isfinite(got[name]) != np.isfinite(other[name])).any():
            return np.inf
        size = np.sqrt((np.where(both, right[name], 0) ** 2).sum()) or 1.0
        total += float((np.where(both, got[name] - other[name], 0.0) ** 2).sum() / size**2)
    return float(np.sqrt(total))


def cancels(question: Question, got: Arrays, right: Arrays, unit_error: float) -> bool:
    """Whether the gate's error is as large as what a running sum of q dq + e de - k dk rounds off."""
    if not alone(question):
        return False
    size = abs(question.inputs["q"] * right["d_q"]) + abs(question.inputs["k"] * right["d_k"])
    size = size if question.axis("log_gate") == -2 else size.sum(axis=-1)
    off = abs(got["d_log_gate"] - right["d_log_gate"]).max()
    return bool(off < 64 * unit_error * size.sum(axis=question.axis("log_gate")).max())
