"""Causal linear attention beside other packages, on one thread of the CPU, in float32 at batch size 1.

========================  ============================================================================================
product                   the kernels alone: features in, ``out`` and the gradients out
attention                 all of it: queries and keys in, elu + 1, the denominator
kernel step, step         one token of the recurrent form, without and with features and checks, called from Python
========================  ============================================================================================

`engine` says how time is measured, and `peers` what the others are.
``jit plain`` is the loop of the paper in a few lines of Numba; ``jit float64`` the fast kernel in twice the precision.
``multiply-adds alone`` are as many as ``jit`` makes, and nothing else: no kernel that makes them can be faster on this
processor.

At these sizes a forward pass takes no longer than the system takes to find new memory for its result. That is not what
is compared: fast-transformers' kernels are given theirs, and the others get theirs from what is free in the process,
which on Linux keeps what is freed meanwhile (`op.workspace.workspace`).

Decoding makes one small step after another, so that what a call costs before any arithmetic counts. ``jit`` works in
the arrays of the state (``overwrite_state=True``); ``jit, new state`` leaves them alone, and copies.
PyTorch's step is written in two ways: ``pytorch, new state`` as one would, with matrix products and a new state,
``S = S + bmm(k^T, v)``; and ``pytorch, in place`` with the fewest calls, the state moved on where it is. ONNX Runtime
has two nodes for it, and moves the state on where it is. fast-transformers has a module for it,
``RecurrentLinearAttention``, which takes queries and keys, also in place where no gradient is asked for.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from linattn_ref.attention import linear
from linattn_ref.attention.features.feature_maps import elu_plus_one
from linattn_ref.experiments.benches import engine, peers, runtimes
from linattn_ref.experiments.benches.engine import TOLD, Call
from linattn_ref.experiments.benches.limits import multiply_adds
from linattn_ref.experiments.benches.peers import Inputs
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, Ints, Results, style
from linattn_ref.experiments.recurrence import causal_cost
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit.loops.linear import causal_product as fast
from linattn_ref.kernels.jit.loops.linear import causal_product_plain as plain
from linattn_ref.op.workspace import workspace

__all__ = ["compute", "draw", "table"]

LOOP, AT_ONCE = (32, 64), 64  # rows in a chunk of PyTorch's forms
STEP_TASKS = STEP_KERNEL, STEP = "kernel step", "step"
FORWARD, BOTH, ATTENTION = "product, forward", "product, forward + backward", "attention, forward + backward"
LONG, FEW = 16384, 3  # beyond this length no more than so many rounds: one takes some seconds
SEEN = 9  # tokens before a step
STEPS = 500  # timed together: one takes some microseconds, and the first of them finds other data in the caches
TOLERANCE = 1e-4  # of the largest number; some 1000 roundings of float32, for sums of up to some 10^4 terms
LOOKS = {
    "jit": (style.BLUE, "o-"),
    "jit plain": (style.SKY, "s-"),
    "reference": (style.GREY, "^-"),
    "pytorch": (style.VERMILLION, "D-"),
    "fast-transformers": (style.BLACK, "v-"),
    "fast-transformers native": (style.BLACK, "v--"),
    peers.FLA: (style.GREEN, "x-"),
    runtimes.ONNX: (style.PURPLE, "s-"),
    "multiply-adds alone": (style.GREY, ":"),
}


@engine.bench("heads", "width", "step_width", "repeats", settings={"lengths": 3, "batches": 2})
def compute(
    *,
    lengths: Ints = (1024, 4096, 16384, 65536),
    batches: Ints = (1, 16),
    heads: int = 8,
    width: int = 64,
    step_width: int = 32,
    repeats: int = 7,
    compile: bool = True,
    seed: int = 0,
) -> engine.Measured:
    """Compare causal linear attention with PyTorch and three other packages on one thread, if installed.

    They are ONNX Runtime, fast-transformers and flash-linear-attention's naive file. CPU time, in turn in one process.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``.
    batches : sequence of int
        Batch sizes of the steps.
    heads : int
        ``H``.
    width : int
        ``C = D = M``.
    step_width : int
        ``D = M`` of the steps.
    repeats : int
        Rounds, after one that is not counted; fewer for long inputs.
    compile : bool
        ``torch.compile``, which needs a C++ compiler and some seconds per length.
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
    packages: dict[str, Any] = peers.fast_transformers("causal_product", "attention", "masking", "recurrent.attention")
    packages[peers.FLA] = peers.naive_file("linear_attn")
    packages[runtimes.ONNX] = runtimes.find_runtimes().get(runtimes.ONNX)
    with workspace():
        for length in lengths:
            inputs = Inputs(*rng.standard_normal((4, 1, heads, length, width)).astype(np.float32))
            rounds = repeats if length <= LONG else min(repeats, FEW)
            for task, calls in _passes(inputs, torch, packages, compile):
                yield from engine.measure({"task": task, "size": length}, calls, rounds, tolerance=TOLERANCE)
        for batch in batches:
            for task, calls in steps(batch, heads, step_width, torch, packages, rng):
                setting = {"task": task, "size": batch}
                yield from engine.measure(setting, calls, repeats, tolerance=TOLERANCE, often=STEPS)
    return {"versions": peers.versions(torch, packages)}


