"""What people get wrong: where a check fails, each of these is tried, and the one that fits is named.

A hypothesis makes the answer that a kernel with one mistake would give. Of outputs it changes the question, or the one
line of the formula that is mistaken; of gradients, once outputs are right, the line of the derivation. It fits where
what the kernel gave is much nearer to this than to the right answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import delta_rule
from linattn_ref.attention.delta import unit, unit_backward
from linattn_ref.attention.features.feature_maps import elu_plus_one
from linattn_ref.conform.questions import Arrays, Question, answer

__all__ = ["HYPOTHESES", "Hypothesis", "diagnose"]

SCALED = "softmax", "gated_linear", "delta", "gated_delta"
RULES = "gated_linear", "delta", "gated_delta"
GATED = "gated_linear", "gated_delta"
DELTAS = "delta", "gated_delta"
ALL = "softmax", "linear", *RULES
FITS = 0.05  # of the distance from the right answer


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


# The scale.


@output("scale_twice", "the scale is applied twice", SCALED)
def _(x: Question) -> Any:
    return x.change(scale=x.scale**2)


@output("scale_missing", "no scale is applied", SCALED)
def _(x: Question) -> Any:
    return x.change(scale=1.0)


@output("scale_default", "the scale that was given is ignored", SCALED)
def _(x: Question) -> Any:
    return x.change(scale=None) if "scale" in x.options else None


@output("scale_times_default", "the scale that was given multiplies 1 / sqrt(D) instead of replacing it", SCALED)
def _(x: Question) -> Any:
    return x.change(scale=x.scale * x.inputs["q"].shape[-1] ** -0.5) if "scale" in x.options else None


@output("scale_of_values", "the scale is 1 / sqrt(width of the values)", SCALED)
def _(x: Question) -> Any:
    return x.change(scale=x.inputs["v"].shape[-1] ** -0.5)


@output("scale_of_keys_twice", "the scale is applied to q and, again, to k", ("linear",))
def _(x: Question) -> Any:
    s = x.scale**0.5
    return x.change(q=s * x.inputs["q"], k=s * x.inputs["k"])


@output("scale_unasked", "q is scaled, which linear attention does not do", ("linear",))
def _(x: Question) -> Any:
    return x.change(q=x.scale * x.inputs["q"])


# Who sees whom.


def seen(x: Question, ahead: int = 0, aligned: bool = True) -> np.ndarray:
    """Which keys a query sees: up to its own, and ``ahead`` more; both sequences end, or begin, together."""
    n, keys = x.inputs["q"].shape[-2], x.inputs["k"].shape[-2]
    see = np.tri(n, keys, (keys - n) * aligned + ahead, bool)
    mask = x.options.get("key_mask")
    return see if mask is None else see & mask[..., None, :]


def by_weights(x: Question, see: np.ndarray, key_mask: np.ndarray | None = None) -> np.ndarray | None:
    """Attention by its matrix of weights, where there is no state and all heads have their own keys."""
    if {"groups", "offsets"} & {*x.options} or x.state is not None:
        return None
    q, k, v = (x.inputs[name] for name in "qkv")
    if x.op == "softmax":
        a = np.where(see, x.scale * (q @ k.mT), -np.inf)
        w = np.exp(a - np.maximum(a.max(axis=-1, keepdims=True), -1e300))
    else:
        w = np.where(see, elu_plus_one.forward(q)[0] @ elu_plus_one.forward(k)[0].mT, 0.0)
    return w / np.maximum(w.sum(axis=-1, keepdims=True), 1e-300) @ v


@output("causal_ahead", "query i sees key i + 1 as well", ("softmax", "linear"))
def _(x: Question) -> Any:
    return by_weights(x, seen(x, 1)) if x.causal else None


@output("causal_behind", "a query does not see its own key", ("softmax", "linear"))
def _(x: Question) -> Any:
    return by_weights(x, seen(x, -1)) if x.causal else None


@output("causal_ignored", "causal is ignored: every query sees all keys", ("softmax", "linear"))
def _(x: Question) -> Any:
    return x.change(causal=None) if x.causal and x.state is None else None


@output("causal_unasked", "it is causal although that was not asked for", ("softmax", "linear"))
def _(x: Question) -> Any:
    return x.change(causal=True) if not x.causal and x.inputs["q"].shape[-2] <= x.inputs["k"].shape[-2] else None


@output(
    "aligned_at_the_start", "query i sees keys 0 to i, though there are fewer queries than keys", ("softmax", "linear")
)
def _(x: Question) -> Any:
    return by_weights(x, seen(x, 0, False)) if x.causal else None


@output("normalised_over_all_keys", "the denominator runs over all keys, though the numerator is causal", ("linear",))
def _(x: Question) -> Any:
    if not x.causal or x.state is not None or {"groups", "offsets", "key_mask"} & {*x.options}:
        return None
    phi_q, phi_k = (elu_plus_one.forward(x.inputs[name])[0] for name in "qk")
    return np.where(seen(x), phi_q @ phi_k.mT, 0.0) @ x.inputs["v"] / (phi_q @ phi_k.sum(axis=-2)[..., None])


# Masks.


@output("mask_ignored", "key_mask is ignored")
def _(x: Question) -> Any:
    return x.change(key_mask=None) if "key_mask" in x.options else None


@output("mask_inverted", "key_mask is read the other way round: True for keys that are not seen")
def _(x: Question) -> Any:
    mask = x.options.get("key_mask")
    return None if mask is None else x.change(key_mask=~mask)


@output(
    "mask_zeroes_keys",
    "masked keys and values are set to 0 instead of left out (before phi, or before the softmax)",
    ("softmax", "linear"),
)
def _(x: Question) -> Any:
    mask = x.options.get("key_mask")
    if mask is None:
        return None
    return x.change(k=x.inputs["k"] * mask[..., None], v=x.inputs["v"] * mask[..., None], key_mask=None)


@output("mask_lets_fade", "a masked token still lets the state decay", GATED)
def _(x: Question) -> Any:
    mask = x.options.get("key_mask")
    if mask is None:
        return None
    return x.change(k=x.inputs["k"] * mask[..., None], v=x.inputs["v"] * mask[..., None], key_mask=None)


# States, packed sequences, shared heads.


@output("state_ignored", "the state that it was given is ignored")
def _(x: Question) -> Any:
    return x.change(state=None, d_state=None) if x.state is not None else None


@output("state_transposed", "the state is transposed, (M, C) for (C, M)", RULES)
def _(x: Question) -> Any:
    if x.state is None:
        return None
    s = x.state[0]
    return x.change(state=(s.reshape(*s.shape[:-2], s.shape[-1], s.shape[-2]).mT,), d_state=None)


@output("packed_as_one", "packed sequences are taken for one: offsets are ignored")
def _(x: Question) -> Any:
    if "offsets" not in x.options:
        return None
    return x.change(offsets=None) if x.state is None else None


@output("state_of_the_first", "every packed sequence begins from the state of the first")
def _(x: Question) -> Any:
    if "offsets" not in x.options or x.state is None:
        return None
    return x.change(state=tuple(np.broadcast_to(s[:1], s.shape) for s in x.state))


@output("heads_modulo", "query head h reads key head h % K, not h // groups")
def _(x: Question) -> Any:
    if "groups" not in x.options or {"offsets"} & {*x.options} or x.state is not None:
        return None
    heads = x.inputs["q"].ndim - 3
    count = x.inputs["k"].shape[heads]
    order = np.arange(x.inputs["q"].shape[heads]) % count
    repeated = {name: a if name == "q" else a.take(order, heads) for name, a in x.inputs.items()}
    return answer(x.change(**repeated, groups=None))["out"]


# Feature maps and denominators.


def with_features(x: Question, phi: Callable[[np.ndarray], np.ndarray], divide: bool = True) -> np.ndarray | None:
    """Linear attention with another feature map."""
    if {"groups", "offsets"} & {*x.options} or x.state is not None:
        return None
    see = seen(x) if x.causal else seen(x, 10**9)
    w = np.where(see, phi(x.inputs["q"]) @ phi(x.inputs["k"]).mT, 0.0)
    with np.errstate(all="ignore"):
        return w @ x.inputs["v"] / (w.sum(axis=-1, keepdims=True) + 1e-6 if divide else 1.0)


@output("normaliser_missing", "nothing is divided by the denominator", ("linear",))
def _(x: Question) -> Any:
    return with_features(x, lambda a: elu_plus_one.forward(a)[0], divide=False)


@output("feature_map_elu", "the feature map is elu, without the + 1", ("linear",))
def _(x: Question) -> Any:
    return with_features(x, lambda a: np.where(a > 0, a, np.expm1(np.minimum(a, 0))))


@output("feature_map_relu", "the feature map is relu", ("linear",))
def _(x: Question) -> Any:
    return with_features(x, lambda a: np.maximum(a, 0))


@output("feature_map_exp", "the feature map is exp", ("linear",))
def _(x: Question) -> Any:
    return with_features(x, np.exp)


@output("feature_map_missing", "no feature map is applied", ("linear",))
def _(x: Question) -> Any:
    return with_features(x, lambda a: a)


# The rule: decay, read, erase, write.


def by_rule(x: Question, mistake: str = "", **inputs: Any) -> np.ndarray | None:
    """The delta rule row by row, with one line mistaken; equations (1)-(4) of `delta_rule`."""
    if {"groups", "offsets"} & {*x.options}:
        return None
    q, k, v = (x.inputs[name] for name in "qkv")
    if "beta" in x.inputs and x.options.get("normalise", True):
        q, k = unit(q), unit(k)
    beta = x.inputs["beta"][..., None] if "beta" in x.inputs else None
    given = {"value": v if beta is None else beta * v, "erase": np.zeros_like(k) if beta is None else beta * k}
    given |= {"gate": delta_rule.gate_rows(x.inputs.get("log_gate"), q, x.options.get("key_mask"))}
    given |= {name: change(given[name] if name != "k" else k, k, v, beta) for name, change in inputs.items()}
    mask = x.options.get("key_mask")
    if mask is not None:
        k, given["value"], given["erase"] = (a * mask[..., None] for a in (k, given["value"], given["erase"]))
    s = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1])) if x.state is None else x.state[0]
    out = np.empty_like(v)
    for i in range(q.shape[-2]):
        row = (..., slice(i, i + 1), slice(None))
        before, g = s, given["gate"][row].mT
        decayed = g * s  # (1)
        u = given["value"][row] - given["erase"][row] @ (before if mistake == "erase" else decayed)  # (2)
        s = decayed + (g if mistake == "write" else 1.0) * (k[row].mT @ u)  # (3)
        out[row] = x.scale * q[row] @ (decayed if mistake == "read" else s)  # (4)
    return out


@output("gate_ignored", "the gate is ignored", GATED)
def _(x: Question) -> Any:
    return x.change(log_gate=np.zeros_like(x.inputs["log_gate"]))


@output("gate_log2", "the gate is taken for a logarithm to base 2", GATED)
def _(x: Question) -> Any:
    return x.change(log_gate=x.inputs["log_gate"] * np.log(2))


@output("gate_not_a_logarithm", "the gate itself is multiplied, not its exponential", GATED)
def _(x: Question) -> Any:
    def plain(_: Any, k: Any, v: Any, beta: Any) -> np.ndarray:
        gate = x.inputs["log_gate"]
        return gate if gate.ndim == k.ndim else gate[..., None]

    return by_rule(x, gate=plain)


@output("gate_sign", "the gate is exp(-log_gate), which grows", GATED)
def _(x: Question) -> Any:
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return by_rule(x, gate=lambda gate, *_: 1 / gate)


@output("decay_after_read", "the state decays after the read, not before: the gate of a token acts on the next", GATED)
def _(x: Question) -> Any:
    if "offsets" in x.options:
        return None
    gate, axis = x.inputs["log_gate"], x.axis("log_gate")
    moved = np.roll(gate, 1, axis)
    moved[(..., 0, slice(None)) if axis == -2 else (..., 0)] = 0
    return x.change(log_gate=moved)


@output("decay_of_own_write", "the gate fades what its own token writes as well", GATED)
def _(x: Question) -> Any:
    return by_rule(x, "write")


@output(
    "decay_missing_within_chunk", "within a chunk queries read what was written without its decay", ("gated_delta",)
)
def _(x: Question) -> Any:
    rule = rule_saved(x)
    if rule is None:
        return None
    first = 0.0
    if x.state is not None:
        first = np.cumprod(rule.gate, axis=-2) * rule.q @ x.state[0]
    return first + np.tril(rule.q @ rule.k.mT) @ rule.u


@output("gates_summed_up", "logarithms of gates are summed up and subtracted: -inf - -inf is not a number", GATED)
def _(x: Question) -> Any:
    return None  # what is lost depends on the chunks: `diagnose` recognises it by what is lost


@output("read_before_write", "a query reads the state before its own token is written", RULES)
def _(x: Question) -> Any:
    return by_rule(x, "read")


@output("erase_before_decay", "what is to be erased is read from the state before it decays", ("gated_delta",))
def _(x: Question) -> Any:
    return by_rule(x, "erase")


@output("erase_missing", "nothing is erased: values are added as in linear attention", DELTAS)
def _(x: Question) -> Any:
    return by_rule(x, erase=lambda e, *_: 0 * e)


@output("beta_missing", "beta is ignored", DELTAS)
def _(x: Question) -> Any:
    return x.change(beta=np.ones_like(x.inputs["beta"]))


@output("beta_of_values_only", "beta scales the value, but not what is erased", DELTAS)
def _(x: Question) -> Any:
    return by_rule(x, erase=lambda e, k, v, beta: k)


@output("beta_of_erase_only", "beta scales what is erased, but not the value", DELTAS)
def _(x: Question) -> Any:
    return by_rule(x, value=lambda value, k, v, beta: v)


@output("beta_twice", "beta is applied twice", DELTAS)
def _(x: Question) -> Any:
    return by_rule(x, erase=lambda e, k, v, beta: beta * e, value=lambda value, k, v, beta: beta * value)


@output("beta_clipped", "beta is clipped to 1", DELTAS)
def _(x: Question) -> Any:
    return x.change(beta=np.minimum(x.inputs["beta"], 1))


@output("normalised", "q and k are normalised, which was not asked for", DELTAS)
def _(x: Question) -> Any:
    return x.change(normalise=True) if x.options.get("normalise") is False else None


@output("not_normalised", "q and k are not normalised", DELTAS)
def _(x: Question) -> Any:
    return x.change(normalise=False) if x.options.get("normalise", True) else None


@output("only_k_normalised", "k is normalised, and q is not", DELTAS)
def _(x: Question) -> Any:
    return x.change(k=unit(x.inputs["k"]), normalise=False) if x.options.get("normalise", True) else None


# Gradients.


def inner(x: Question) -> Question | None:
    """The question, where one call of a page answers it."""
    return None if {"groups", "offsets"} & {*x.options} else x


@gradient("gradients_zero", "gradients are 0")
def _(x: Question, right: Arrays) -> Arrays | None:
    return {name: 0 * a for name, a in right.items() if name.startswith("d_")}


@gradient("gradient_sign", "gradients have the wrong sign")
def _(x: Question, right: Arrays) -> Arrays | None:
    return {name: -a for name, a in right.items() if name.startswith("d_")}


@gradient("cotangent_ignored", "the gradient of the output is taken for ones")
def _(x: Question, right: Arrays) -> Arrays | None:
    found = answer(x.change(d_out=np.ones_like(x.d_out)))
    return {name: a for name, a in found.items() if name.startswith("d_")}


@gradient("scale_of_d_q", "the gradient of q lacks the scale, a factor of sqrt(D)", SCALED)
def _(x: Question, right: Arrays) -> Arrays | None:
    return {"d_q": right["d_q"] / x.scale}


@gradient("scale_of_d_q_twice", "the gradient of q has the scale twice, a factor of 1 / sqrt(D)", SCALED)
def _(x: Question, right: Arrays) -> Arrays | None:
    return {"d_q": right["d_q"] * x.scale}


@gradient("scale_of_d_k", "the gradient of k lacks the scale, a factor of sqrt(D)", SCALED)
def _(x: Question, right: Arrays) -> Arrays | None:
    return {"d_k": right["d_k"] / x.scale}


@gradient("scale_of_both", "the gradients of q and k lack the scale", SCALED)
def _(x: Question, right: Arrays) -> Arrays | None:
    return {name: right[name] / x.scale for name in ("d_q", "d_k")}


@gradient("q_and_k_exchanged", "the gradients of q and k are exchanged")
def _(x: Question, right: Arrays) -> Arrays | None:
    return {"d_q": right["d_k"], "d_k": right["d_q"]} if right["d_k"].shape == right["d_q"].shape else None


def softmax_parts(x: Question) -> tuple[np.ndarray, np.ndarray] | None:
    """``P`` and ``dP`` of softmax attention."""
    if inner(x) is None:
        return None
    q, k, v = (x.inputs[name] for name in "qkv")
    a = np.where(seen(x) if x.causal else seen(x, 10**9), x.scale * (q @ k.mT), -np.inf)
    p = np.exp(a - np.maximum(a.max(axis=-1, keepdims=True), -1e300))
    return p / np.maximum(p.sum(axis=-1, keepdims=True), 1e-300), x.d_out @ v.mT


@gradient("row_sum_missing", "dA is P * dP: the sum of a row, rowsum(dP * P), is not taken off", ("softmax",))
def _(x: Question, right: Arrays) -> Arrays | None:
    found = softmax_parts(x)
    if found is None:
        return None
    d_a = found[0] * found[1]
    return {"d_q": x.scale * d_a @ x.inputs["k"], "d_k": x.scale * d_a.mT @ x.inputs["q"]}


@gradient("softmax_as_constant", "dA is dP - rowsum(dP * P): it is not multiplied by P", ("softmax",))
def _(x: Question, right: Arrays) -> Arrays | None:
    found = softmax_parts(x)
    if found is None:
        return None
    p, d_p = found
    d_a = np.where(p > 0, d_p - (d_p * p).sum(axis=-1, keepdims=True), 0)
    return {"d_q": x.scale * d_a @ x.inputs["k"], "d_k": x.scale * d_a.mT @ x.inputs["q"]}


@gradient("denominator_as_constant", "the denominator is taken for a constant", ("linear",))
def _(x: Question, right: Arrays) -> Arrays | None:
    return linear_gradients(x, 0.0)


@gradient("denominator_sign", "the gradient through the denominator has the wrong sign", ("linear",))
def _(x: Question, right: Arrays) -> Arrays | None:
    return linear_gradients(x, -1.0)


def linear_gradients(x: Question, factor: float) -> Arrays | None:
    """(5)-(9) of `linear`, with ``dd`` times a factor."""
    if inner(x) is None or x.state is not None:
        return None
    (phi_q, of_q), (phi_k, of_k) = (elu_plus_one.forward(x.inputs[name]) for name in "qk")
    v = x.inputs["v"]
    w = np.where(seen(x) if x.causal else seen(x, 10**9), phi_q @ phi_k.mT, 0.0)
    d = w.sum(axis=-1, keepdims=True) + 1e-6
    d_n = x.d_out / d
    d_d = -factor * (d_n * (w @ v / d)).sum(axis=-1, keepdims=True)
    d_w = np.where(w > 0, d_n @ v.mT + d_d, 0.0)
    return {"d_q": elu_plus_one.backward(d_w @ phi_k, of_q), "d_k": elu_plus_one.backward(d_w.mT @ phi_q, of_k)}


@gradient("feature_map_as_identity", "gradients do not go through the feature map", ("linear",))
def _(x: Question, right: Arrays) -> Arrays | None:
    if inner(x) is None:
        return None
    with np.errstate(divide="ignore"):
        slopes = {name: np.where(x.inputs[name] > 0, 1.0, np.exp(np.minimum(x.inputs[name], 0))) for name in "qk"}
    return {f"d_{name}": right[f"d_{name}"] / slope for name, slope in slopes.items()}


@gradient("last_state_ignored", "the gradient of the last state is ignored", (*RULES, "linear"))
def _(x: Question, right: Arrays) -> Arrays | None:
    return (
        None if x.d_state is None else {n: a for n, a in answer(x.change(d_state=None)).items() if n.startswith("d_")}
    )


@gradient("first_state_detached", "the gradient does not reach the first state", (*RULES, "linear"))
def _(x: Question, right: Arrays) -> Arrays | None:
    return None if x.state is None else {name: 0 * right[name] for name in ("d_s", "d_z") if name in right}


@gradient("group_not_summed", "the gradient of a shared head is that of the first head that reads it, not the sum")
def _(x: Question, right: Arrays) -> Arrays | None:
    if "groups" not in x.options or "offsets" in x.options:
        return None
    groups, heads = x.options["groups"], x.inputs["k"].ndim - 3
    d_out = x.d_out.copy()
    d_out[(slice(None),) * heads + (np.arange(d_out.shape[heads]) % groups > 0,)] = 0
    found = answer(x.change(d_out=d_out))
    return {name: a for name, a in found.items() if name.startswith("d_") and name != "d_q"}


@gradient("group_mean", "the gradient of a shared head is the mean over the heads that read it, not the sum")
def _(x: Question, right: Arrays) -> Arrays | None:
    if "groups" not in x.options:
        return None
    return {name: a / x.options["groups"] for name, a in right.items() if name.startswith("d_") and name != "d_q"}


@gradient("erase_term_missing", "the gradient of k lacks the term of what is erased, beta * de", DELTAS)
def _(x: Question, right: Arrays) -> Arrays | None:
    found = rule_gradients(x)
    return (
        None
        if found is None
        else {"d_k": unit_backward(found.k, x.inputs["k"]) if x.options.get("normalise", True) else found.k}
    )


@gradient("beta_of_values_gradient", "the gradient of beta lacks the term of what is erased, k . de", DELTAS)
def _(x: Question, right: Arrays) -> Arrays | None:
    found = rule_gradients(x)
    return None if found is None else {"d_beta": (x.inputs["v"] * found.v).sum(axis=-1)}


@gradient("normalisation_as_constant", "gradients do not go through the normalisation of q and k", DELTAS)
def _(x: Question, right: Arrays) -> Arrays | None:
    found = rule_gradients(x) if x.options.get("normalise", True) else None
    if found is None:
        return None
    return {"d_q": x.scale * found.q, "d_k": found.k + x.inputs["beta"][..., None] * found.erase}


def rule_saved(x: Question) -> Any:
    """What the delta rule itself saved."""
    if inner(x) is None:
        return None
    normalise = "beta" in x.inputs and x.options.get("normalise", True)
    q, k = (unit(x.inputs[name]) if normalise else x.inputs[name] for name in "qk")
    beta = x.inputs["beta"][..., None] if "beta" in x.inputs else None
    state = None if x.state is None else delta_rule.State(*x.state)
    v, e = (x.inputs["v"], None) if beta is None else (beta * x.inputs["v"], beta * k)
    mask = x.options.get("key_mask")
    return delta_rule.forward(x.scale * q, k, v, e, x.inputs.get("log_gate"), key_mask=mask, state=state)[1]


def rule_gradients(x: Question) -> Any:
    """The gradients of the delta rule's own arguments."""
    saved = rule_saved(x)
    if saved is None:
        return None
    return delta_rule.backward(x.d_out, saved, d_state=None if x.d_state is None else delta_rule.State(*x.d_state))


