"""Mistakes of forward passes, each a few lines: another question, or one line of a formula changed."""

from typing import Any

import numpy as np

from linattn_ref.attention.delta import unit
from linattn_ref.conform.formulas import Map, by_rule, phi, rule_saved, seen, sees, weighted, weights
from linattn_ref.conform.hypotheses import output
from linattn_ref.conform.questions import ALL, DELTAS, GATED, PAIRS, RULES, SCALED, Question, answer

__all__: list[str] = []

output("outputs_zero", "the output is 0")(lambda x: np.zeros_like(x.d_out))

# The scale.

output("scale_twice", "the scale is applied twice", SCALED)(lambda x: x.change(scale=x.scale**2))
output("scale_missing", "no scale is applied", SCALED)(lambda x: x.change(scale=1.0))
output("scale_default", "the scale that was given is ignored", SCALED, "scale")(lambda x: x.change(scale=None))


output(
    "scale_times_default", "the scale that was given multiplies 1 / sqrt(D) instead of replacing it", SCALED, "scale"
)(lambda x: x.change(scale=x.scale * x.inputs["q"].shape[-1] ** -0.5))
output("scale_of_values", "the scale is 1 / sqrt(width of the values)", SCALED)(
    lambda x: x.change(scale=x.inputs["v"].shape[-1] ** -0.5)
)
output("scale_of_keys_twice", "the scale is applied to q and, again, to k", ("linear",))(
    lambda x: x.change(**{name: x.scale**0.5 * x.inputs[name] for name in "qk"})
)
output("scale_unasked", "q is scaled, which linear attention does not do", ("linear",))(
    lambda x: x.change(q=x.scale * x.inputs["q"])
)

# Who sees whom.

output("causal_ahead", "query i sees key i + 1 as well", PAIRS, "causal")(lambda x: weighted(x, seen(x, 1)))
output("causal_behind", "a query does not see its own key", PAIRS, "causal")(lambda x: weighted(x, seen(x, -1)))

output("causal_ignored", "causal is ignored: every query sees all keys", PAIRS, "causal", "state")(
    lambda x: x.change(causal=None)
)
output("causal_unasked", "it is causal although that was not asked for", PAIRS, without="causal")(
    lambda x: x.change(causal=True) if x.inputs["q"].shape[-2] <= x.inputs["k"].shape[-2] else None
)
output("aligned_at_the_start", "query i sees keys 0 to i, though there are fewer queries than keys", PAIRS, "causal")(
    lambda x: weighted(x, seen(x, 0, False))
)


@output(
    "normalised_over_all_keys",
    "the denominator runs over all keys, though the numerator is causal",
    ("linear",),
    "causal",
)
def _(x: Question) -> Any:
    return weights(x, seen(x)) @ x.inputs["v"] / weights(x, sees(x.change(causal=None))).sum(axis=-1, keepdims=True)


# Masks.

output("mask_ignored", "key_mask is ignored", needs="key_mask")(lambda x: x.change(key_mask=None))
output("mask_inverted", "key_mask is read the other way round: True for keys that are not seen", needs="key_mask")(
    lambda x: x.change(key_mask=~x.options["key_mask"])
)


def zeroed(x: Question) -> Question:
    """With 0 for masked keys and values, and no mask."""
    seen = x.options["key_mask"][..., None]
    return x.change(k=x.inputs["k"] * seen, v=x.inputs["v"] * seen, key_mask=None)


ZEROED = "masked keys and values are set to 0 instead of left out (before phi, or before the softmax)"
output("mask_zeroes_keys", ZEROED, PAIRS, "key_mask")(zeroed)
output("mask_lets_fade", "a masked token still lets the state decay", GATED, "key_mask")(zeroed)

# Axes, states, packed sequences, shared heads.


@output(
    "tokens_and_heads_exchanged",
    "the axes of tokens and of heads are exchanged, BNHD for BHND: see --layout",
    without="key_mask state offsets groups",
)
def _(x: Question) -> Any:
    def exchanged(a: Any, axis: int = -2) -> Any:
        return a.swapaxes(axis, axis - 1)

    if x.d_out.ndim < 3 or x.inputs["q"].shape[:-1] != x.inputs["k"].shape[:-1]:
        return None
    inputs = {name: exchanged(a, x.axis(name)) for name, a in x.inputs.items()}
    return exchanged(answer(x.change(**inputs, d_out=exchanged(x.d_out)))["out"])


output("state_ignored", "the state that it was given is ignored", needs="state")(
    lambda x: x.change(state=None, d_state=None)
)
output("state_transposed", "the state is transposed, (M, C) for (C, M)", RULES, "state")(
    lambda x: x.change(state=tuple(s.reshape(s.mT.shape).mT for s in x.state), d_state=None)
)
output("packed_as_one", "packed sequences are taken for one: offsets are ignored", ALL, "offsets", "state")(
    lambda x: x.change(offsets=None)
)
output("state_of_the_first", "every packed sequence begins from the state of the first", needs="offsets state")(
    lambda x: x.change(state=tuple(np.broadcast_to(s[:1], s.shape) for s in x.state))
)


@output("heads_modulo", "query head h reads key head h % K, not h // groups", ALL, "groups", "offsets state")
def _(x: Question) -> Any:
    heads = x.inputs["q"].ndim - 3
    order = np.arange(x.inputs["q"].shape[heads]) % x.inputs["k"].shape[heads]
    repeated = {name: a if name == "q" else a.take(order, heads) for name, a in x.inputs.items()}
    if "key_mask" in x.options:
        repeated["key_mask"] = x.options["key_mask"].take(order, heads)
    return answer(x.change(**repeated, groups=None))["out"]