# --- What is compared -----------------------------------------------------------------------------------------------


Tasks = Iterator[tuple[str, dict[str, Call]]]  # each with its calls by name, ``jit`` first


def _passes(inputs: Inputs, torch: Any, packages: Mapping[str, Any], compiled: bool) -> Tasks:
    """The three tasks over a whole sequence."""
    phi = inputs._replace(q=elu_plus_one.forward(inputs.q)[0], k=elu_plus_one.forward(inputs.k)[0])
    double, once = Inputs(*(x.astype(np.float64) for x in phi)), inputs.v.size * inputs.k.shape[-1]  # N C M, all heads
    forms = in_pytorch(torch, compiled) if torch is not None else {}
    attention = engine.ours(linear, inputs[:3], inputs.d_out, engine.BOTH, causal=True)
    naive, runtime = packages[peers.FLA], packages[runtimes.ONNX]
    if naive is not None and inputs.v.shape[-2] % peers.FLA_ROWS == 0:
        forms[peers.FLA], theirs = partial(fla_product, naive), partial(fla_attention, torch, naive)
        attention[peers.FLA] = partial(peers.in_torch, torch, theirs, inputs[:3], inputs.d_out, True)
    others = [name for name in peers.FAST_TRANSFORMERS if name in packages]
    attention |= {name: fast_transformers_attention(torch, packages[name], inputs) for name in others}
    for task, products in ((FORWARD, 2), (BOTH, 8)):
        both = task == BOTH
        product: dict[str, Call] = {
            "jit": partial(_product, fast.forward, fast.backward, phi, both),
            "jit float64": partial(_product, fast.forward, fast.backward, double, both),
            "multiply-adds alone": partial(multiply_adds, products * once, phi.v.dtype),
            "jit plain": partial(_product, plain.forward_by_row, plain.backward_by_row, phi, both),
            "reference": partial(_in_chunks, phi, both),
        }
        for name, form in forms.items():
            product[name] = partial(peers.in_torch, torch, form, phi[:3], phi.d_out, both)
        product |= {name: fast_transformers_product(torch, packages[name], phi, both) for name in others}
        if runtime is not None and not both:
            product[runtimes.ONNX] = runtimes.linear_attention(runtime, *phi[:3], scale=1.0)
        yield task, product
    yield ATTENTION, attention


def _product(forward: Any, backward: Any, inputs: Inputs, both: bool) -> Sequence[Array]:
    *qkv, d_out = inputs
    out, _ = forward(*qkv, None)
    return (out, *backward(d_out, None, *qkv, None)[:3]) if both else (out,)


def _in_chunks(inputs: Inputs, both: bool) -> Sequence[Array]:
    *qkv, d_out = inputs
    out, saved = causal_cost.chunks_forward(*qkv)
    return (out, *causal_cost.chunks_backward(d_out, saved)) if both else (out,)


# --- Other packages -------------------------------------------------------------------------------------------------


def in_pytorch(torch: Any, compiled: bool) -> dict[str, Any]:
    """The causal product in PyTorch, ``(q, k, v) -> out``, by name; see `peers.loop` and `peers.at_once`."""
    forms: dict[str, Any] = {f"pytorch, loop of {rows}": partial(peers.loop, torch, rows) for rows in LOOP}
    forms[f"pytorch, {AT_ONCE} at once"] = partial(peers.at_once, torch, AT_ONCE)
    if compiled:
        torch.compiler.reset()  # compiled for these shapes, not for any that another call of this had
        form = torch.compile(lambda q, k, v: peers.at_once(torch, AT_ONCE, q, k, v), dynamic=False)
        forms[f"pytorch, {AT_ONCE} at once, compiled"] = form
    return forms