@gradient(
    "gate_not_its_logarithm", "the gradient is that of the gate, not of its logarithm: it lacks the factor g", GATED
)
def _(x: Question, right: Arrays) -> Arrays | None:
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"d_log_gate": right["d_log_gate"] / np.exp(x.inputs["log_gate"])}


@gradient(
    "gate_through_outputs_only",
    "the gradient of the gate is q * dq - k * dk of its own token, not summed over later ones",
    GATED,
)
def _(x: Question, right: Arrays) -> Arrays | None:
    own = rows_of_gate(x, right)
    return None if own is None else {"d_log_gate": own}


def rows_of_gate(x: Question, right: Arrays) -> np.ndarray | None:
    """``q * dq + e * de - k * dk`` of each token, of which (12) is the sum over later ones."""
    if inner(x) is None or (x.options.get("normalise", True) is True and "beta" in x.inputs):
        return None
    rows = x.inputs["q"] * right["d_q"] - x.inputs["k"] * right["d_k"]
    if "beta" in x.inputs:  # e de and k dk of the rule, by dk of the page = dk + beta de
        found = rule_gradients(x)
        rows = (
            x.inputs["q"] * right["d_q"]
            + x.inputs["beta"][..., None] * x.inputs["k"] * found.erase
            - x.inputs["k"] * found.k
        )
    return rows if x.axis("log_gate") == -2 else rows.sum(axis=-1)