# Feature maps and denominators.

output("normaliser_missing", "nothing is divided by the denominator", ("linear",))(
    lambda x: weights(x, sees(x)) @ x.inputs["v"]
)
output("eps_missing", "no eps is added to the denominator", ("linear",))(lambda x: x.change(eps=0.0))


def feature_map(name: str, sentence: str, features: Map) -> None:
    output(name, sentence, ("linear",))(lambda x: weighted(x, features=features))


feature_map("feature_map_elu", "the feature map is elu, without the + 1", lambda a: phi(a) - 1)
feature_map("feature_map_relu", "the feature map is relu", lambda a: np.maximum(a, 0))
output("feature_map_exp", "the feature map is exp", ("linear",))(  # as elu + 1 is of what is negative
    lambda x: weighted(x, features=np.exp) if (x.inputs["q"] > 0).mean() > 0.1 else None
)
feature_map("feature_map_missing", "no feature map is applied", lambda a: a)

# The rule: decay, read, erase, write.


def rule(name: str, sentence: str, ops: tuple[str, ...], mistake: str = "", **inputs: Any) -> None:
    """A line of the rule, or one of its inputs, is another: see `by_rule`."""
    output(name, sentence, ops)(lambda x: by_rule(x, mistake, **inputs))


output("gate_ignored", "the gate is ignored", GATED)(lambda x: x.change(log_gate=np.zeros_like(x.inputs["log_gate"])))
output("gate_log2", "the gate is taken for a logarithm to base 2", GATED)(
    lambda x: x.change(log_gate=x.inputs["log_gate"] * np.log(2))
)


@output("gate_not_a_logarithm", "the gate itself is multiplied, not its exponential", GATED)
def _(x: Question) -> Any:
    gate = x.inputs["log_gate"]
    return by_rule(x, gate=lambda *_: gate if x.axis("log_gate") == -2 else gate[..., None])


rule("gate_sign", "the gate is exp(-log_gate), which grows", GATED, gate=lambda gate, *_: 1 / gate)


@output(
    "decay_after_read",
    "the state decays after the read, not before: the gate of a token acts on the next",
    GATED,
    without="offsets",
)
def _(x: Question) -> Any:
    gate, axis = x.inputs["log_gate"], x.axis("log_gate")
    moved = np.roll(gate, 1, axis)
    moved[(..., 0, slice(None)) if axis == -2 else (..., 0)] = 0
    return x.change(log_gate=moved)


rule("decay_of_own_write", "the gate fades what its own token writes as well", GATED, "write")


@output(
    "decay_missing_within_chunk", "within a chunk queries read what was written without its decay", ("gated_delta",)
)
def _(x: Question) -> Any:
    rule = rule_saved(x)
    first = 0.0 if x.state is None else np.cumprod(rule.gate, axis=-2) * rule.q @ x.state[0]
    return first + np.tril(rule.q @ rule.k.mT) @ rule.u


# What is lost depends on the chunks: `diagnose` recognises it by what is lost.
output("gates_summed_up", "logarithms of gates are summed up and subtracted: -inf - -inf is not a number", GATED)(
    lambda x: None
)
rule("read_before_write", "a query reads the state before its own token is written", RULES, "read")
rule("erase_before_decay", "what is to be erased is read from the state before it decays", ("gated_delta",), "erase")
rule("erase_missing", "nothing is erased: values are added as in linear attention", DELTAS, erase=lambda e, *_: 0 * e)
output("beta_missing", "beta is ignored", DELTAS)(lambda x: x.change(beta=np.ones_like(x.inputs["beta"])))
rule("beta_of_values_only", "beta scales the value, but not what is erased", DELTAS, erase=lambda e, k, v, beta: k)
rule("beta_of_erase_only", "beta scales what is erased, but not the value", DELTAS, value=lambda u, k, v, beta: v)
output("beta_twice", "beta is applied twice", DELTAS)(
    lambda x: by_rule(x, erase=lambda e, k, v, beta: beta * e, value=lambda u, k, v, beta: beta * u)
)
output("beta_clipped", "beta is clipped to 1", DELTAS)(lambda x: x.change(beta=np.minimum(x.inputs["beta"], 1)))

# The normalisation of q and k.


def divided(x: Question, length: Map) -> Question:
    """With q and k divided by a function of their length, not by the square root of its square and eps."""
    given = {name: x.inputs[name] / length(np.linalg.norm(x.inputs[name], axis=-1, keepdims=True)) for name in "qk"}
    return x.change(**given, normalise=False)


output("normalised", "q and k are normalised, which was not asked for", DELTAS, without="normalise")(
    lambda x: x.change(normalise=True)
)
output("not_normalised", "q and k are not normalised", DELTAS, "normalise")(lambda x: x.change(normalise=False))
output(
    "eps_outside_the_root", "eps stands outside the square root: q and k are divided by |x| + eps", DELTAS, "normalise"
)(lambda x: divided(x, lambda length: length + 1e-6))
output(
    "eps_missing_in_the_root", "there is no eps in the square root: q and k are divided by |x|", DELTAS, "normalise"
)(lambda x: divided(x, lambda length: np.maximum(length, 1e-12)))
output("only_k_normalised", "k is normalised, and q is not", DELTAS, "normalise")(
    lambda x: x.change(k=unit(x.inputs["k"]), normalise=False)
)
