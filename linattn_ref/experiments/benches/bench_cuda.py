"""Attention on a GPU: time and memory against length, the kernels here beside PyTorch's and two packages'.

========================  ============================================================================================
kernel                    what runs, causal, forward and with the backward pass
========================  ============================================================================================
linear                    ``linear.forward(..., kernels=cuda)``: elu + 1, product, denominator
softmax                   ``softmax.forward(..., kernels=cuda)``
SDPA                      PyTorch's ``scaled_dot_product_attention`` in the same precision
flash-linear-attention    its Triton kernel for linear attention, in chunks, with elu + 1 by PyTorch
fast-transformers         Algorithm 1 in CUDA by the paper's authors; the product without the denominator
========================  ============================================================================================

flash-linear-attention is given arrays that lie in its own order, ``(B, N, H, D)``.

With "bfloat16" after it, a name is a kernel for inputs of that format, on tensor cores. For the kernels here these are
the loops by themselves, ``softmax`` and ``causal_product.normalised_forward`` with elu + 1 by PyTorch, as for
flash-linear-attention. The public functions never reach them: ``kernels=cuda`` computes 16-bit arrays in float32.

Packages that cannot be imported are left out and named. Arrays are PyTorch's, made on the GPU; time is between CUDA
events on PyTorch's current stream, the median of some rounds after one that is not counted, fewer where they take more
than ``patience`` together; memory is the most that PyTorch held during a call beyond its inputs. A kernel of which one
round took more than that, or which ran out of memory, is not tried further.

The limit is what the GPU does in the time that linear attention has to take at least: its inputs and outputs moved at
the speed of a copy, and ``2 C M`` (forward) or ``7 C M`` multiply-adds per row at that of a matrix product in the same
precision; the larger of the two. The speeds are measured in the same run.
"""

import importlib
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from linattn_ref.attention import linear, softmax
from linattn_ref.experiments.benches import engine, peers
from linattn_ref.experiments.benches.engine import BOTH, FORWARD, PASSES
from linattn_ref.experiments.benches.peers import Inputs
from linattn_ref.experiments.measuring.measurements import measure_all
from linattn_ref.experiments.measuring.points import check_lengths
from linattn_ref.experiments.publishing.kit import Figure, Ints, Results, markdown, style
from linattn_ref.op import Array

__all__ = ["compute", "draw", "table"]

FLA = "flash-linear-attention"
LENGTHS = (2**10, 2**12, 2**14, 2**16, 2**18, 2**20)
TOLERANCE = {"float32": 1e-2, "bfloat16": 1e-1}  # of the largest number: others may round to tensor cores' precision
MARKS = {"linear": (style.BLUE, "o"), "softmax": (style.VERMILLION, "s"), "SDPA": (style.GREY, "^")}
MARKS |= {FLA: (style.SKY, "D"), peers.FAST: (style.BLACK, "x")}
LIMITS = {"limit of linear": (style.BLACK, ":"), "limit of linear bfloat16": (style.BLACK, "-.")}
LOOKS = {
    f"{name}{suffix}": (*look, marker + line)
    for suffix, line in (("", "-"), (" bfloat16", "--"))
    for name, (*look, marker) in MARKS.items()
}