def fast_transformers_product(torch: Any, package: Any, inputs: Inputs, both: bool) -> Call:
    """Its C++ kernels alone, into arrays that are there already."""
    kernels = package.causal_product
    q, k, v, d_out = (torch.from_numpy(x) for x in inputs)
    out, *gradients = (torch.zeros_like(x) for x in (v, q, k, v))

    def product() -> Sequence[Array]:
        kernels.causal_dot_product_cpu(q, k, v, out)
        if not both:
            return (out.numpy(),)
        kernels.causal_dot_backward_cpu(q, k, v, d_out, *gradients)
        return tuple(x.numpy() for x in (out, *gradients))

    return product


def fast_transformers_attention(torch: Any, package: Any, inputs: Inputs) -> Call:
    """Its module ``CausalLinearAttention``, forward and backward, on arrays in its own order ``(B, N, H, D)``."""
    *qkv, d_out = (x.swapaxes(1, 2).copy() for x in inputs)
    b, n, _, width = qkv[0].shape
    attention = peers.attention_module(torch, package, b, n, width)
    call = partial(peers.in_torch, torch, attention, qkv, d_out, True)
    return lambda: [x.swapaxes(1, 2) for x in call()]


def fla_product(naive: Any, *qkv: Any, **options: Any) -> Any:
    """The causal product as a form of :func:`in_pytorch`: its order of axes is ``(B, N, H, C)``."""
    return naive.naive_chunk_linear_attn(*(x.transpose(1, 2) for x in qkv), scale=1.0, **options).transpose(1, 2)


def fla_attention(torch: Any, naive: Any, q: Any, k: Any, v: Any) -> Any:
    """With elu + 1, as PyTorch has it, and the denominator."""
    elu = torch.nn.functional.elu
    return fla_product(naive, elu(q) + 1, elu(k) + 1, v, normalize=True)


# --- A single token; all become tensors of the shapes that fit, before any clock starts -----------------------------


def steps(batch: int, heads: int, width: int, torch: Any, packages: Mapping[str, Any], rng: Generator) -> Tasks:
    """The two tasks of one token."""
    q, k, v = rng.standard_normal((3, batch, heads, width)).astype(np.float32)
    phi_q, phi_k = elu_plus_one.forward(q)[0], elu_plus_one.forward(k)[0]
    # After some tokens: from a state of 0, each output would be v, whatever the features are.
    seen = linear.summarise(*rng.standard_normal((2, batch, heads, SEEN, width)).astype(np.float32))
    start = partial(copy.deepcopy, seen)
    at_once = start()
    alone: dict[str, Call] = {"jit": lambda: (fast.step(phi_q, phi_k, v, at_once.s, at_once.z, peers.EPS),)}
    whole: dict[str, Call] = {}
    for name, backend in engine.BACKENDS.items():
        ours = partial(linear.step, q, k, v, eps=peers.EPS, kernels=backend)
        whole[name] = engine.going_on(partial(ours, overwrite_state=True), start())
    whole["jit, new state"] = engine.going_on(partial(linear.step, q, k, v, eps=peers.EPS, kernels=jit), start())
    if torch is not None:
        for name, token in (("pytorch, new state", new_state), ("pytorch, in place", in_place)):
            alone[name] = step_in_pytorch(torch, token, phi_q, phi_k, v, start(), features=False)
            whole[name] = step_in_pytorch(torch, token, q, k, v, start(), features=True)
    if (package := packages.get(peers.FAST)) is not None:
        whole["fast-transformers"] = recurrent_module(torch, package, q, k, v, start())
    if (runtime := packages.get(runtimes.ONNX)) is not None:
        whole["ONNX Runtime, bound"] = runtimes.linear_step(runtime, q, k, v, *start()[:2], eps=peers.EPS)
    yield from ((STEP_KERNEL, alone), (STEP, whole))


def step_in_pytorch(torch: Any, token: Any, q: Any, k: Any, v: Any, state: Any, *, features: bool) -> Call:
    """A ``token`` of ``q, k (B, H, C)``, ``v (B, H, M)``; elu + 1 of ``q, k`` if ``features``."""
    q, k, v, *sums = (torch.from_numpy(x).flatten(0, 1) for x in (q, k, v, *state[:2]))  # (B H, ...)
    elu = torch.nn.functional.elu

    def step(sums: Any) -> Any:
        phi_q, phi_k = (elu(q).add_(1), elu(k).add_(1)) if features else (q, k)
        return token(torch, phi_q, phi_k, v, *sums)

    return engine.going_on(step, sums)


