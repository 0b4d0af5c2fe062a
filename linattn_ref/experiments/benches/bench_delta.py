"""States that correct themselves, compared with one that only fades: one thread, float32, batch size 1.

========================  ============================================================================================
delta                     no gate (DeltaNet)
gated delta               one gate per head (Gated DeltaNet)
channels                  one gate per channel (Kimi Delta Attention)
========================  ============================================================================================

What is timed is the kernel `delta_product`; its backward pass finds ``beta k`` and ``beta v`` ready. ``gated product``
is the same kernel with a gate per head where nothing is erased, which is gated linear attention: another result, at the
same size. ONNX Runtime's LinearAttention has all three rules, forward. flash-linear-attention is for GPUs; its naive
files in chunks are plain PyTorch, and differentiated by it.
``multiply-adds alone`` are those of the formulas, and nothing else: its ratio is the share that ``jit`` reaches of what
this processor can do.

`engine` says how time is measured.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import chunked_delta
from linattn_ref.experiments.benches import engine, peers, runtimes
from linattn_ref.experiments.benches.engine import BOTH, BY_PASSES, FORWARD, PASSES, TOLD, Call
from linattn_ref.experiments.benches.limits import multiply_adds
from linattn_ref.experiments.publishing.kit import Array, Figure, Ints, Line2D, Results, style
from linattn_ref.kernels.jit.loops.delta import delta_product as fast
from linattn_ref.kernels.jit.loops.delta.delta_chunk import CHUNK
from linattn_ref.op.workspace import workspace

__all__ = ["compute", "draw", "table"]

PEER = peers.FLA
TASKS = DELTA, GATED, CHANNELS = "delta", "gated delta", "channels"
NAIVE = {  # of each task the file, the function, and whether tokens come before heads
    DELTA: ("delta_rule", "delta_rule_chunkwise", False),
    GATED: ("gated_delta_rule", "naive_chunk_gated_delta_rule", True),
    CHANNELS: ("kda", "naive_chunk_kda", True),
}
PRODUCT, LIMIT = "gated product", "multiply-adds alone"
TOLERANCE = 1e-3  # of the largest number: theirs makes ratios as exponentials of differences of sums
LOOKS = {"jit": (style.BLUE, "o"), PRODUCT: (style.BLACK, "v"), PEER: (style.VERMILLION, "D")}
LOOKS[runtimes.ONNX] = style.GREEN, "x"
LINES = {DELTA: ":", GATED: "-", CHANNELS: "--"}
GATES = ["no gate", "one gate per head", "one gate per channel"]


class Inputs(NamedTuple):
    """Of one task."""

    q: Array  # (1, H, N, C), with the scale
    k: Array  # (1, H, N, C), unit keys
    v: Array  # (1, H, N, M)
    beta: Array  # (1, H, N)
    log_gate: Array | None
    d_out: Array


@engine.bench("heads", "width", "repeats", settings={"lengths": 6})
def compute(
    *, lengths: Ints = (1024, 4096), heads: int = 8, width: int = 64, repeats: int = 3, seed: int = 0
) -> engine.Measured:
    """Compare the delta rule with ONNX Runtime and flash-linear-attention's naive files on one thread, if installed.

    And with gated linear attention. CPU time, the kernels in turn in one process.

    Parameters
    ----------
    lengths : sequence of int
        ``N``.
    heads : int
        ``H``.
    width : int
        ``C = M``.
    repeats : int
        Rounds, after one that is not counted.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1.
    RuntimeError
        Two kernels disagree.
    """
    torch, rng = engine.find("torch"), np.random.default_rng(seed)
    naive, runtime = find_naive(), runtimes.find_runtimes().get(runtimes.ONNX)
    with workspace():
        for length in lengths:
            for task in TASKS:
                inputs = draw_inputs(rng, heads, length, width, task)
                for passes in PASSES:
                    calls = _calls(inputs, task, passes, torch, naive, runtime)
                    setting, apart = {"task": task, "passes": passes, "size": length}, (PRODUCT, LIMIT)
                    yield from engine.measure(setting, calls, repeats, tolerance=TOLERANCE, apart=apart)
    return {"versions": peers.versions(torch if naive else None, {peers.FLA: naive or None, runtimes.ONNX: runtime})}


def draw_inputs(rng: np.random.Generator, heads: int, length: int, width: int, task: str) -> Inputs:
    """Unit queries and keys, and gates that forget within some ten tokens."""
    q, k, v, d_out = rng.standard_normal((4, 1, heads, length, width))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    beta: Array = rng.uniform(size=(1, heads, length))
    shape = {DELTA: None, GATED: beta.shape, CHANNELS: k.shape}[task]
    log_gate = None if shape is None else -rng.exponential(0.1, shape)
    rows = q / np.sqrt(width), k, v, beta, log_gate, d_out
    given: Any = (x if x is None else x.astype(np.float32) for x in rows)
    return Inputs(*given)


def find_naive() -> dict[str, Any]:
    """flash-linear-attention's naive functions by task, read from their files; none where these cannot be had."""
    files = {task: peers.naive_file(folder) for task, (folder, *_) in NAIVE.items()}
    return {task: getattr(file, NAIVE[task][1]) for task, file in files.items()} if all(files.values()) else {}


