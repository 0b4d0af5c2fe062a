"""How far off an answer may be: what an honest implementation in the kernel's precision is, and no more.

The question is answered again in float32 (or float64), several times: by our pages as they are (softmax also in tiles
and as fused kernels have it, causal linear attention also in chunks), with the channels in another order, so that sums
are rounded otherwise, and with inputs that are off by a unit in the last place, as a product that is rounded on the way
is. What is allowed is :data:`FACTOR` times the sum of

- the largest error that any of these makes, of the entries that are computed together (a row of channels);
- one rounding of the largest number of its head, since another order of a sum leaves something where ours leaves 0; for
  a number per token (``beta``, a gate per head), which is a sum over the tokens, times the square root of their number;
- for softmax, one rounding of the largest score: ``exp(a - logsumexp(a))`` keeps that much of it.

So a kernel at strong gates, where all gradients are small, is judged by what its precision can do there. A kernel of 16
bits adds in float32 and rounds what it returns, so it is also allowed twice the error of one rounding. Softmax
attention in 16 bits may also round what it multiplies (`recomputed`); no other sum may be kept in 16 bits.

Zeros never pass: an array of which most entries are allowed to be off by their own size cannot be judged, which fails.
"""

from typing import Any

import numpy as np

from linattn_ref.attention import chunked_linear, online_softmax
from linattn_ref.conform import recomputed
from linattn_ref.conform.questions import Arrays, Question, answer

__all__ = ["FACTOR", "allowed", "is_blind", "rounding"]

FACTOR = 8.0
ORDERS = 2  # further orders of the channels
GRIDS = 1.0, 1.2, 1.4  # on which 16 bits are rounded in other directions

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # the relative error of one rounding
SMALLEST = {"float16": 2.0**-24}  # the smallest number above 0, where gradients may be smaller


def allowed(question: Question, right: Arrays, dtype: str) -> Arrays:
    """The largest error allowed of each entry."""
    working = np.dtype(np.float64 if dtype == "float64" else np.float32)
    rng = np.random.default_rng(0)
    unit, tiny = (2.0**-52, 0.0) if dtype == "float64" else (2.0**-23, 2.0**-126)
    unit = 2.0**-10 if dtype == "tfloat32" else unit  # products of float32 that keep 10 bits
    off = {name: np.zeros(x.shape) for name, x in right.items()}
    fused = (recomputed.page(dtype, grid) for grid in (GRIDS if dtype in UNIT else (1.0,)))
    others: dict[str, tuple[Any, ...]] = {"softmax": (online_softmax, *fused)}
    others["linear"] = (chunked_linear,) if question.causal else (None,)
    for page in (None, *others.get(question.op, (None,))):  # which compute the same; None, as our page does
        for order in range(1 + ORDERS):
            d, m = question.inputs["q"].shape[-1], question.inputs["v"].shape[-1]
            of_d, of_m = (rng.permutation(width) if order else np.arange(width) for width in (d, m))
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                asked = reordered(nudged(question, unit, rng) if order else question, of_d, of_m)
                honest = answer(asked, working, page=page)
            for name in right:
                there = reordered_array(name, honest[name], np.argsort(of_d), np.argsort(of_m), question)
                off[name] = np.fmax(off[name], abs(there - right[name]))
    score = 0.0
    if question.op == "softmax":
        longest = [np.linalg.norm(question.inputs[x], axis=-1).max(initial=0.0) for x in "qk"]
        score = question.scale * longest[0] * longest[1]
    found = {}
    for name, x in off.items():
        rows = x.ndim == question.inputs["q"].ndim or name in ("s", "d_s")
        size = abs(right[name])
        together = x.max(axis=-1, keepdims=True, initial=0.0) if rows else x
        head = size.max(axis=(-2, -1) if rows else -1, keepdims=True, initial=0.0)
        once = unit / 2 * head * (1.0 + score if rows else np.sqrt(size.shape[-1]))
        found[name] = np.broadcast_to(FACTOR * (together + once) + tiny, size.shape) + rounding(right[name], dtype)
    return found


def rounding(right: np.ndarray, dtype: str) -> np.ndarray:
    """Twice the error of rounding to 16 bits, which comes after all else; float16's smallest steps are of one size."""
    return 2 * UNIT.get(dtype, 0.0) * abs(right) + SMALLEST.get(dtype, 0.0) * (right != 0)


def nudged(question: Question, unit: float, rng: np.random.Generator) -> Question:
    """With queries, keys and values off by a unit in the last place, or not: roundings on the way do as much."""
    rows = {name: question.inputs[name] for name in "qkv"}
    return question.change(**{name: x * (1 + unit * rng.integers(-1, 2, x.shape)) for name, x in rows.items()})


def is_blind(right: np.ndarray, budget: np.ndarray, dtype: str) -> bool:
    """Whether zeros would pass where the right answer is something else, and more than the dtype's smallest number."""
    there = abs(right) > SMALLEST.get(dtype, 0.0)
    return bool(there.any() and (budget >= abs(right))[there].mean() > 0.5)


def reordered(question: Question, of_d: np.ndarray, of_m: np.ndarray) -> Question:
    """The same question with its channels in another order."""

    def turn(name: str, x: np.ndarray) -> np.ndarray:
        return reordered_array(name, x, of_d, of_m, question)

    inputs: dict[str, Any] = {name: turn(name, x) for name, x in question.inputs.items()}
    for name in ("state", "d_state"):
        if (x := getattr(question, name)) is not None:
            inputs[name] = tuple(turn(part, y) for part, y in zip(("s", "z"), x, strict=False))
    return question.change(**inputs, d_out=turn("d_out", question.d_out))


def reordered_array(name: str, x: np.ndarray, of_d: np.ndarray, of_m: np.ndarray, question: Question) -> np.ndarray:
    kind = name.removeprefix("d_")
    if kind == "s":
        return x[..., of_d, :][..., of_m]
    if kind in ("v", "out"):
        return x[..., of_m]
    if kind in ("q", "k", "z") or (kind == "log_gate" and question.axis("log_gate") == -2):
        return x[..., of_d]
    return x
