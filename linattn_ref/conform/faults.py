"""Kernels with one mistake each, row by row in plain loops: the judge has to find each and to call it by its name.

They call nothing of `wrong_outputs` and `wrong_gradients`, which say what a mistake makes of the pages' formulas.
:func:`confusion` asks each of them about three shapes and lists which hypotheses fit: the mistake that was made has to
come first.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import delta_rule
from linattn_ref.conform.budget import allowed
from linattn_ref.conform.diagnosis import HYPOTHESES, diagnose
from linattn_ref.conform.questions import OPS, PAIRS, RULES, Question, answer, ask
from linattn_ref.conform.target import Mapping, Target
from linattn_ref.nested import map_arrays

__all__ = ["SHAPES", "applies", "confusion", "fits"]

SHAPES = ({"n": 9, "d": 4, "m": 6}, {"n": 16, "d": 8, "m": 3}, {"n": 21, "d": 5, "m": 7})


def each_head(
    rows: Callable[..., Any], fault: str, q: Any, k: Any, v: Any, *, beta: Any = None, log_gate: Any = None,
    groups: int = 1, offsets: Any = None, key_mask: Any = None, state: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """The output of every head and sequence by itself, and the last states where one was given."""
    if fault == "tokens_and_heads_exchanged":
        turned = [x.swapaxes(-2, -3) for x in (q, k, v)]
        more = {"beta": beta, "log_gate": log_gate} | options
        more |= {name: x.swapaxes(-1, -2) for name, x in more.items() if isinstance(x, np.ndarray)}
        return each_head(rows, "", *turned, **more).swapaxes(-2, -3)
    out = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    *batch, heads = q.shape[:-2]
    cuts = [0, k.shape[-2]] if offsets is None or fault == "packed_as_one" else [int(x) for x in offsets]
    states = state if isinstance(state, tuple) else () if state is None else (state,)
    last = tuple(np.zeros_like(x) for x in states)
    mask = np.ones(k.shape[:-1], bool) if key_mask is None or fault == "mask_ignored" else key_mask
    mask = ~mask if fault == "mask_inverted" and key_mask is not None else mask
    for at in np.ndindex(*batch, heads):
        shared = (*at[:-1], at[-1] % (heads // groups) if fault == "heads_modulo" else at[-1] // groups)
        for p, (start, stop) in enumerate(itertools.pairwise(cuts)):
            keys = slice(start, stop)
            queries = keys if len(cuts) > 2 else slice(None)
            packed = () if offsets is None else (p,)
            read = (0,) if packed and fault == "state_of_the_first" else packed
            first = None if state is None or fault == "state_ignored" else [x[(*read, *shared)] for x in states]
            arrays = [None if x is None else x[(*shared, keys)] for x in (k, v, beta, log_gate, mask)]
            out[(*at, queries)], after = rows(fault, q[(*at, queries)], *arrays, first, **options)
            for whole, x in zip(last, after, strict=False):
                whole[(*packed, *shared)] = x
    out *= fault != "outputs_zero"
    return out if state is None else (out, last if isinstance(state, tuple) else last[0])


def sees(fault: str, i: int, j: int, n: int, keys: int, causal: bool) -> bool:
    """Whether query i sees key j."""
    if fault == "causal_ignored" or not (causal or fault == "causal_unasked"):
        return True
    i += 0 if fault == "aligned_at_the_start" else keys - n
    return j <= i + (fault == "causal_ahead") - (fault == "causal_behind")


def scale_of(fault: str, given: float | None, d: int, m: int) -> float:
    default = d**-0.5
    scale = default if given is None else given
    wrong = {"scale_default": default, "scale_times_default": (given or 1.0) * default}
    wrong |= {"scale_twice": scale * scale, "scale_missing": 1.0, "scale_of_values": m**-0.5}
    return wrong.get(fault, scale)


def softmax_rows(
    fault: str, q: Any, k: Any, v: Any, beta: Any, gate: Any, mask: Any, state: Any, *,
    causal: bool = False, scale: float | None = None,
) -> Any:  # fmt: skip
    """Softmax attention of one head."""
    scale, out = scale_of(fault, scale, q.shape[-1], v.shape[-1]), np.zeros((len(q), v.shape[-1]))
    for i in range(len(q)):
        weights = np.zeros(len(k))
        for j in range(len(k)):
            if sees(fault, i, j, len(q), len(k), causal) and (mask[j] or fault == "mask_zeroes_keys"):
                weights[j] = np.exp(scale * (q[i] @ k[j]) * mask[j])
        if weights.sum():
            out[i] = weights / weights.sum() @ (v * mask[:, None])
    return out, ()


def phi(fault: str, x: Any) -> Any:
    """The feature map."""
    right = np.where(x > 0, x + 1, np.exp(np.where(x > 0, 0, x)))
    wrong = {"feature_map_relu": np.where(x > 0, x, 0.0), "feature_map_exp": np.exp(x), "feature_map_missing": x}
    return {**wrong, "feature_map_elu": right - 1}.get(fault, right)


def linear_rows(
    fault: str, q: Any, k: Any, v: Any, beta: Any, gate: Any, mask: Any, state: Any, *,
    causal: bool = False, eps: float = 1e-6,
) -> Any:  # fmt: skip
    """Linear attention of one head: the weight of every pair, and what the state adds."""
    q = q * q.shape[-1] ** -0.5 if fault == "scale_unasked" else q
    if fault == "scale_of_keys_twice":
        q, k = (x * q.shape[-1] ** -0.25 for x in (q, k))
    f_q, f_k = phi(fault, q), phi(fault, np.where(mask[:, None], k, 0))
    f_k = f_k if fault == "mask_zeroes_keys" else np.where(mask[:, None], f_k, 0)
    v = np.where(mask[:, None], v, 0)
    s, z = state or (np.zeros((k.shape[-1], v.shape[-1])), np.zeros(k.shape[-1]))
    eps = 0 if fault == "eps_missing" else eps
    out = np.zeros((len(q), v.shape[-1]))
    for i in range(len(q)):
        top, bottom = f_q[i] @ s, f_q[i] @ z
        for j in range(len(k)):
            weight, seen = f_q[i] @ f_k[j], sees(fault, i, j, len(q), len(k), causal)
            top = top + seen * weight * v[j]
            bottom = bottom + (seen or fault == "normalised_over_all_keys") * weight
        out[i] = top if fault == "normaliser_missing" else top / (bottom + eps) if bottom + eps else 0
    return out, (s + f_k.T @ v, z + f_k.sum(axis=0))


def unit(x: Any, fault: str = "") -> Any:
    squares = (x * x).sum(axis=-1, keepdims=True)
    if fault == "eps_outside_the_root":
        return x / (np.sqrt(squares) + 1e-6)
    return x / np.sqrt(squares + (0 if fault == "eps_missing_in_the_root" else 1e-6))


def rule_rows(
    fault: str, q: Any, k: Any, v: Any, beta: Any, gate: Any, mask: Any, state: Any, *,
    normalise: bool = True, scale: float | None = None,
) -> Any:  # fmt: skip
    """The gated delta rule of one head, and gated linear attention where there is no beta."""
    scale = scale_of(fault, scale, q.shape[-1], v.shape[-1])
    if beta is not None and fault != "not_normalised" and (normalise or fault == "normalised"):
        q, k = q if fault == "only_k_normalised" else unit(q, fault), unit(k, fault)
    s = np.zeros((k.shape[-1], v.shape[-1])) if state is None else np.array(state[0], float)
    if fault == "state_transposed" and state is not None:
        s = s.reshape(s.shape[::-1]).T
    out, previous, written, decay = np.zeros((len(q), v.shape[-1])), 1.0, list[Any](), np.ones((1, 1))
    first, logs = s, 0.0
    for i in range(len(q)):
        log_gate = 0.0 if gate is None or fault == "gate_ignored" else gate[i]
        g = np.exp2(log_gate) if fault == "gate_log2" else np.exp(-log_gate if fault == "gate_sign" else log_gate)
        g = np.atleast_1d(log_gate if fault == "gate_not_a_logarithm" else g)[:, None]
        if fault == "decay_after_read":
            g, previous = previous, g
        if not mask[i]:
            s = g * s if fault == "mask_lets_fade" else s
            out[i] = scale * (q[i] @ s)
            continue
        b = 1.0 if beta is None or fault == "beta_missing" else float(beta[i])
        b = {"beta_twice": b * b, "beta_clipped": min(b, 1.0)}.get(fault, b)
        before, s = s, g * s
        erased = np.zeros(v.shape[-1])
        if beta is not None and fault != "erase_missing":
            erased = (1.0 if fault == "beta_of_values_only" else b) * (
                k[i] @ (before if fault == "erase_before_decay" else s)
            )
        value = v[i] if beta is None or fault == "beta_of_erase_only" else b * v[i]
        read, s = s, s + (g if fault == "decay_of_own_write" else 1.0) * np.outer(k[i], value - erased)
        out[i] = scale * (q[i] @ (read if fault == "read_before_write" else s))
        decay, logs = decay * g, logs + np.max(log_gate)
        written.append((k[i], value - erased, logs))
        if fault == "decay_missing_within_chunk":
            out[i] = scale * (q[i] @ (decay * first) + sum((q[i] @ key) * row for key, row, _ in written))
        if fault == "gates_summed_up":
            out[i] = scale * sum(np.exp(logs - then) * (q[i] @ key) * row for key, row, then in written)
    return out, (s,)


ROWS: dict[str, Callable[..., Any]] = {"softmax": softmax_rows, "linear": linear_rows}
ROWS |= dict.fromkeys(RULES, rule_rows)


def pair_of(op: str, fault: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A forward pass that is right, and a backward pass that is not, with what it changes worked out by loops."""
    page, shared = OPS[op].page, OPS[op].inputs[1:]

    def forward(*, groups: int = 1, **options: Any) -> Any:
        for name in shared if groups > 1 else ():  # heads of keys are repeated
            axis = -3 if options[name].ndim == options["q"].ndim else -2
            options[name] = options[name].repeat(groups, axis)
        out, saved = page.forward(**options)
        return out, Kept(saved, saved.state if OPS[op].state and groups == 1 else None, options, groups)

    def backward(d_out: Any, kept: Kept, d_state: Any = None) -> Any:
        x = kept.options
        d_out = np.ones_like(d_out) if fault == "cotangent_ignored" else d_out
        d_state = None if fault == "last_state_ignored" else d_state
        more = {} if d_state is None else {"d_state": d_state}
        grads = page.backward(d_out, kept.saved, **more)
        sign = {"gradients_zero": 0, "gradient_sign": -1}.get(fault, 1)
        found = {name: sign * getattr(grads, name) for name in OPS[op].inputs}
        scale = x.get("scale") or x["q"].shape[-1] ** -0.5
        if grads_state := getattr(grads, "state", None):
            found["state"] = map_arrays(lambda a: (fault != "first_state_detached") * sign * a, grads_state)
        factors = {
            "scale_of_d_q": {"q": 1 / scale},
            "scale_of_d_q_twice": {"q": scale},
            "scale_of_d_k": {"k": 1 / scale},
            "scale_of_both": {"q": 1 / scale, "k": 1 / scale},
        }
        found |= {name: found[name] * factor for name, factor in factors.get(fault, {}).items()}
        if fault == "q_and_k_exchanged":
            found["q"], found["k"] = found["k"], found["q"]
        if fault == "feature_map_as_identity":
            found |= {name: found[name] / np.where(x[name] > 0, 1, np.exp(np.minimum(x[name], 0))) for name in "qk"}
        by_weights = "row_sum_missing", "softmax_as_constant", "denominator_as_constant", "denominator_sign"
        if fault in (*by_weights, *AGAIN):
            arrays = {name: x[name] for name in "qkv"}
            found |= by_pairs(fault, d_out, scale, **arrays, causal=bool(x.get("causal")), soft=op == "softmax")
        if fault == "gate_not_its_logarithm":
            found["log_gate"] = found["log_gate"] / np.exp(x["log_gate"])
        if fault == "beta_of_values_gradient":
            found["beta"] = (x["v"] * found["v"] / x["beta"][..., None]).sum(axis=-1)
        if fault in ("erase_term_missing", "normalisation_as_constant"):
            found |= of_the_rule(fault, x, kept.saved, d_out, d_state)
        if fault in ("gate_by_cancellation", "gate_through_outputs_only"):
            found["log_gate"] = by_identity(x, kept.saved, d_out, fault == "gate_by_cancellation")
        for name in shared if kept.groups > 1 else ():  # and their gradients not summed
            axis = d_out.ndim - 2
            split = found[name].reshape(*d_out.shape[: axis - 1], -1, kept.groups, *found[name].shape[axis:])
            found[name] = split.take(0, axis) if fault == "group_not_summed" else split.mean(axis=axis)
        return found

    return forward, backward