def compute(
    *,
    lengths: Ints = LENGTHS,
    batch: int = 1,
    heads: int = 8,
    width: int = 64,
    repeats: int = 10,
    patience: float = 1.0,
    seed: int = 0,
    **where: Any,
) -> Results:
    """Compare the GPU kernels with PyTorch, flash-linear-attention and fast-transformers, if installed.

    Needs an NVIDIA GPU, PyTorch and the cuda12 or cuda13 extra. Time by CUDA events, and memory.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``, ascending.
    batch : int
        ``B``.
    heads : int
        ``H``.
    width : int
        ``C = D = M``.
    repeats : int
        Rounds, after one that is not counted.
    patience : float
        Seconds; no further round begins after that, and a kernel of which one took longer is not tried further.
    seed : int
        Of all that is drawn.
    **where
        As in `measure_all`: a part is a kernel at all lengths.

    Raises
    ------
    RuntimeError
        There is no GPU, or two kernels disagree.
    ImportError
        PyTorch or numba-cuda is missing.
    """
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("bench cuda: no NVIDIA GPU was found by PyTorch; the numbers can only be measured on one")
    torch.backends.cuda.matmul.allow_tf32 = False
    check_lengths(lengths, repeats)
    calls, versions = kernels(torch)

    def inputs(name: str, length: int) -> Inputs:
        torch.manual_seed(seed)
        drawn = torch.randn((4, batch, heads, length, width), device="cuda")
        if FLA in name:
            drawn = drawn.transpose(2, 3).contiguous().transpose(2, 3)  # the same numbers, in memory (B, N, H, D)
        return Inputs(*(drawn.bfloat16() if "bfloat16" in name else drawn))

    def over_lengths(name: str) -> Array:
        """Median and least milliseconds, rounds and MiB, ``(lengths, 2, 4)``, forward and both; no rounds: not tried.

        A kernel's results are those of ours in float32, but for fast-transformers', which has no denominator.
        """
        other = "softmax" if "softmax" in name or "SDPA" in name else "linear"
        if name not in (other, peers.FAST):
            results = {each: calls[each](inputs(each, lengths[0]), True) for each in (name, other)}
            engine.compare("causal", results, TOLERANCE["bfloat16" if "bfloat16" in name else "float32"], to=other)
        found = np.zeros((len(lengths), 2, 4))
        for i, length in enumerate(lengths):
            given = inputs(name, length)
            for j in range(2):
                found[i, j] = measure(torch, partial(calls[name], given, j == 1), repeats, patience)
                if not found[i, j, 0] <= 1e3 * patience:
                    return found
        return found

    sizes = {"batch": batch, "heads": heads, "width": width, "repeats": repeats}  # width: D = C = M
    device = torch.cuda.get_device_name()
    settings = {**sizes, "lengths": lengths, "patience": patience, "seed": seed, "device": device, "packages": versions}
    tasks: dict[str, Callable[[], Array]] = {"speeds": partial(speeds, torch, repeats)}
    tasks |= {name.replace(" ", "-"): partial(over_lengths, name) for name in calls}
    found = measure_all(tasks, settings, **where)
    rows = [
        Results(task=task, length=length, kernel=name, median_ms=median, min_ms=least, rounds=int(rounds), mib=mib)
        for i, length in enumerate(lengths)
        for name in calls
        for j, task in enumerate(PASSES)
        for median, least, rounds, mib in [found[name.replace(" ", "-")][i, j]]
        if rounds
    ]
    copy, matrix, bfloat16 = found["speeds"]
    return Results(
        device=device,
        **sizes,
        copy_gb_s=copy,  # read and written
        matrix_tflops=matrix,  # no tensor cores
        bfloat16_tflops=bfloat16,  # on tensor cores
        versions=versions,
        rows=tuple(rows),
    )


# --- What is compared ------------------------------------------------------------------------------------------------


Call = Callable[[Inputs, bool], Sequence[Any]]  # inputs, whether to go back -> out; d_q, d_k, d_v


def kernels(torch: Any) -> tuple[dict[str, Call], dict[str, str]]:
    """Each as a function of inputs and whether to go back, giving output and gradients; and versions of packages."""
    cuda = importlib.import_module("linattn_ref.kernels.cuda")
    calls: dict[str, Call] = {
        "linear": partial(ours, linear, cuda),
        "softmax": partial(ours, softmax, cuda),
        "linear bfloat16": partial(our_linear_kernel, torch, cuda.causal_product),
        "softmax bfloat16": partial(our_softmax_kernel, cuda.loops.softmax.softmax),
    }

    def sdpa(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    calls["SDPA"] = calls["SDPA bfloat16"] = partial(theirs, torch, sdpa)
    versions = {"PyTorch": torch.__version__, "numba-cuda": peers.version("numba-cuda")}
    if ops := engine.find("fla.ops.linear_attn"):
        calls[FLA] = partial(theirs, torch, partial(fla, torch, ops.chunk_linear_attn))
        calls[f"{FLA} bfloat16"] = calls[FLA]
        versions[FLA] = peers.version("fla-core")
    if engine.find("fast_transformers.causal_product.causal_product_cuda"):
        product = engine.find("fast_transformers.causal_product").causal_dot_product
        calls[peers.FAST] = partial(theirs, torch, partial(fast_transformers, torch, product))
        versions[peers.FAST] = peers.version("pytorch-fast-transformers")
    return calls, versions


def ours(mechanism: Any, cuda: Any, inputs: Inputs, both: bool) -> Sequence[Any]:
    return engine.run(mechanism, inputs[:3], inputs.d_out, PASSES[both], causal=True, kernels=cuda)


def our_softmax_kernel(softmax: Any, inputs: Inputs, both: bool) -> Sequence[Any]:
    q, k, v, d_out = inputs
    options = None, True, q.shape[-1] ** -0.5
    out, *rows = softmax.forward(q, k, v, *options)
    return (out, *softmax.backward(d_out, q, k, v, out, *rows, *options)) if both else (out,)


def our_linear_kernel(torch: Any, product: Any, inputs: Inputs, both: bool) -> Sequence[Any]:
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in inputs[:2])
    arrays = phi_q, phi_k, inputs.v, None, None
    out, denominator, *_ = product.normalised_forward(*arrays, 1e-6)
    if not both:
        return (out,)
    d_phi_q, d_phi_k, d_v, *_ = product.normalised_backward(inputs.d_out, None, None, *arrays, out, denominator)
    return out, d_phi_q * phi_q.clip(max=1), d_phi_k * phi_k.clip(max=1), d_v  # slope 1, or exp(x) where below 0


