"""The lines of ``cases.py`` for random feature attention."""

from functools import partial

import numpy as np
import plain_loops
from case import Bad, Case
from pattern_cases import qkv, row_and_sum

from linattn_ref.attention import rfa

FEATURES = 6  # C
ROOMS = ("reference", "jit")
CAUSAL = {"options": {"causal": True}, "causal": True}


def qkv_gate(rng, s, dtype):
    """Queries, keys and values, directions for random features, and a gate of each token."""
    gate = rng.uniform(0.3, 0.95, (*s.leading, s.n)).astype(dtype)
    return {**qkv(rng, s, dtype), "omega": short_directions(rng, s.d, dtype), "gate": gate}


def qkv_no_gate(rng, s, dtype):
    return {**qkv(rng, s, dtype), "omega": short_directions(rng, s.d, dtype)}


def qkv_gate_and_axes(rng, s, dtype):
    """Directions along the axes, and entries away from 0: no product is near the kink of the rectified features.

    The first entry of each query and key is positive, so that any two have a feature in common; the others are of
    either sign, so that each has features which the other lacks.
    """
    arrays = qkv_gate(rng, s, dtype)
    for name in "qk":
        arrays[name] += np.copysign(dtype(0.1), arrays[name])
        arrays[name][..., 0] = abs(arrays[name][..., 0])
    omega = np.zeros((FEATURES, s.d), dtype)
    for row in range(FEATURES):
        omega[row, row % s.d] = (-1) ** (row // s.d) * rng.uniform(0.5, 1.5)
    return {**arrays, "omega": omega}


def short_directions(rng, d, dtype):
    """So short that the cosines between unit vectors are positive: a denominator near 0 is a pole of the output."""
    omega = rng.standard_normal((FEATURES // 2, d))
    return (0.7 * omega / np.linalg.norm(omega, axis=-1, keepdims=True)).astype(dtype)


def unit_features_and_row(s):
    """Unit vectors, their lengths and phi; states before and after, and a count; with a gate a little less."""
    return 1 + (s.n + s.n_keys) * (s.d + 1 + FEATURES) + 2 * FEATURES * (s.m + 1) + row_and_sum(s)


def gated_rows(s):
    """Of queries and keys; queries, weighted keys and values of the rule with their ones; the gate, and the state."""
    rule = s.n * (2 * FEATURES + s.m + 2) + FEATURES * (s.m + 1)
    return 2 * s.n * (s.d + 1 + FEATURES) + rule + row_and_sum(s)


def gated_rows_and_states(s):
    """On the page also the rows to erase along, which are 0, and every ``C``-th state."""
    return gated_rows(s) + s.n * FEATURES + (s.n + FEATURES) * (s.m + 1)


RFA = partial(
    Case,
    module=rfa,
    rooms=ROOMS,
    draw=qkv_no_gate,
    oracle=plain_loops.rfa,
    shared=("omega",),
    constants=("omega",),
    saved=unit_features_and_row,
    bad=(
        Bad(
            "unknown kind", lambda call: call.change(kind="relu"), ValueError, r"^kind: expected one of gaussian, arcc"
        ),
        Bad("eps below 0", lambda call: call.change(eps=-1e-6), ValueError, r"^eps: expected a finite number of at"),
        Bad(
            "wide omega",
            lambda call: call.change(arrays={"omega": np.repeat(call.arrays["omega"], 2, axis=-1)}),
            ValueError,
            r"^omega: expected shape \(m, D\) = \(3, 4\), got \(3, 8\)",
        ),
    ),
)

BAD_GATES = (
    Bad("no causal", lambda call: call.change(causal=False), ValueError, r"^gate: needs causal=True"),
    Bad(
        "fewer queries",
        lambda call: call.change(arrays={"q": call.arrays["q"][..., 1:, :], "gate": call.arrays["gate"][..., 1:]}),
        ValueError,
        r"^gate: needs N = L, a gate per token, got N = 6 and L = 7",
    ),
    *(
        Bad(
            f"a gate of {g}",
            lambda call, g=g: call.change(arrays={"gate": np.full_like(call.arrays["gate"], g)}),
            ValueError,
            r"^gate: expected numbers strictly between 0 and 1, got ",
        )
        for g in (0.0, 1.0, -0.5, 2.0, np.nan)
    ),
)

GATED = partial(
    RFA,
    saved=gated_rows,
    saved_in={"reference": gated_rows_and_states},
    recurrent=True,
    square=True,
    query_axes={"q": -2, "gate": -1},
    rows=("gate",),
    bounded=("gate",),
    optional=("gate",),
    bad=BAD_GATES,
)

RFA_CASES = (
    RFA("rfa"),
    RFA("rfa causal", **CAUSAL, recurrent=True),
    GATED("rfa gated", **CAUSAL, draw=qkv_gate),
    GATED("rfa arccos gated", causal=True, options={"causal": True, "kind": "arccos"}, draw=qkv_gate_and_axes, bad=()),
)