def new_state(torch: Any, phi_q: Any, phi_k: Any, v: Any, s: Any, z: Any) -> tuple[Any, Any]:
    s = s + torch.bmm(phi_k.unsqueeze(2), v.unsqueeze(1))  # (B H, C, M)
    z = z + phi_k
    numerator = torch.bmm(phi_q.unsqueeze(1), s).squeeze(1)  # (B H, M)
    return numerator / ((phi_q * z).sum(1, keepdim=True) + peers.EPS), (s, z)


def in_place(torch: Any, phi_q: Any, phi_k: Any, v: Any, s: Any, z: Any) -> tuple[Any, Any]:
    return peers.sums_in_place(torch, phi_q, phi_k, v, s, z), (s, z)


def recurrent_module(torch: Any, package: Any, q: Any, k: Any, v: Any, state: Any) -> Call:
    """fast-transformers' module for one token, in evaluation: no gradient is asked for."""
    module = package.recurrent.attention.RecurrentLinearAttention(q.shape[-1], eps=peers.EPS).eval()
    q, k, v, *sums = (torch.from_numpy(x) for x in (q, k, v, *state[:2]))
    return engine.going_on(lambda sums: module(q, k, v, state=sums), sums)


# --- Showing --------------------------------------------------------------------------------------------------------


def best_torch(rows: Iterable[Results]) -> list[Results]:
    """The rows with only the fastest of PyTorch's forms of each pass, called ``pytorch``; of steps all."""
    kept: list[Results] = []
    forms: dict[tuple[str, int], list[Results]] = {}
    for row in rows:
        is_form = row.task not in STEP_TASKS and row.kernel.startswith("pytorch")
        (forms.setdefault((row.task, row.size), []) if is_form else kept).append(row)
    fastest = (min(each, key=lambda row: row.median_ms) for each in forms.values())
    return [*kept, *(Results({**row, "kernel": "pytorch"}) for row in fastest)]


def table(results: Results) -> str:
    """The comparison as two Markdown tables, of passes and of steps, a line per task and size; below, what they are.

    One thread, all in turn in one process; all find the memory for their results in the process, since new memory
    would cost as much again as `jit`'s forward pass. *product* is the causal product alone, from features;
    *attention* all of linear attention, with elu + 1 and the denominator. *step* is one token of the recurrent
    form, *kernel step* the same from features and without checks. `jit plain` is the paper's loop in a few lines of
    Numba, `jit float64` the fast kernel in float64. A step of `jit` works in the arrays of the state
    (`overwrite_state`); `jit, new state` leaves them alone. fast-transformers is the package of the paper's authors
    (with the `peers` extra in place, `pip install --no-build-isolation pytorch-fast-transformers`); *native* is the
    same source built with `CFLAGS="-O3 -march=native"`, and its folder renamed to `fast_transformers_native`.
    """
    rows, order = best_torch(results.rows), (*LOOKS, "jit float64")
    passes = engine.table(("task", "N"), [row for row in rows if row.task not in STEP_TASKS], order)
    tokens = engine.table(("task", "B"), [row for row in rows if row.task in STEP_TASKS], order, unit=("µs", 1e3))
    few = f" ({FEW} beyond N = {LONG})" if results.repeats > FEW and any(row.size > LONG for row in rows) else ""
    setting = f"H = {results.heads}, C = M = {results.width} (steps: {results.step_width}), B = 1, float32, one thread"
    note = (
        f"{setting}, {results.repeats} rounds{few}. {TOLD} pytorch: the fastest of its forms. multiply-adds alone: as "
        "many as jit makes and nothing else; divided by it, a peer's ratio is the most that this arithmetic allows."
    )
    compared = engine.compared(results.versions, (peers.PYTORCH, peers.FAST, peers.FLA, runtimes.ONNX))
    return engine.page(passes, tokens, note=[note, compared])


def draw(results: Results) -> Figure:
    """Causal linear attention on one thread of a CPU, float32: time per token of the causal product against length,
    forward and with the backward pass. PyTorch: at each length the fastest of its forms.
    """
    rows = best_torch(results.rows)
    lines: engine.Lines = {name: (*look, {"kernel": name}) for name, look in LOOKS.items()}
    return engine.draw(rows, {task: {"task": task} for task in (FORWARD, BOTH)}, lines)