class Kept(NamedTuple):
    """What the pairs above save."""

    saved: Any
    state: Any
    options: dict[str, Any]
    groups: int


AGAIN = {"backward_ahead": "causal_ahead", "backward_behind": "causal_behind"}


def by_pairs(fault: str, d_out: Any, scale: float, q: Any, k: Any, v: Any, causal: bool, soft: bool) -> dict[str, Any]:
    """Gradients of softmax or linear attention, pair by pair."""
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    slope = [1.0 if soft else np.where(x > 0, 1, np.exp(np.minimum(x, 0))) for x in (q, k)]
    f_q, f_k = (q, k) if soft else (phi("", q), phi("", k))
    n, keys = q.shape[-2], k.shape[-2]
    for at in np.ndindex(*q.shape[:-2]):
        for i in range(n):
            first, visible = (
                np.array([sees(x, i, j, n, keys, causal) for j in range(keys)]) for x in ("", AGAIN.get(fault, ""))
            )
            raw = np.exp(scale * (k[at] @ q[at][i])) if soft else f_k[at] @ f_q[at][i]
            total = raw @ first + (0 if soft else 1e-6)
            weights = visible * raw / total
            d_weights = v[at] @ d_out[at][i]
            mean = first * raw / total @ d_weights
            if soft:
                less = 0 if fault == "row_sum_missing" else mean
                d_pairs = scale * (visible if fault == "softmax_as_constant" else weights) * (d_weights - less)
            else:
                less = {"denominator_sign": -mean, "denominator_as_constant": 0}.get(fault, mean)
                d_pairs = visible * (d_weights - less) / total
            d_q[at][i] = d_pairs @ f_k[at]
            d_k[at] += np.outer(d_pairs, f_q[at][i])
            d_v[at] += np.outer(weights, d_out[at][i])
    return {"q": d_q * slope[0], "k": d_k * slope[1], "v": d_v}


