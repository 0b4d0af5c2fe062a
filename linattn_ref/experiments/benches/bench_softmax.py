"""The softmax kernels beside those of PyTorch, ONNX Runtime and OpenVINO, on one thread of the CPU.

Batch size 1. PyTorch's is ``scaled_dot_product_attention``; the other two have forward passes alone (`runtimes`).
``multiply-adds alone`` are those of the matrix products, two forward and seven in both passes, and nothing else: its
ratio is the kernel's share of the processor's peak. Forward at 2048 keys of width 64 it is three quarters: a pair's
maximum, exponential and sum take as long as some 40 of its 128 multiply-adds. Only a kernel without them would be 1.3
times as fast.

`engine` says how time is measured.
"""

from functools import partial

import numpy as np

from linattn_ref.attention import online_softmax, softmax
from linattn_ref.experiments.benches import engine, peers, runtimes
from linattn_ref.experiments.benches.engine import BOTH, BY_PASSES, FORWARD, PASSES, TOLD, Call
from linattn_ref.experiments.benches.limits import multiply_adds
from linattn_ref.experiments.publishing.kit import Figure, Ints, Results, style
from linattn_ref.kernels import jit, reference

__all__ = ["compute", "draw", "table"]

COLOURS = {"jit": style.BLUE, "pytorch": style.VERMILLION, runtimes.ONNX: style.GREEN}
COLOURS |= {runtimes.OPENVINO: style.PURPLE, "reference": style.GREY}
LIMIT = "multiply-adds alone"
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}  # some 1000 roundings


@engine.bench("heads", "width", "dtype", "repeats", settings={"lengths": 4})
def compute(
    *,
    lengths: Ints = (256, 512, 1024, 2048, 4096),
    heads: int = 8,
    width: int = 64,
    repeats: int = 7,
    dtype: str = "float32",
    seed: int = 0,
) -> engine.Measured:
    """Compare the softmax kernel with PyTorch, ONNX Runtime and OpenVINO on one thread, if installed.

    CPU time, the kernels in turn in one process.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``. At 4096, one round takes about 10 s, most of it the reference's.
    heads : int
        ``H``.
    width : int
        ``D = M``.
    repeats : int
        Rounds, after one that is not counted.
    dtype : {"float32", "float64"}
        Of all arrays.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1, or another dtype.
    RuntimeError
        Two kernels disagree.
    """
    if dtype not in TOLERANCE:
        raise ValueError(f"dtype: expected float32 or float64, got {dtype}")
    torch, rng = engine.find("torch"), np.random.default_rng(seed)
    found = runtimes.find_runtimes() if dtype == "float32" else {}
    for length in lengths:
        *qkv, d_out = rng.standard_normal((4, 1, heads, length, width)).astype(dtype)
        for causal in (False, True):
            for passes in PASSES:
                pages = {"jit": (softmax, jit), "reference": (online_softmax, reference)}  # neither keeps P
                calls: dict[str, Call] = {
                    name: partial(engine.run, page, qkv, d_out, passes, causal=causal, kernels=backend)
                    for name, (page, backend) in pages.items()
                }
                if torch is not None:
                    attention = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal)
                    calls["pytorch"] = partial(peers.in_torch, torch, attention, qkv, d_out, passes == BOTH)
                for name, runtime in found.items() if passes == FORWARD else ():
                    calls[name] = runtimes.softmax_attention(name, runtime, qkv, causal)
                calls[LIMIT] = partial(multiply_adds, multiply_adds_of(length, causal, passes, heads, width), dtype)
                setting = {"length": length, "causal": causal, "passes": passes}
                yield from engine.measure(setting, calls, repeats, tolerance=TOLERANCE[dtype], apart=(LIMIT,))
    return {"versions": peers.versions(torch, found)}


def multiply_adds_of(length: int, causal: bool, passes: str, heads: int, width: int) -> int:
    """Two products of ``D`` a visible pair forward, five more backward."""
    pairs = length * (length + 1) // 2 if causal else length**2
    return (2 if passes == FORWARD else 7) * width * heads * pairs


def gigaflops(row: Results, heads: int, width: int) -> float:
    """Arithmetic per second, of which a multiply-add is two."""
    return 2 * multiply_adds_of(row.length, row.causal, row.passes, heads, width) / row.median_ms / 1e6


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line per setting, and below it what stands in it.

    `multiply-adds alone` are those of the products, nothing else: its ratio is `jit`'s share of the processor's peak,
    and a peer's ratio divided by it is the most that any kernel could reach against that peer.
    """
    lines = engine.table(("N = L", "causal", "passes"), results.rows, (*COLOURS, LIMIT))
    setting = f"B = 1, H = {results.heads}, D = M = {results.width}, {results.dtype}, one thread"
    compared = engine.compared(results.versions, (peers.PYTORCH, runtimes.ONNX, runtimes.OPENVINO))
    return engine.page(lines, note=[f"{setting}, {results.repeats} rounds.", TOLD, compared])


def draw(results: Results) -> Figure:
    """Softmax attention on one thread of a CPU: arithmetic per second that the mechanism needs (the masked half of a
    causal matrix counts as nothing), forward and with the backward pass. Lines: all keys; dashed: causal.
    """

    value, label = partial(gigaflops, heads=results.heads, width=results.width), "Gflop/s, one thread"
    return engine.draw(results, BY_PASSES, engine.causal_lines(COLOURS), label, value=value, log=False)
