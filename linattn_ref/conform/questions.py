"""What a kernel is asked, and the right answer: our own pages in float64, on inputs that the kernel's dtype can hold.

A :class:`Question` has the arrays of one call under the pages' names, in float64, each already rounded to the dtype
that the kernel gets, so that nobody is blamed for the rounding of inputs. Heads come before tokens. Packed sequences
and shared heads are answered by what they mean, a loop over the sequences and repeated heads.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import delta, gated_linear, linear, softmax

__all__ = ["ALL", "DELTAS", "GATED", "OPS", "PAIRS", "RULES", "SCALED", "STATES", "Arrays", "Op", "Question", "answer"]
__all__ += ["ask", "rounded", "run"]

Arrays = dict[str, np.ndarray]


class Op(NamedTuple):
    """An operation that can be judged."""

    page: ModuleType
    inputs: tuple[str, ...]
    options: tuple[str, ...]  # that a kernel may have
    state: tuple[str, ...]  # the arrays of its state


ALWAYS = "scale", "key_mask", "state", "offsets", "groups"
OPS: dict[str, Op] = {
    "softmax": Op(softmax, ("q", "k", "v"), ("causal", "scale", "key_mask", "offsets", "groups"), ()),
    "linear": Op(linear, ("q", "k", "v"), ("causal", "key_mask", "state", "offsets", "groups"), ("s", "z")),
    "gated_linear": Op(gated_linear, ("q", "k", "v", "log_gate"), ALWAYS, ("s",)),
    "delta": Op(delta, ("q", "k", "v", "beta"), ALWAYS, ("s",)),
    "gated_delta": Op(delta, ("q", "k", "v", "beta", "log_gate"), ALWAYS, ("s",)),
}
PAIRS, RULES = ("softmax", "linear"), ("gated_linear", "delta", "gated_delta")
GATED, DELTAS = ("gated_linear", "gated_delta"), ("delta", "gated_delta")
SCALED, STATES, ALL = ("softmax", *RULES), (*RULES, "linear"), (*PAIRS, *RULES)


class Question(NamedTuple):
    """One call: what goes in, and the gradients of what comes out."""

    op: str
    inputs: Arrays
    options: dict[str, Any]  # causal, scale, normalise, eps, key_mask, offsets, groups, where not the page's default
    d_out: np.ndarray
    state: tuple[np.ndarray, ...] | None = None
    d_state: tuple[np.ndarray, ...] | None = None

    @property
    def causal(self) -> bool:
        """Whether a query sees the keys up to its own alone."""
        return "causal" not in OPS[self.op].options or bool(self.options.get("causal"))

    @property
    def scale(self) -> float:
        """What the scores are multiplied by."""
        given = self.options.get("scale")
        return float(self.inputs["q"].shape[-1] ** -0.5 if given is None else given)

    @property
    def normalise(self) -> bool:
        """Whether queries and keys are normalised."""
        return "beta" in self.inputs and bool(self.options.get("normalise", True))

    @property
    def given(self) -> set[str]:
        """The options that it has, a state among them."""
        more = {"causal": self.causal, "normalise": self.normalise, "state": self.state, "d_state": self.d_state}
        return {name for name, x in {**self.options, **more}.items() if x is not None and x is not False}

    def axis(self, name: str) -> int:
        """Where an array has its tokens: before its channels, or last where it has a number per token."""
        return -2 if name in ("q", "k", "v", "d_out") or self.inputs[name].ndim == self.inputs["q"].ndim else -1

    def change(self, **changes: Any) -> Question:
        """With other inputs or options; an option that is None has its default."""
        inputs = {name: changes.pop(name, x) for name, x in self.inputs.items()}
        fields = {name: changes.pop(name) for name in ("state", "d_out", "d_state") if name in changes}
        options = {name: x for name, x in {**self.options, **changes}.items() if x is not None}
        return self._replace(inputs=inputs, options=options, **fields)

    def rows(self, start: int, stop: int) -> Question:
        """The tokens from ``start`` on and before ``stop``, with the same state and without a gradient of one."""
        inputs = {name: x.take(range(start, stop), self.axis(name)) for name, x in self.inputs.items()}
        mask = self.options.get("key_mask")
        options = self.options if mask is None else {**self.options, "key_mask": mask[..., start:stop]}
        return self._replace(inputs=inputs, options=options, d_out=self.d_out[..., start:stop, :], d_state=None)


def rounded(x: Any, dtype: str) -> np.ndarray:
    """The nearest numbers that ``dtype`` has, as float64; those that all dtypes have for ``all``."""
    x = np.asarray(x, np.float64)
    if dtype == "all":
        return rounded(rounded(x, "bfloat16"), "float16")
    if dtype != "bfloat16":
        return x.astype(dtype).astype(np.float64)
    # the first 16 bits of a float32
    bits = np.atleast_1d(x.astype(np.float32)).view(np.uint32)
    even = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # half to even
    return np.where(np.isfinite(x), even.astype(np.uint32).view(np.float32).astype(np.float64).reshape(x.shape), x)


def ask(
    op: str,
    rng: np.random.Generator,
    *,
    dtype: str = "float32",
    leading: tuple[int, ...] = (2, 4),
    n: int = 20,
    keys: int | None = None,
    d: int = 8,
    m: int = 6,
    gate_per: str = "head",
    state: bool = False,
    d_state: bool = False,
    groups: int = 1,
    offsets: Any = None,
    **options: Any,
) -> Question:
    """Draw a question of these sizes at random; options that are None are left out.

    Where the delta rule does not normalise its keys, they have length 1, since longer ones make the state grow without
    bound.
    """
    keys, kv = n if keys is None else keys, (*leading[:-1], leading[-1] // groups)

    def draw(*shape: int) -> np.ndarray:
        return rounded(rng.standard_normal(shape), dtype)

    inputs = {"q": draw(*leading, n, d), "k": draw(*kv, keys, d), "v": draw(*kv, keys, m)}
    if options.get("normalise") is False:
        inputs.update({x: rounded(inputs[x] / np.linalg.norm(inputs[x], axis=-1, keepdims=True), dtype) for x in "qk"})
    if "beta" in OPS[op].inputs:
        inputs["beta"] = rounded(rng.uniform(0.05, 0.95, (*kv, keys)), dtype)
    if "log_gate" in OPS[op].inputs:
        inputs["log_gate"] = rounded(-rng.uniform(0.01, 0.6, (*kv, keys, *[d] * (gate_per == "channel"))), dtype)
    count = kv if offsets is None else (len(offsets) - 1, *kv)
    shapes = [{"s": (*count, d, m), "z": (*count, d)}[name] for name in OPS[op].state]
    first = tuple(draw(*shape) for shape in shapes) if state else None
    if first is not None and op == "linear":  # sums of features, which are positive
        first = tuple(abs(x) for x in first)
    fixed = {"groups": groups if groups > 1 else None, "offsets": offsets}
    kept = {name: x for name, x in {**options, **fixed}.items() if x is not None}
    d_last = tuple(draw(*shape) for shape in shapes) if d_state and shapes else None
    return Question(op, inputs, kept, draw(*leading, n, m), first, d_last)


def parts(question: Question) -> list[Question]:
    """The sequences of a packed question, each by itself."""
    offsets = [int(x) for x in question.options["offsets"]]
    found = []
    for p, (start, stop) in enumerate(itertools.pairwise(offsets)):
        states = [None if x is None else tuple(y[p] for y in x) for x in (question.state, question.d_state)]
        found.append(question.rows(start, stop).change(offsets=None, state=states[0], d_state=states[1]))
    return found


def answer(question: Question, dtype: Any = np.float64, *, page: Any = None) -> Arrays:
    """Output, last state, and the gradient of everything: ``out``, ``s``, ``d_q``, ..., and ``d_s`` for a first state.

    ``page`` is another that computes the same.
    """
    if "offsets" in question.options:
        return joined(question, [answer(each, dtype, page=page) for each in parts(question)])
    if "groups" in question.options:
        return shared(question, dtype, page)
    if not question.inputs["k"].shape[-2]:
        return nothing(question, dtype)
    names = OPS[question.op].state
    out, saved, grads = run(question, dtype, page)
    found = {"out": out, **{name: getattr(saved.state, name) for name in names if saved.state is not None}}
    found |= {f"d_{name}": getattr(grads, name) for name in question.inputs}
    if question.state is not None:
        found |= {f"d_{name}": getattr(grads.state, name) for name in names}
    return found


def run(question: Question, dtype: Any = np.float64, page: Any = None) -> tuple[Any, Any, Any]:
    """What a page answers: its output, what it saved, and its gradients."""
    op = OPS[question.op]
    page, given = page or op.page, [x.astype(dtype) for x in question.inputs.values()]
    state, d_state = (
        {name: op.page.State(*(y.astype(dtype) for y in x))} if (x := getattr(question, name)) is not None else {}
        for name in ("state", "d_state")
    )
    out, saved = page.forward(*given, **question.options, **state)
    return out, saved, page.backward(question.d_out.astype(dtype), saved, **d_state)


def nothing(question: Question, dtype: Any) -> Arrays:
    """The answer for an empty sequence: its state is the one that it began with."""
    op, inputs = OPS[question.op], question.inputs
    shapes = {"s": (*inputs["k"].shape[:-2], inputs["k"].shape[-1], inputs["v"].shape[-1])}
    shapes["z"] = shapes["s"][:-1]
    first, d_last = (x or [np.zeros(shapes[name]) for name in op.state] for x in (question.state, question.d_state))
    found = {"out": question.d_out, **dict(zip(op.state, first, strict=True))}
    found |= {f"d_{name}": x for name, x in inputs.items()}
    found |= {f"d_{name}": x for name, x in zip(op.state, d_last, strict=True)} if question.state is not None else {}
    return {name: np.asarray(x, dtype) for name, x in found.items()}


def joined(question: Question, answers: list[Arrays]) -> Arrays:
    """The answers for packed sequences in one: tokens one after the other, states side by side."""
    rows = {"out": -2, **{f"d_{name}": question.axis(name) for name in question.inputs}}
    sides = {name: [x[name] for x in answers] for name in answers[0]}
    return {name: np.concatenate(x, rows[name]) if name in rows else np.stack(x) for name, x in sides.items()}


def shared(question: Question, dtype: Any, page: Any) -> Arrays:
    """The answer for shared heads: these are repeated, and their gradients are sums over the heads that share them."""
    groups, heads = question.options["groups"], question.inputs["k"].ndim - 3
    inputs = {name: x if name == "q" else x.repeat(groups, heads) for name, x in question.inputs.items()}
    state = None if question.state is None else tuple(x.repeat(groups, heads) for x in question.state)
    mask = question.options.get("key_mask")
    mask = None if mask is None else mask.repeat(groups, heads)
    repeated = question.change(**inputs, groups=None, state=state, key_mask=mask)
    if question.d_state is not None:  # of the one state that the repeated ones are copies of
        shares = [np.zeros_like(x.repeat(groups, heads)) for x in question.d_state]
        for share, x in zip(shares, question.d_state, strict=True):
            share[(slice(None),) * heads + (slice(None, None, groups),)] = x
        repeated = repeated._replace(d_state=tuple(shares))
    found = answer(repeated, dtype, page=page)
    for name, x in found.items():
        if name in ("out", "d_q"):
            continue
        split = x.reshape(*x.shape[:heads], x.shape[heads] // groups, groups, *x.shape[heads + 1 :])
        found[name] = split.sum(axis=heads + 1) if name.startswith("d_") else split[(slice(None),) * (heads + 1) + (0,)]
    return found