def of_the_rule(fault: str, x: Any, saved: Any, d_out: Any, d_state: Any) -> dict[str, Any]:
    """Gradients of the delta rule itself, before they reach the inputs."""
    scale = x.get("scale") or x["q"].shape[-1] ** -0.5
    d = delta_rule.backward(d_out, saved.rule, d_state=d_state)
    if fault == "normalisation_as_constant":
        return {"q": scale * d.q, "k": d.k + x["beta"][..., None] * d.erase}
    if not x.get("normalise", True):
        return {"k": d.k}
    length = np.sqrt((x["k"] ** 2).sum(axis=-1, keepdims=True) + 1e-6)
    along = (x["k"] * d.k).sum(axis=-1, keepdims=True) * x["k"] / length**2
    return {"k": (d.k - along) / length}


def by_identity(x: Any, saved: Any, d_out: Any, summed: bool) -> Any:
    """The gate's gradient as a difference of sums over later tokens, in the precision at hand; or of its own alone."""
    rule, d = saved.rule, delta_rule.backward(d_out, saved.rule)
    rows = rule.q * d.q - rule.k * d.k + (0 if d.erase is None else rule.e * d.erase)
    rows = rows if x["log_gate"].ndim == rows.ndim else rows.sum(axis=-1, keepdims=True)
    sums = np.flip(np.cumsum(np.flip(rows, -2), axis=-2, dtype=rows.dtype), -2) if summed else rows
    return sums if x["log_gate"].ndim == rows.ndim else sums[..., 0]