def theirs(torch: Any, function: Callable[..., Any], inputs: Inputs, both: bool) -> Sequence[Any]:
    if not both:
        with torch.no_grad():
            return (function(*inputs[:3]),)
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    out = function(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, inputs.d_out)


def fla(torch: Any, chunk: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    out, _ = chunk(*(x.transpose(1, 2) for x in (phi_q, phi_k, v)), scale=1.0, normalize=True)  # (B, N, H, D)
    return out.transpose(1, 2)


def fast_transformers(torch: Any, product: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    return product(phi_q, phi_k, v.contiguous())


# --- Measuring -----------------------------------------------------------------------------------------------------


def measure(torch: Any, call: Any, repeats: int, patience: float = math.inf) -> tuple[float, float, int, float]:
    """Median and least milliseconds, rounds, and MiB beyond the inputs; no rounds, and NaN, if memory is too small."""
    times: list[float] = []
    try:
        call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        while len(times) < repeats and sum(times) <= 1e3 * patience:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return math.nan, math.nan, 0, math.nan
    mib = (torch.cuda.max_memory_allocated() - before) / 2**20
    return statistics.median(times), min(times), len(times), mib


def speeds(torch: Any, repeats: int) -> Array:
    """GB/s read and written by a copy of 1 GiB; TFLOP/s of a matrix product in float32 and bfloat16."""
    x = torch.empty(2**28, dtype=torch.float32, device="cuda")
    y, n = torch.empty_like(x), 4096
    calls = [partial(y.copy_, x)]
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn((n, n), device="cuda").to(dtype)
        calls.append(partial(torch.matmul, a, a))
    least = [measure(torch, call, repeats)[1] / 1e3 for call in calls]
    return np.array([8 * x.numel() / 1e9, 2 * n**3 / 1e12, 2 * n**3 / 1e12]) / least


def limit_ms(results: Results, task: str, length: int, limit: str = "limit of linear") -> float:
    """What linear attention takes at least: memory or arithmetic, whichever is slower."""
    size, tflops = (2, results.bfloat16_tflops) if "bfloat16" in limit else (4, results.matrix_tflops)
    rows = results.batch * results.heads * length
    arrays, products = (4, 2) if task == FORWARD else (12, 7)  # q, k, v, out; then these, d_out and three gradients
    moved_ms = rows * arrays * results.width * size / results.copy_gb_s / 1e6
    return max(moved_ms, rows * products * results.width**2 * 2 / tflops / 1e9)


# --- Showing -------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """Milliseconds as a Markdown table, one line per task and length; below it, what was compared.

    Milliseconds, arrays on the GPU before and after. A cell is empty where a call at a shorter length, or the forward
    pass alone at this one, had taken more than a second. The limit is what the GPU needs at least to move the inputs
    and outputs of linear attention and to do its products.
    """
    names = [name for name in LOOKS if any(row.kernel == name for row in results.rows)]
    found = {(row.task, row.length, row.kernel): f"{row.median_ms:.3g}" for row in results.rows}
    lines = []
    for task, length in itertools.product(PASSES, sorted({row.length for row in results.rows})):
        limits = [f"{limit_ms(results, task, length, limit):.3g}" for limit in LIMITS]
        lines.append((task, length, *(found.get((task, length, name), "") for name in names), *limits))
    note = [
        f"{results.device}, B = {results.batch}, H = {results.heads}, D = M = {results.width}, float32 unless named, "
        f"causal; median of at most {results.repeats} calls in about a second. Limit: a copy moves "
        f"{results.copy_gb_s:.0f} GB/s, a matrix product does {results.matrix_tflops:.1f} TFLOP/s in float32, "
        f"{results.bfloat16_tflops:.1f} in bfloat16. " + engine.compared(results.versions, (FLA, peers.FAST)),
    ]
    return engine.page(markdown.table(("task", "N", *names, *LIMITS), lines), note=note)


def draw(results: Results) -> Figure:
    """Causal attention on a GPU: time, forward and with the backward pass, and memory beyond the inputs, against
    length.
    """
    figure, axes = style.figure(1, 3, height=0.5)
    lengths = sorted({row.length for row in results.rows})
    panels = ((FORWARD, "median_ms", "ms"), (BOTH, "median_ms", "ms"), (BOTH, "mib", "MiB beyond the inputs"))
    for axis, (task, field, label) in zip(axes, panels, strict=True):
        for kernel, (colour, look) in LOOKS.items():
            points = [(r.length, getattr(r, field)) for r in results.rows if (r.task, r.kernel) == (task, kernel)]
            if points:
                axis.plot(*zip(*points, strict=True), look, color=colour, label=kernel)
        if field == "median_ms":
            for limit, (colour, look) in LIMITS.items():
                times = [limit_ms(results, task, length, limit) for length in lengths]
                axis.plot(lengths, times, look, color=colour, label=limit)
        axis.set(title=task, xlabel="N = L", ylabel=label, xscale="log", yscale="log")
        axis.set_xscale("log", base=2)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, handlelength=3.5)
    return figure
