"""Mistakes of backward passes, given that the forward pass is right: one line of a derivation changed."""

from typing import Any

import numpy as np

from linattn_ref.attention.delta import unit_backward
from linattn_ref.attention.features.feature_maps import elu_plus_one
from linattn_ref.conform.formulas import rule_gradients, rule_saved, seen, sees, weights
from linattn_ref.conform.hypotheses import gradient
from linattn_ref.conform.questions import ALL, DELTAS, GATED, PAIRS, SCALED, STATES, Arrays, Question, answer

__all__: list[str] = []


def gradients(found: Arrays) -> Arrays:
    """Those of an answer."""
    return {name: a for name, a in found.items() if name.startswith("d_")}


def multiplied(name: str, sentence: str, factor: float) -> None:
    """All gradients are multiplied by a number."""
    gradient(name, sentence)(lambda x, right: {each: factor * a for each, a in gradients(right).items()})


multiplied("gradients_zero", "gradients are 0", 0)
multiplied("gradient_sign", "gradients have the wrong sign", -1)
gradient("cotangent_ignored", "the gradient of the output is taken for ones")(
    lambda x, right: gradients(answer(x.change(d_out=np.ones_like(x.d_out))))
)


def unscaled(name: str, sentence: str, power: int, *arrays: str) -> None:
    """Gradients are divided by a power of the scale."""
    gradient(name, sentence, SCALED)(lambda x, right: {each: right[each] / x.scale**power for each in arrays})


unscaled("scale_of_d_q", "the gradient of q lacks the scale, a factor of sqrt(D)", 1, "d_q")
unscaled("scale_of_d_q_twice", "the gradient of q has the scale twice, a factor of 1 / sqrt(D)", -1, "d_q")
unscaled("scale_of_d_k", "the gradient of k lacks the scale, a factor of sqrt(D)", 1, "d_k")
unscaled("scale_of_both", "the gradients of q and k lack the scale", 1, "d_q", "d_k")
gradient("q_and_k_exchanged", "the gradients of q and k are exchanged")(
    lambda x, right: {"d_q": right["d_k"], "d_k": right["d_q"]} if right["d_k"].shape == right["d_q"].shape else None
)


def through_softmax(x: Question, d_a: Any) -> Arrays:
    """(7) and (8) of `softmax`, for ``d_a(P, dP)`` in place of (6)."""
    w = weights(x, sees(x))
    p = w / np.maximum(w.sum(axis=-1, keepdims=True), 1e-300)
    d_scores = np.where(p > 0, d_a(p, x.d_out @ x.inputs["v"].mT), 0.0)
    return {"d_q": x.scale * d_scores @ x.inputs["k"], "d_k": x.scale * d_scores.mT @ x.inputs["q"]}


gradient("row_sum_missing", "dA is P * dP: the sum of a row, rowsum(dP * P), is not subtracted", ("softmax",))(
    lambda x, right: through_softmax(x, lambda p, d_p: p * d_p)
)
gradient("softmax_as_constant", "dA is dP - rowsum(dP * P): it is not multiplied by P", ("softmax",))(
    lambda x, right: through_softmax(x, lambda p, d_p: d_p - (d_p * p).sum(axis=-1, keepdims=True))
)


def through_denominator(x: Question, factor: float) -> Arrays:
    """(5)-(8) of `linear`, with ``dd`` times a factor."""
    w, v = weights(x, sees(x)), x.inputs["v"]
    d = w.sum(axis=-1, keepdims=True) + x.options.get("eps", 1e-6)
    d_n = x.d_out / d  # (5)
    d_d = -factor * (d_n * (w @ v / d)).sum(axis=-1, keepdims=True)  # (5)
    d_w = np.where(w > 0, d_n @ v.mT + d_d, 0.0)
    (phi_q, of_q), (phi_k, of_k) = (elu_plus_one.forward(x.inputs[name]) for name in "qk")
    return {"d_q": elu_plus_one.backward(d_w @ phi_k, of_q), "d_k": elu_plus_one.backward(d_w.mT @ phi_q, of_k)}


gradient("denominator_as_constant", "the denominator is taken for a constant", ("linear",))(
    lambda x, right: through_denominator(x, 0.0)
)
gradient("denominator_sign", "the gradient through the denominator has the wrong sign", ("linear",))(
    lambda x, right: through_denominator(x, -1.0)
)


@gradient("feature_map_as_identity", "gradients do not go through the feature map", ("linear",))
def _(x: Question, right: Arrays) -> Arrays:
    slopes = {name: np.where(x.inputs[name] > 0, 1.0, np.exp(np.minimum(x.inputs[name], 0))) for name in "qk"}
    return {f"d_{name}": right[f"d_{name}"] / slope for name, slope in slopes.items()}