def faulty(name: str, op: str, dtype: str) -> Target:
    """A kernel with this mistake, which offers everything that it takes to see it."""
    of_output = HYPOTHESES[name].of == "output"
    declares = tuple(x for x in (*OPS[op].options, "normalise") if of_output or x != "offsets")
    function = partial(each_head, ROWS[op], name) if of_output else pair_of(op, name)
    return Target.of(function, op, dtype, Mapping(declares=declares, arrays="numpy"))


def question_of(name: str, op: str, shape: int, dtype: str) -> Question:
    """A question whose answer shows this mistake."""
    options: dict[str, Any] = dict(SHAPES[shape])
    n = options["n"]
    causal = "causal", "backward", "aligned", "normalised_over", "packed", "state", "last_state", "first_state"
    if op in PAIRS and name.startswith(causal) and name != "causal_unasked":
        options["causal"] = True
    if name == "aligned_at_the_start":
        options["keys"] = n + 4
    if name in ("scale_default", "scale_times_default"):
        options["scale"] = 0.9
    unlike = "normalised", "erase_term_missing", "gate_by_cancellation", "gate_through_outputs_only"
    if name in unlike and "beta" in OPS[op].inputs:
        options["normalise"] = False
    if name in ("packed_as_one", "state_of_the_first"):
        options |= {"offsets": np.array([0, 4, n]), "leading": (4,)}
    if name.startswith(("heads", "group")):
        options["groups"] = 2
    if name.startswith(("state", "last_state", "first_state")):
        options["state"] = True
    if name == "last_state_ignored":
        options["d_state"] = True
    asked = ask(op, np.random.default_rng(shape), dtype=dtype, **options)
    if name.startswith("mask"):
        mask = np.broadcast_to(np.arange(n) % 3 != 1, asked.inputs["k"].shape[:-1]).copy()
        asked = asked.change(key_mask=mask)
    if name == "eps_missing":
        asked = asked.change(q=asked.inputs["q"] - 16)
    elif name.startswith("eps"):
        asked = asked.change(q=1e-6 * asked.inputs["q"], k=1e-6 * asked.inputs["k"])
    if name == "beta_clipped":
        asked = asked.change(beta=2 * asked.inputs["beta"])
    if name == "gates_summed_up":
        gate = asked.inputs["log_gate"].copy()
        gate[..., 3] = -np.inf
        asked = asked.change(log_gate=gate)
    if name == "gate_by_cancellation":
        asked = asked.change(log_gate=np.full_like(asked.inputs["log_gate"], -16.0))
    return asked


