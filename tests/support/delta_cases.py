"""The lines of ``cases.py`` for gated linear attention and the delta rule."""

from functools import partial

import numpy as np
import plain_loops
from case import Bad, Case
from pattern_cases import qkv

from linattn_ref.attention import delta, gated_linear

ROOMS = ("reference", "jit")


def qkv_log_gate(rng, s, dtype):
    """Queries, keys and values, and a gate a token."""
    return {**qkv(rng, s, dtype), "log_gate": log_gates(rng, (*s.leading, s.n), dtype)}


def qkv_log_gates(rng, s, dtype):
    """And a gate a token and channel."""
    return {**qkv(rng, s, dtype), "log_gate": log_gates(rng, (*s.leading, s.n, s.d), dtype)}


def qkv_beta(rng, s, dtype):
    """And how far to correct, without a gate."""
    return {**qkv(rng, s, dtype), "beta": rng.uniform(0.1, 1.9, (*s.leading, s.n)).astype(dtype)}


def qkv_beta_log_gate(rng, s, dtype):
    return {**qkv_beta(rng, s, dtype), "log_gate": log_gates(rng, (*s.leading, s.n), dtype)}


def qkv_beta_log_gates(rng, s, dtype):
    return {**qkv_beta(rng, s, dtype), "log_gate": log_gates(rng, (*s.leading, s.n, s.d), dtype)}


def log_gates(rng, shape, dtype):
    """Of gates from a twentieth to 0.95: some forget much in two tokens, so that a quotient of products is no good."""
    return np.log(rng.uniform(0.05, 0.95, shape)).astype(dtype)


def queries_written_and_state(s):
    """The scaled queries and the state; under a mask gates, of a channel each, are copied too."""
    return 2 * s.n * s.d + s.d * s.m


def written_and_state(s):
    """``u`` and the state; under a mask gates are copied too."""
    return s.n * (s.m + 1) + s.d * s.m


def rule_and_states(s):
    """On the page also the gate, the rows to erase along, which are 0, and every ``C``-th state."""
    return s.n * (3 * s.d + 2 * s.m) + 2 * s.d * s.m


def units_written_and_states(s):
    """Unit queries and keys, what is erased along and the gate; ``u``, ``beta v`` or each ``C``-th state; the state."""
    return s.n * (4 * s.d + 2 * s.m) + 2 * s.d * s.m


BAD_GATES = (
    Bad(
        "a gate above 1",
        lambda call: call.change(arrays={"log_gate": 0.1 - call.arrays["log_gate"]}),
        ValueError,
        r"^log_gate: expected logarithms of gates up to 1, ",
    ),
    Bad(
        "a gate that is no number",
        lambda call: call.change(arrays={"log_gate": np.nan * call.arrays["log_gate"]}),
        ValueError,
        r"^log_gate: expected logarithms of gates up to 1, ",
    ),
    Bad(
        "fewer queries",
        lambda call: call.change(arrays={"q": call.arrays["q"][..., 1:, :]}),
        ValueError,
        r"^k: expected shape \(\.\.\., N, C\) = \(2, 6, 4\), got \(2, 7, 4\)",
    ),
)
BAD_BETAS = (
    *(
        Bad(
            f"a beta of {beta}",
            lambda call, beta=beta: call.change(arrays={"beta": np.full_like(call.arrays["beta"], beta)}),
            ValueError,
            r"^beta: expected numbers from 0 to 2, got ",
        )
        for beta in (-0.1, 2.1, np.nan)
    ),
    Bad("normalise by name", lambda call: call.change(normalise="l2"), TypeError, r"^normalise: expected True or Fal"),
)

CACHE_LINE = lambda sizes: 64  # noqa: E731  # before a compiled state, which begins where one does

GATED_LINEAR = partial(
    Case,
    module=gated_linear,
    oracle=plain_loops.gated_linear,
    rooms=ROOMS,
    saved=queries_written_and_state,
    saved_in={"reference": rule_and_states},
    shared_bytes=CACHE_LINE,
    causal=True,
    square=True,
    recurrent=True,
    bounded=("log_gate",),
    optional=("log_gate",),
)
DELTA = partial(
    Case,
    module=delta,
    oracle=plain_loops.delta,
    rooms=ROOMS,
    saved=units_written_and_states,
    saved_in={"jit": written_and_state},
    shared_bytes=CACHE_LINE,
    causal=True,
    square=True,
    recurrent=True,
    bounded=("beta", "log_gate"),
    optional=("log_gate",),
    key_axes={"k": -2, "v": -2, "beta": -1},
)
A_HEAD = {"query_axes": {"q": -2, "log_gate": -1}, "bad": BAD_GATES}
A_CHANNEL = {"query_axes": {"q": -2, "log_gate": -2}}

DELTA_CASES = (
    GATED_LINEAR("gated linear", draw=qkv_log_gate, rows=("log_gate",), **A_HEAD, slow=True),
    GATED_LINEAR("gated linear channels", draw=qkv_log_gates, **A_CHANNEL, rooms=ROOMS[:1], left_to_slow=ROOMS[1:]),
    DELTA("delta", draw=qkv_beta, rows=("beta",), bad=BAD_BETAS, slow=True),
    DELTA("delta gated", draw=qkv_beta_log_gate, rows=("beta", "log_gate"), **A_HEAD, slow=True),
    DELTA(
        "delta channels", draw=qkv_beta_log_gates, rows=("beta",), **A_CHANNEL, rooms=ROOMS[:1], left_to_slow=ROOMS[1:]
    ),
)
