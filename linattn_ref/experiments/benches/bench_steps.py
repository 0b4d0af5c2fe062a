"""One token of each recurrent form, called from Python, beside the least that it could take; one thread, float32.

==========  =========================================================================================================
key/values  `softmax.step` after so many tokens, beside the reference and five lines of NumPy without any check. ONNX
            Runtime and OpenVINO read a cache that has this token already.
            ``cache read once`` loads the same numbers and adds them up: no kernel that looks at them all is faster.
sums        `linear.step`, called ``jit`` here, beside `performer.step` and `rfa.step` with as many directions as the
            keys are wide. ``state passed over`` reads and writes rfa's state, twice as large as linear's, and does
            nothing else.
rules       `gated_linear.step`, and `delta.step` without a gate, with one per head and with one per channel, beside
            ONNX Runtime's LinearAttention: ``run`` takes arrays and returns a new state. *kernel* is the compiled
            kernel without checks, beside ``bound``: buffers bound once, the state in place, so that nothing is looked
            at, as Python looks at arguments, and nothing is allocated.
==========  =========================================================================================================

Steps that keep sums work in the arrays of the state (``overwrite_state=True``); ``linear, new state`` leaves them
alone, and copies. All write into the same cache, or each into its own sums, again and again. `engine` says how time is
measured.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from linattn_ref.attention import delta, gated_linear, linear, performer, rfa, softmax
from linattn_ref.experiments.benches import engine, peers, runtimes
from linattn_ref.experiments.benches.engine import TOLD, Call
from linattn_ref.experiments.benches.limits import pass_over, read_all
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, Ints, Results, labels, style
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit.loops.delta import delta_product

__all__ = ["compute", "draw", "table"]

CACHE, SUMS = "key/values", "sums"
READ = "cache read once"
CALLS = 40  # timed together at 4096 tokens, fewer after more, and up to eight times as many after fewer
TOLERANCE = 1e-4  # of the largest number
LOOKS = {
    "jit": (style.BLUE, "o-"),
    "reference": (style.GREY, "^-"),
    "plain NumPy": (style.VERMILLION, "D-"),
    READ: (style.BLACK, "--"),
    runtimes.ONNX: (style.GREEN, "x-"),
    runtimes.OPENVINO: (style.PURPLE, "s-"),
}
RUN, BOUND = f"{runtimes.ONNX}, run", f"{runtimes.ONNX}, bound"
RULES = GATED, DELTA, GATED_DELTA, CHANNELS = "gated", "delta", "gated delta", "gate per channel"
SETTINGS = {"lengths": 1, "widths": 1, "rules batches": 2 * len(RULES)}  # of a rule the whole step, and its kernel


@engine.bench("heads", "width", "repeats", settings=SETTINGS)
def compute(
    *,
    lengths: Ints = (512, 4096, 16384),
    widths: Ints = (32, 64),
    rules: Ints = (64, 128),
    batches: Ints = (1, 16),
    heads: int = 8,
    width: int = 32,
    repeats: int = 31,
    seed: int = 0,
) -> engine.Measured:
    """Time one token of each recurrent form on one thread, beside ONNX Runtime, OpenVINO and the memory's own speed.

    CPU time, in turn in one process.

    Parameters
    ----------
    lengths : sequence of int
        Tokens in the cache, this one's among them.
    widths : sequence of int
        ``D = M = m`` of the sums.
    rules : sequence of int
        ``D = M`` of gated linear attention and the delta rule.
    batches : sequence of int
        Their batch sizes.
    heads : int
        ``H``.
    width : int
        ``D = M`` of the cache.
    repeats : int
        Rounds, after one that is not counted.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1.
    RuntimeError
        Two results disagree.
    """
    rng, found = np.random.default_rng(seed), runtimes.find_runtimes()
    for length in lengths:
        calls, often = of_cache(length, heads, width, rng, found), min(max(CALLS * 4096 // length, 4), 8 * CALLS)
        setting = {"task": CACHE, "size": length}
        yield from engine.measure(setting, calls, repeats, tolerance=TOLERANCE, apart=(READ,), often=often)
    for each in widths:
        yield from engine.measure({"task": SUMS, "size": each}, of_sums(each, heads, rng), repeats, often=10 * CALLS)
    for each, batch, rule in itertools.product(rules, batches, RULES):
        setting, often = {"task": rule, "size": each, "batch": batch}, 10 * CALLS // batch
        for what, calls in of_rule(rule, batch, heads, each, rng, found.get(runtimes.ONNX)).items():
            yield from engine.measure({**setting, "what": what}, calls, repeats, tolerance=TOLERANCE, often=often)
    return {"versions": peers.versions(None, found)}


# --- A key/value cache ----------------------------------------------------------------------------------------------


def of_cache(length: int, heads: int, width: int, rng: Generator, found: Mapping[str, Any]) -> dict[str, Call]:
    """The token after ``length - 1`` others, by name; each returns ``(out,)``, but for `READ`."""
    q, k, v = rng.standard_normal((3, heads, length, width)).astype(np.float32)
    token = q[:, -1].copy(), k[:, -1].copy(), v[:, -1].copy()
    state: Any = softmax.init_state((heads,), width, width, capacity=length, dtype=np.float32, kernels=jit)
    if length > 1:
        state = softmax.forward(q[:, :1], k[:, :-1], v[:, :-1], causal=True, state=state, kernels=jit)[1].state
    rows = state.rows
    qkv = q[None, :, -1:], k[None], v[None]
    return {
        "jit": partial(_step, jit, token, state),
        "reference": partial(_step, reference, token, state),
        "plain NumPy": partial(_plain, *token, rows.k, rows.v, length),
        READ: lambda: (read_all(rows.k), read_all(rows.v)),
        **{name: runtimes.softmax_attention(name, runtime, qkv, False) for name, runtime in found.items()},
    }


def _step(backend: Any, token: tuple[Array, Array, Array], state: Any) -> Sequence[Array]:
    state.rows.written = state.k.shape[-2]  # as if nobody had gone on from it
    return (softmax.step(*token, state, kernels=backend)[0],)


def _plain(q: Array, k: Array, v: Array, k_cache: Array, v_cache: Array, length: int) -> Sequence[Array]:
    """The step in five lines of NumPy: what one would write who wants no more than the numbers."""
    k_cache[:, length - 1], v_cache[:, length - 1] = k, v
    scores = (k_cache[:, :length] @ q[..., None])[..., 0] / math.sqrt(q.shape[-1])  # (H, t)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))  # (H, t)
    weights /= weights.sum(axis=-1, keepdims=True)
    return ((weights[:, None] @ v_cache[:, :length])[:, 0],)  # (H, M)


# --- Sums -----------------------------------------------------------------------------------------------------------


def of_sums(width: int, heads: int, rng: Generator) -> dict[str, Callable[[], object]]:
    """A token by each mechanism that keeps two sums."""
    q, k, v = rng.standard_normal((3, heads, width)).astype(np.float32)
    omega = {"omega": rng.standard_normal((width, width)).astype(np.float32)}
    calls: dict[str, Callable[[], object]] = {}
    for name, module, more in (("jit", linear, {}), ("performer", performer, omega), ("rfa", rfa, omega)):
        start = partial(module.init_state, (heads,), width, width, **more, dtype=np.float32)
        calls[name] = engine.going_on(partial(module.step, q, k, v, **more, kernels=jit, overwrite_state=True), start())
    at_first = linear.init_state((heads,), width, width, dtype=np.float32)
    calls["linear, new state"] = engine.going_on(partial(linear.step, q, k, v, kernels=jit), at_first)
    calls["state passed over"] = partial(pass_over, start().s)
    return calls


# --- The rules ------------------------------------------------------------------------------------------------------


def of_rule(rule: str, batch: int, heads: int, width: int, rng: Generator, runtime: Any) -> dict[str, dict[str, Call]]:
    """A token of one rule, of unit queries and keys, by what it is and name; each goes on from its own state."""
    q, k, v = rng.standard_normal((3, batch, heads, width)).astype(np.float32)
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    beta = None if rule == GATED else rng.random((batch, heads), np.float32)
    shape = v.shape if rule == CHANNELS else v.shape[:2]
    gate = None if rule == DELTA else -rng.exponential(0.1, shape).astype(np.float32)
    module: Any = gated_linear if rule == GATED else delta
    more: dict[str, Any] = {"log_gate_t": gate} | ({} if beta is None else {"beta_t": beta, "normalise": False})

    start = partial(module.init_state, (batch, heads), width, width, dtype=np.float32)

    def ours(backend: Any, overwrite_state: bool) -> Call:
        step = partial(module.step, q, k, v, **more, kernels=backend, overwrite_state=overwrite_state)
        return engine.going_on(step, start(kernels=backend))

    s, scale = start(kernels=jit).s, width**-0.5
    whole = {"jit": ours(jit, True), "jit, new state": ours(jit, False), "reference": ours(reference, False)}
    alone: dict[str, Call] = {"jit": lambda: (delta_product.step(q, k, v, None, gate, s, beta=beta, scale=scale),)}
    if runtime is not None:
        rows: list[Any] = [None if x is None else np.expand_dims(x, 2) for x in (q, k, v, beta, gate)]
        whole[RUN] = runtimes.linear_attention(runtime, *rows, scale=scale, goes_on=True)
        alone[BOUND] = runtimes.bound_step(runtime, *rows, scale=scale)
    return {"step": whole, "kernel": alone}


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """Three Markdown tables, of the cache, the sums and the rules, and below them what stands in them.

    One token, called from Python. *key/values* after so many tokens: `jit` is `softmax.step`, beside five lines of
    NumPy; `cache read once` loads the cache and adds it up. *sums* of heads so wide: `jit` is `linear.step`, beside
    `performer.step` and `rfa.step` with as many directions; `state passed over` reads and writes rfa's state, twice
    as large as linear's. All work in the arrays of the state but for `linear, new state`, which copies. *rules*: `jit`
    is `gated_linear.step` or `delta.step`, in the state's arrays too, beside `ONNX Runtime, run`, which takes arrays
    and returns a new state. *kernel* is the compiled kernel without checks, beside `bound`: buffers bound once, the
    state in place. `ONNX Runtime` and `OpenVINO` of *key/values* read a cache in which the token is already.
    """
    parts = [
        engine.table((task, size), engine.rows_of(results, task=task), LOOKS, unit=("µs", 1e3))
        for task, size in ((CACHE, "tokens"), (SUMS, "D = M = m"))
    ]
    of_rules = [row for row in results.rows if row.task in RULES]
    parts.append(engine.table(("rule", "D = M", "B", "what"), of_rules, ("jit", RUN, BOUND), unit=("µs", 1e3)))
    setting = f"B = 1, H = {results.heads}, D = M = {results.width} (key/values), float32, one thread"
    compared = engine.compared(results.versions, (runtimes.ONNX, runtimes.OPENVINO))
    return engine.page(*parts, note=[f"{setting}, {results.repeats} rounds.", TOLD, compared])


def draw(results: Results) -> Figure:
    """A step of softmax attention with its key/value cache on one thread of a CPU, float32: time against the tokens
    in the cache, and the bytes of the cache over that time. Dashed: what reading the cache takes, and nothing else.
    """
    token = 8 * results.heads * results.width  # bytes of its key and value
    figure, axes = style.figure(1, 2, height=0.42)
    for axis, unit in zip(axes, ("µs per token", "GB of the cache per second"), strict=True):
        axis.set(title=unit, xlabel="tokens in the cache", xscale="log")
        for name, (colour, look) in LOOKS.items():
            rows = engine.rows_of(results, task=CACHE, kernel=name)
            if not rows:  # not installed
                continue
            size, micro = np.array([(row.size, 1e3 * row.median_ms) for row in rows]).T
            y = micro if axis is axes[0] else token * size / micro / 1e3
            axis.plot(size, y, look, color=colour, label=name)
            labels.ticks(axis, size, [f"{n:.0f}" for n in size])
    axes[0].set_yscale("log")
    axes[1].set_ylim(bottom=0)
    for axis in axes:
        labels.at_ends(axis)
    return figure
