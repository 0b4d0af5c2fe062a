"""The formulas that mistakes are made in: attention by its weights, and the delta rule row by row."""

from collections.abc import Callable
from typing import Any

import numpy as np

from linattn_ref.attention import delta_rule
from linattn_ref.attention.features.feature_maps import elu_plus_one
from linattn_ref.attention.parts.masks import shown
from linattn_ref.conform.questions import Question, run

__all__ = ["Inapplicable", "Map", "alone", "by_rule", "phi", "rule_gradients", "rule_saved", "seen", "sees"]
__all__ += ["weighted", "weights"]

Map = Callable[[np.ndarray], np.ndarray]


class Inapplicable(Exception):
    """A formula was asked a question that it does not answer."""


def alone(x: Question) -> bool:
    """Whether one call of a page answers the question: no packed sequences, no shared heads."""
    return not {"groups", "offsets"} & {*x.options}


def seen(x: Question, ahead: int = 0, aligned: bool = True) -> np.ndarray:
    """Which keys a query sees: up to its own, and ``ahead`` more; both sequences end, or begin, together."""
    n, keys = x.inputs["q"].shape[-2], x.inputs["k"].shape[-2]
    see = np.tri(n, keys, (keys - n) * aligned + ahead, bool)
    mask = x.options.get("key_mask")
    return see if mask is None else see & mask[..., None, :]


def sees(x: Question) -> np.ndarray:
    """Which keys a query does see, as was asked."""
    return seen(x) if x.causal else seen(x, x.inputs["q"].shape[-2])


def phi(x: np.ndarray) -> np.ndarray:
    """The feature map of linear attention."""
    return elu_plus_one.forward(x)[0]


def weights(x: Question, see: np.ndarray, features: Map = phi) -> np.ndarray:
    """``exp(A)``, the largest of a row subtracted, or ``phi(Q) phi(K)^T``; 0 for a key that is not seen.

    Without a state, and where all heads have their own keys.
    """
    if not alone(x) or x.state is not None:
        raise Inapplicable
    q, k = x.inputs["q"], x.inputs["k"]
    if x.op != "softmax":
        return np.where(see, features(q) @ features(k).mT, 0.0)
    a = np.where(see, x.scale * (q @ k.mT), -np.inf)
    return np.exp(a - np.maximum(a.max(axis=-1, keepdims=True), -1e300))


def weighted(x: Question, see: np.ndarray | None = None, features: Map = phi) -> np.ndarray:
    """The mean of the values with these weights."""
    w = weights(x, sees(x) if see is None else see, features)
    total = w.sum(axis=-1, keepdims=True)
    return w @ x.inputs["v"] / np.where(total == 0, 1.0, total)


def rule_saved(x: Question) -> Any:
    """What the delta rule itself saved: its rows, as `delta` makes them."""
    if not alone(x):
        raise Inapplicable
    return run(x)[1].rule


def rule_gradients(x: Question) -> Any:
    """The gradients of the delta rule's own arguments."""
    d_state = None if x.d_state is None else delta_rule.State(*x.d_state)
    return delta_rule.backward(x.d_out, rule_saved(x), d_state=d_state)


def by_rule(x: Question, mistake: str = "", **inputs: Any) -> np.ndarray:
    """The delta rule row by row, with one line mistaken; equations (1)-(4) of `delta_rule`.

    ``inputs`` are functions that put other rows in the place of ``value``, ``erase`` or ``gate``.
    """
    rule, v = rule_saved(x), shown(x.inputs["v"], x.options.get("key_mask"))
    beta = x.inputs["beta"][..., None] if "beta" in x.inputs else 1.0
    rows = {"value": beta * v, "erase": rule.e, "gate": rule.gate}
    rows |= {name: change(rows[name], rule.k, v, beta) for name, change in inputs.items()}
    out, s = np.empty_like(v), rule.noted[0]
    for i in range(v.shape[-2]):
        row = np.s_[..., i : i + 1, :]
        before, g = s, rows["gate"][row].mT
        decayed = g * s  # (1)
        u = rows["value"][row] - rows["erase"][row] @ (before if mistake == "erase" else decayed)  # (2)
        s = decayed + (g if mistake == "write" else 1.0) * (rule.k[row].mT @ u)  # (3)
        out[row] = rule.q[row] @ (decayed if mistake == "read" else s)  # (4)
    return out