# --- What is compared -----------------------------------------------------------------------------------------------


def _calls(inputs: Inputs, task: str, passes: str, torch: Any, naive: dict[str, Any], runtime: Any) -> dict[str, Call]:
    """By name, ``jit`` first. Of gradients that of the queries is compared."""
    beta = inputs.beta[..., None]
    v, erase = beta * inputs.v, beta * inputs.k  # as the kernel's backward pass takes them, and the page
    given = inputs.q, inputs.k, v, erase, inputs.log_gate
    nothing_erased = inputs._replace(log_gate=np.log1p(-inputs.beta / 10)), inputs.v, None
    calls: dict[str, Call] = {
        "jit": partial(_ours, inputs, v, erase, passes),
        "reference": partial(engine.run, chunked_delta, given, inputs.d_out, passes),
        PRODUCT: partial(_ours, *nothing_erased, passes),
        LIMIT: partial(multiply_adds, multiply_adds_of(inputs, passes), np.float32),
    }
    if naive and inputs.v.shape[-2] % peers.FLA_ROWS == 0:
        form = partial(_theirs, torch, naive[task], NAIVE[task][2], inputs)
        calls[PEER] = partial(peers.in_torch, torch, form, inputs[:4], inputs.d_out, passes == BOTH)
    if runtime is not None and passes == FORWARD:
        calls[runtimes.ONNX] = runtimes.linear_attention(runtime, *inputs[:5], scale=1.0)
    return calls


def _ours(inputs: Inputs, v: Array, erase: Array | None, passes: str) -> Sequence[Array]:
    beta = None if erase is None else inputs.beta
    out, _, u = fast.forward(inputs.q, inputs.k, inputs.v, None, inputs.log_gate, None, beta)
    rows = inputs.q, inputs.k, v, erase, inputs.log_gate, None
    return (out,) if passes == FORWARD else (out, fast.backward(inputs.d_out, None, *rows, u)[0])


def _theirs(torch: Any, function: Any, tokens_first: bool, inputs: Inputs, q: Any, k: Any, v: Any, beta: Any) -> Any:
    """Their own scale, ``1 / sqrt(C)``, is in the queries already."""
    q = q * q.shape[-1] ** 0.5
    if not tokens_first:
        return function(q, k, v, beta)[0]
    given = {"q": q, "k": k, "v": v, "beta": beta, "g": torch.from_numpy(inputs.log_gate)}
    return function(**{name: x.transpose(1, 2) for name, x in given.items()})[0].transpose(1, 2)


def multiply_adds_of(inputs: Inputs, passes: str) -> int:
    """As many as the formulas have in chunks of ``jit``'s length: with the state, and with pairs of rows."""
    state, pairs = inputs.k.shape[-1] * inputs.v.shape[-1], CHUNK * (inputs.k.shape[-1] + inputs.v.shape[-1])
    forward, backward = 3 * state + pairs, 7 * state + 3 * pairs
    return inputs.beta.size * (forward if passes == FORWARD else forward + backward)


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line per task and length, and below it what stands in it."""
    lines = engine.table(("gate", "passes", "N"), results.rows, (*LOOKS, LIMIT))
    note = (
        f"B = 1, H = {results.heads}, C = M = {results.width}, float32, one thread, {results.repeats} rounds.",
        f"{TOLD} gated product: nothing is erased, a gate per head, another result.",
        "multiply-adds alone: those of the formulas; its ratio is the share of the peak.",
        engine.compared(results.versions, (peers.PYTORCH, peers.FLA, runtimes.ONNX)),
    )
    return engine.page(lines, note=note)


def draw(results: Results) -> Figure:
    """Linear attention whose state corrects itself: time per token against length, forward and with the backward
    pass, without a gate, with one per head and with one per channel. One thread of a CPU, float32.
    """
    lines: dict[str, Any] = {}
    for kernel, (colour, marker) in LOOKS.items():
        for task in [GATED] if kernel == PRODUCT else TASKS:
            name = kernel.replace(", naive", " in plain PyTorch")
            label = name if task == GATED else f"_{name}{task}"  # of a kernel's lines one is named
            lines[label] = colour, marker + LINES[task], {"kernel": kernel, "task": task}
    figure = engine.draw(results, BY_PASSES, lines)
    handles = [Line2D([], [], color=style.GREY, linestyle=line) for line in LINES.values()]  # type: ignore[arg-type]
    figure.legend(handles, GATES, loc="outside lower center", ncols=3)
    return figure