def applies(name: str, op: str) -> bool:
    """Whether the operation can have this mistake."""
    return op in HYPOTHESES[name].ops and (bool(OPS[op].state) or not name.startswith(("state_ignored", "state_of")))


def fits(name: str, op: str, shape: int) -> list[str]:
    """The hypotheses that fit what a kernel with this mistake answers on one of the shapes, best first."""
    dtype = "float32" if name == "gate_by_cancellation" else "float64"  # it is noise, of which float64 has too little
    question = question_of(name, op, shape, dtype)
    with np.errstate(all="ignore"):
        got = faulty(name, op, dtype).answer(question).arrays
    right = answer(question)
    budget = allowed(question, right, dtype)
    wrong = {each for each, x in right.items() if each in got and not (abs(got[each] - x) <= budget[each]).all()}
    return [each[0] for each in diagnose(question, got, right, wrong, float(np.finfo(np.float32).eps))]


def confusion(names: Iterable[str] = HYPOTHESES) -> dict[str, dict[str, list[list[str]]]]:
    """For each mistake and operation, the hypotheses that fit on each of the shapes, best first."""
    found: dict[str, dict[str, list[list[str]]]] = {name: {} for name in names}
    for name, by_op in found.items():
        for op in HYPOTHESES[name].ops:
            if applies(name, op):
                by_op[op] = [fits(name, op, shape) for shape in range(len(SHAPES))]
    return found
