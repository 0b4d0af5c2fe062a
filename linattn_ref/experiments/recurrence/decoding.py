"""What one more token costs in generation, by its position: a linear state compared with a key/value cache.

Both are recurrent networks (``step`` of `linattn_ref.attention.linear` and ``.softmax``). One keeps two sums per head,
whatever the position; the other keeps every key and value so far. In numbers, at position ``t`` with ``H`` heads:

========================  =====================  ================
..                        linear                 softmax
========================  =====================  ================
numbers in the state      ``H C (M + 1)``        ``H t (D + M)``
multiply-adds, about      ``2 H C M``            ``H t (D + M)``
========================  =====================  ================

Multiply-adds are those of the pages' matrix products. Features, exponentials and divisions are left out, which are
linear in ``C``, ``D``, ``M`` or ``t``. The first row is exact.

The times are CPU time of the compiled backend on one thread. Its steps work in the arrays of the state, while the pages
copy the whole cache for each token. At early positions a step takes as long as any call does. They are compared with
the time per token where all ``t`` are known and linear attention takes them in one pass. The difference is the price of
the loop, which generation cannot do without.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import linear, softmax
from linattn_ref.experiments.measuring.counting import count, kept_bytes
from linattn_ref.experiments.measuring.timing import in_turn, one_thread
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, Ints, NDArray, Results, labels, style
from linattn_ref.kernels import jit, reference

__all__ = ["compute", "draw", "make", "setup"]

POSITIONS = tuple(2**p for p in range(4, 15))
QUICK = {"positions": POSITIONS[:4]}
STEPS = 64  # timed together: one takes some 8 microseconds, and the first finds the processor's caches cold


class Step(NamedTuple):
    """One token, ready for its step."""

    step: Callable[..., Any]  # (q_t, k_t, v_t, state) -> out_t, state
    state: Any  # before it
    arrays: tuple[Array, ...]  # q_t (H, D), k_t (H, D), v_t (H, M)


class Setup(NamedTuple):
    """The same token by each network, and all tokens up to it."""

    linear: Step
    softmax: Step
    qkv: tuple[Array, ...]  # q (H, t, D), k (H, t, D), v (H, t, M)


def compute(
    positions: Ints = POSITIONS,
    *,
    rng: Generator,
    heads: int = 8,
    width: int = 64,
    rounds: int = 11,
    dtype: type[np.floating[Any]] = np.float32,
) -> Results:
    """Measure, count and time one step of both networks at every position.

    Parameters
    ----------
    positions : sequence of int
        Of the token that is made, from 1. Each needs a whole cache, of ``2 heads width`` numbers per token.
    rng : numpy.random.Generator
        Draws the tokens, on whose values nothing depends.
    heads, width : int
        ``H``, and ``D = M = C``.
    rounds : int
        Of timing.
    dtype : float32 or float64
    """
    setups = [setup(t, heads, width, dtype, rng) for t in positions]
    compiled = [setup(t, heads, width, dtype, rng, kernels=jit) for t in positions]
    seconds = _seconds(compiled, rounds)
    t, size, one = np.array(positions, np.int64), np.dtype(dtype).itemsize, np.ones(len(positions), np.int64)
    state, products = heads * width * (width + 1) * size * one, 2 * heads * width * width * one
    cache, scores = heads * 2 * width * size * t, heads * 2 * width * t
    return Results(
        positions=t,  # (T,), of the token that is made, from 1
        heads=heads,
        width=width,  # D = M = C
        dtype=np.dtype(dtype).name,
        linear=_costs([each.linear for each in setups], state, products, seconds["linear"]),
        softmax=_costs([each.softmax for each in setups], cache, scores, seconds["softmax"]),
        ratio=np.median(seconds["softmax"] / seconds["linear"], axis=1),  # (T,), softmax's over linear's in a round
        at_once=np.median(seconds["at once"], axis=1),  # (T,), CPU time per token of one linear pass over all up to it
    )


def setup(
    position: int, heads: int, width: int, dtype: type[np.floating[Any]], rng: Generator, *, kernels: Any = reference
) -> Setup:
    """All is ready for the token at ``position``."""
    q, k, v = (rng.standard_normal((heads, position, width)).astype(dtype) for _ in range(3))
    last, seen = (q[:, -1], k[:, -1], v[:, -1]), (q[:, :1], k[:, :-1], v[:, :-1])
    steps = {}
    for name, module in (("linear", linear), ("softmax", softmax)):
        state = module.init_state((heads,), width, width, dtype=dtype, capacity=position, kernels=kernels)
        if position > 1:
            state = module.forward(*seen, causal=True, state=state, kernels=kernels)[1].state
        steps[name] = Step(partial(module.step, kernels=kernels, overwrite_state=True), state, last)
    return Setup(**steps, qkv=(q, k, v))


def make(token: Step, *arrays: Array) -> Any:
    """Its output and the state after it, as often as asked.

    A cache is made to forget that it went on, and sums go on from what they are: only the cost of a token counts here,
    and it is the same whatever the state holds.
    """
    if hasattr(token.state, "rows"):
        token.state.rows.written = token.state.k.shape[-2]
    return token.step(*arrays, token.state)


def _make_some(token: Step) -> None:
    for _ in range(STEPS):
        make(token, *token.arrays)


def _seconds(setups: list[Setup], rounds: int) -> dict[str, NDArray[np.float64]]:
    """CPU time of one token, ``(T, rounds)``."""
    calls: dict[str, Callable[[], object]] = {}
    for i, (by_linear, by_softmax, qkv) in enumerate(setups):
        calls[f"linear {i}"] = partial(_make_some, by_linear)
        calls[f"softmax {i}"] = partial(_make_some, by_softmax)
        calls[f"at once {i}"] = partial(linear.forward, *qkv, causal=True, kernels=jit)
    with one_thread():
        seconds = in_turn(calls, rounds)
    tokens = {"linear": STEPS, "softmax": STEPS, "at once": np.array([[each.qkv[0].shape[1]] for each in setups])}
    return {name: np.array([seconds[f"{name} {i}"] for i in range(len(setups))]) / n for name, n in tokens.items()}


def _costs(steps: list[Step], state: Any, multiply_adds: Any, seconds: NDArray[np.float64]) -> Results:
    counted = [count(partial(make, each), *each.arrays).multiply_adds for each in steps]
    held = [kept_bytes(make(each, *each.arrays)[1]) for each in steps]
    return Results(
        state=np.array(held),  # (T,), bytes of its arrays after the token
        state_formula=state,
        multiply_adds=np.array(counted),  # (T,), of one step
        multiply_adds_formula=multiply_adds,  # about
        seconds=np.median(seconds, axis=1),  # (T,), CPU time of one step, the median of the rounds
    )


def draw(results: Results) -> Figure:
    """One more token at batch size 1, eight heads of 64, float32. A linear state has the same size and costs the same
    at every position; a key/value cache grows, and so does a look through it. Left and middle: points are bytes and
    counts, lines the formulas. Right: measured CPU time; dashed, a token's share of one pass over all t, where they are
    known beforehand.
    """
    figure, axes = style.figure(1, 3, height=0.36, sharex=True)
    looks = (
        ("key/value cache", results.softmax, style.MECHANISMS["softmax"], "o"),
        ("linear", results.linear, style.MECHANISMS["linear"], "s"),
    )
    for name, costs, colour, marker in looks:
        for axis, formula in zip(axes, (costs.state_formula / 1024, costs.multiply_adds_formula / 1e3), strict=False):
            axis.plot(results.positions, formula, "-", color=colour)
        measured = costs.state / 1024, costs.multiply_adds / 1e3, costs.seconds * 1e6
        for axis, points, line in zip(axes, measured, ("", "", "-"), strict=True):
            axis.plot(results.positions, points, marker + line, color=colour, label=name, zorder=3)
    label, colour = "linear, all t at once", style.MECHANISMS["linear"]
    axes[2].plot(results.positions, results.at_once * 1e6, "s--", color=colour, mfc="white", label=label, zorder=3)
    for axis, title in zip(axes, ("state (KiB)", "thousand multiply-adds", "CPU time per token (µs)"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="position t (tokens)", title=title)
        ticks = results.positions[::2]
        labels.ticks(axis, ticks, [f"{t / 1024:.0f}k" if t >= 1024 else str(t) for t in ticks])
        labels.at_ends(axis, width=10)
    return figure