@gradient(
    "gate_by_cancellation",
    "the gradient of the gate is a difference of large numbers, identity (12), which loses all digits at strong gates",
    GATED,
)
def _(x: Question, right: Arrays) -> Arrays | None:
    return None  # noise, which no formula gives again: `diagnose` recognises it by its size


def diagnose(
    question: Question, got: Arrays, right: Arrays, failed: set[str], unit_error: float
) -> list[tuple[str, str, float]]:
    """The hypotheses that fit what came back, best first: name, sentence, and the distance left, of that from right.

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
        names = [name for name in names if of == "output" or name in failed or name in guess]
        names = [name for name in names if of == "gradient" or name in guess]
        left = distance(got, {**right, **guess}, names, right) / max(distance(got, right, names, right), 1e-300)
        if left < FITS:
            found.append((each.name, each.sentence, left))
    noise = failed == {"d_log_gate"} and cancels(question, got, right, unit_error)
    lost = np.isneginf(question.inputs.get("log_gate", 0.0)).any() and np.isnan(got["out"]).any()
    for name in () if found else ("gate_by_cancellation",) * noise + ("gates_summed_up",) * bool(lost):
        found.append((name, HYPOTHESES[name].sentence, 0.0))
    return sorted(found, key=lambda x: x[2])


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
    """Whether the gate's error is as large as what (12) rounds off."""
    if inner(question) is None:
        return False
    size = abs(question.inputs["q"] * right["d_q"]) + abs(question.inputs["k"] * right["d_k"])
    size = size if question.axis("log_gate") == -2 else size.sum(axis=-1)
    off = abs(got["d_log_gate"] - right["d_log_gate"]).max()
    return bool(off < 64 * unit_error * size.sum(axis=question.axis("log_gate")).max())