def computed_again(name: str, sentence: str, ahead: int) -> None:
    """The backward pass computes the weights again, by the denominators of the forward pass but with another mask."""

    @gradient(name, sentence, PAIRS, "causal")
    def _(x: Question, right: Arrays) -> Arrays:
        see, q, k, v = seen(x, ahead), *(x.inputs[name] for name in "qkv")
        w = weights(x, seen(x) | see)
        d = (w * seen(x)).sum(axis=-1, keepdims=True)
        d = np.where(d == 0, np.inf, d + (0.0 if x.op == "softmax" else x.options.get("eps", 1e-6)))
        p = w * see / d
        d_p = x.d_out @ v.mT - (x.d_out * right["out"]).sum(axis=-1, keepdims=True)
        d_v = p.mT @ x.d_out
        if x.op == "softmax":
            return {"d_q": x.scale * p * d_p @ k, "d_k": x.scale * (p * d_p).mT @ q, "d_v": d_v}
        d_w, ((phi_q, of_q), (phi_k, of_k)) = see * d_p / d, (elu_plus_one.forward(a) for a in (q, k))
        d_q, d_k = elu_plus_one.backward(d_w @ phi_k, of_q), elu_plus_one.backward(d_w.mT @ phi_q, of_k)
        return {"d_q": d_q, "d_k": d_k, "d_v": d_v}


computed_again("backward_ahead", "in the backward pass query i sees key i + 1 as well", 1)
computed_again("backward_behind", "in the backward pass a query does not see its own key", -1)

gradient("last_state_ignored", "the gradient of the last state is ignored", STATES, "d_state")(
    lambda x, right: gradients(answer(x.change(d_state=None)))
)
gradient("first_state_detached", "the gradient does not reach the first state", STATES, "state")(
    lambda x, right: {name: 0 * right[name] for name in ("d_s", "d_z") if name in right}
)

FIRST = "the gradient of a shared head is that of the first head that reads it, not the sum"
MEAN = "the gradient of a shared head is the mean over the heads that read it, not the sum"


@gradient("group_not_summed", FIRST, ALL, "groups", "offsets")
def _(x: Question, right: Arrays) -> Arrays:
    groups, heads = x.options["groups"], x.inputs["k"].ndim - 3
    d_out = x.d_out.copy()
    d_out[(slice(None),) * heads + (np.arange(d_out.shape[heads]) % groups > 0,)] = 0
    return {name: a for name, a in gradients(answer(x.change(d_out=d_out))).items() if name != "d_q"}


gradient("group_mean", MEAN, ALL, "groups")(
    lambda x, right: {name: a / x.options["groups"] for name, a in gradients(right).items() if name != "d_q"}
)


@gradient("erase_term_missing", "the gradient of k lacks the term of what is erased, beta * de", DELTAS)
def _(x: Question, right: Arrays) -> Arrays:
    d_k = rule_gradients(x).k
    return {"d_k": unit_backward(d_k, x.inputs["k"]) if x.normalise else d_k}


gradient("beta_of_values_gradient", "the gradient of beta lacks the term of what is erased, k . de", DELTAS)(
    lambda x, right: {"d_beta": (x.inputs["v"] * rule_gradients(x).v).sum(axis=-1)}
)


@gradient("normalisation_as_constant", "gradients do not go through the normalisation of q and k", DELTAS, "normalise")
def _(x: Question, right: Arrays) -> Arrays:
    found = rule_gradients(x)
    return {"d_q": x.scale * found.q, "d_k": found.k + x.inputs["beta"][..., None] * found.erase}


gradient(
    "gate_not_its_logarithm", "the gradient is that of the gate, not of its logarithm: it lacks the factor g", GATED
)(lambda x, right: {"d_log_gate": right["d_log_gate"] / np.exp(x.inputs["log_gate"])})

OWN = "the gradient of the gate is q * dq - k * dk of its own token, not summed over later ones"
NOISE = (
    "the gradient of the gate is a running sum of q dq + e de - k dk, which is a small difference of large numbers and "
    "loses all digits at strong gates"
)


@gradient("gate_through_outputs_only", OWN, GATED)
def _(x: Question, right: Arrays) -> Arrays:
    rule, d = rule_saved(x), rule_gradients(x)
    rows = rule.q * d.q - rule.k * d.k + (0.0 if d.erase is None else rule.e * d.erase)
    return {"d_log_gate": rows if x.axis("log_gate") == -2 else rows.sum(axis=-1)}


# Noise, which no formula gives again: `diagnose` recognises it by its size.
gradient("gate_by_cancellation", NOISE, GATED)(lambda x, right: None)
