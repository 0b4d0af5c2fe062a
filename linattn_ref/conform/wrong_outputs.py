"""Mistakes of forward passes, each a few lines: another question, or one line of a formula changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from linattn_ref.attention.delta import unit
from linattn_ref.conform.formulas import alone, by_rule, rule_saved, seen, sees, weighted, weights
from linattn_ref.conform.hypotheses import DELTAS, GATED, RULES, SCALED, output
from linattn_ref.conform.questions import Question, answer

__all__: list[str] = []


@output("outputs_zero", "the output is 0")
def _(x: Question) -> Any:
    return np.zeros_like(x.d_out)


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


@output("causal_ahead", "query i sees key i + 1 as well", ("softmax", "linear"))
def _(x: Question) -> Any:
    return weighted(x, seen(x, 1)) if x.causal else None


@output("causal_behind", "a query does not see its own key", ("softmax", "linear"))
def _(x: Question) -> Any:
    return weighted(x, seen(x, -1)) if x.causal else None


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
    return weighted(x, seen(x, 0, False)) if x.causal else None


@output("normalised_over_all_keys", "the denominator runs over all keys, though the numerator is causal", ("linear",))
def _(x: Question) -> Any:
    if not x.causal or x.state is not None or not alone(x):
        return None
    return weights(x, seen(x)) @ x.inputs["v"] / weights(x, sees(x.change(causal=None))).sum(axis=-1, keepdims=True)


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
    if "groups" not in x.options or "offsets" in x.options or x.state is not None:
        return None
    heads = x.inputs["q"].ndim - 3
    count = x.inputs["k"].shape[heads]
    order = np.arange(x.inputs["q"].shape[heads]) % count
    repeated = {name: a if name == "q" else a.take(order, heads) for name, a in x.inputs.items()}
    if "key_mask" in x.options:
        repeated["key_mask"] = x.options["key_mask"].take(order, heads)
    return answer(x.change(**repeated, groups=None))["out"]


# Feature maps and denominators.


@output("normaliser_missing", "nothing is divided by the denominator", ("linear",))
def _(x: Question) -> Any:
    return weights(x, sees(x)) @ x.inputs["v"] if alone(x) and x.state is None else None


@output("feature_map_elu", "the feature map is elu, without the + 1", ("linear",))
def _(x: Question) -> Any:
    return weighted(x, features=lambda a: np.where(a > 0, a, np.expm1(np.minimum(a, 0))))


@output("feature_map_relu", "the feature map is relu", ("linear",))
def _(x: Question) -> Any:
    return weighted(x, features=lambda a: np.maximum(a, 0))


@output("feature_map_exp", "the feature map is exp", ("linear",))
def _(x: Question) -> Any:
    return weighted(x, features=np.exp)


@output("feature_map_missing", "no feature map is applied", ("linear",))
def _(x: Question) -> Any:
    return weighted(x, features=lambda a: a)


# The rule: decay, read, erase, write.


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


def divided(x: Question, length: Callable[[np.ndarray], np.ndarray]) -> Question | None:
    """With q and k divided by a function of their length, not by the square root of its square and eps."""
    if not x.options.get("normalise", True):
        return None
    rows = {name: x.inputs[name] for name in "qk"}
    given = {name: a / length(np.linalg.norm(a, axis=-1, keepdims=True)) for name, a in rows.items()}
    return x.change(**given, normalise=False)


@output("eps_outside_the_root", "eps stands outside the square root: q and k are divided by |x| + eps", DELTAS)
def _(x: Question) -> Any:
    return divided(x, lambda length: length + 1e-6)


@output("eps_missing_in_the_root", "there is no eps in the square root: q and k are divided by |x|", DELTAS)
def _(x: Question) -> Any:
    return divided(x, lambda length: np.maximum(length, 1e-12))


@output("only_k_normalised", "k is normalised, and q is not", DELTAS)
def _(x: Question) -> Any:
    return x.change(k=unit(x.inputs["k"]), normalise=False) if x.options.get("normalise", True) else None
