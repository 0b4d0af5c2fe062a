"""The encoder of the authors' slides: 12 layers, 12 heads of 64, 10 sequences of 4000 tokens, linear and softmax.

A forward pass without gradients, float32, one thread, beside PyTorch and the authors' fast-transformers, whose builder
the slides call. All have the same weights, and before anything is timed their outputs are compared.

All layers read one sequence here. Sequences know nothing of each other: ten of them, one after the other, take ten
times as long and no more memory. Ten at once would take ten times the memory too, for whatever is computed has one row
per token; only the weights are there once.

Memory is the most in use beyond weights and inputs, in a process of its own that hands freed memory back.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs: fast autoregressive transformers with linear attention"; the
authors' slides at ICML, the last one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import linear, softmax
from linattn_ref.experiments.benches import engine, peers
from linattn_ref.experiments.measuring.memory import HAND_BACK, KEEP, in_new_process, peak_resident
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing.kit import Array, Figure, Results, markdown, style
from linattn_ref.kernels import jit
from linattn_ref.nn import block, mechanism, post_norm, relu

__all__ = ["SEQUENCES", "compute", "draw", "table"]

SEQUENCES = 10
COLOURS = {"jit": style.BLUE, "pytorch": style.VERMILLION, "fast-transformers": style.GREEN}


class Sizes(NamedTuple):
    """Of the network."""

    layers: int = 12
    length: int = 4000
    heads: int = 12
    width: int = 768  # E
    hidden: int = 3072


def compute(*, layers: int = 12, length: int = 4000, repeats: int = 3, seed: int = 0) -> Results:
    """Compare an encoder with PyTorch and fast-transformers on one thread, if installed.

    12 heads, width 768, one sequence, linear and softmax, forward; the most memory in use. CPU time, in turn.

    Parameters
    ----------
    layers : int
        Of the encoder.
    length : int
        Tokens.
    repeats : int
        Rounds of timing, after one that is not counted.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1.
    RuntimeError
        Two outputs differ.
    ChildProcessError
        A measuring process failed.
    """
    engine.check_counts(layers=layers, length=length, repeats=repeats)
    sizes = Sizes(layers, length)
    rows: list[Results] = []
    memory: list[Results] = []
    for attention in ("linear", "softmax"):
        mine = in_new_process(times, attention, sizes, repeats, seed, malloc=KEEP)
        rows += mine
        for row in mine:
            peak = in_new_process(peak_of, attention, row.kernel, sizes, seed, malloc=HAND_BACK)
            memory.append(Results(attention=attention, kernel=row.kernel, megabytes=peak / 1e6))
    versions = peers.versions(engine.find("torch"), peers.fast_transformers("builders"))
    return Results(sizes=sizes, repeats=repeats, versions=versions, rows=tuple(rows), memory=tuple(memory))


def own_layers(attention: str, params: tuple[block.Params, ...], x: Array, heads: int) -> engine.Call:
    """Layer by layer; what a layer saves is gone before the next one begins."""
    inside = mechanism.of({"linear": linear, "softmax": softmax}[attention], kernels=jit)
    rows = np.empty_like(x)

    def call() -> Sequence[Array]:
        rows[...] = x
        for one in params:
            y, _ = post_norm.forward(rows, one, inside, heads=heads, activation=relu, kernels=jit)
            rows[...] = y
            del y, _  # so that the next layer has their memory
        return (rows,)

    return call


def others(torch: Any, attention: str, params: tuple[block.Params, ...], heads: int) -> dict[str, Callable[[Any], Any]]:
    """The layers of other packages by name; PyTorch has no linear attention."""
    found: dict[str, Callable[[Any], Any]] = {}
    if torch is not None and attention == "softmax":  # norms last
        blocks, functions = [peers.leaves_of(one, torch.from_numpy) for one in params], torch.nn.functional
        how = heads, functions.scaled_dot_product_attention, functions.relu
        found["pytorch"] = lambda x: peers.layers(torch, blocks, x, *how, norm_first=False)
    if builders := engine.find("fast_transformers.builders"):
        kind, given = {"linear": "linear", "softmax": "full"}[attention], SimpleNamespace(blocks=params)
        found[peers.FAST] = peers.encoder(torch, builders.TransformerEncoderBuilder, given, heads, kind)
    return found


def layers_of(attention: str, sizes: Sizes, seed: int) -> dict[str, engine.Call]:
    """By name: all layers on one sequence, the same numbers for all."""
    rng = np.random.default_rng(seed)
    params = tuple(block.draw(sizes.width, sizes.hidden, rng, dtype=np.float32) for _ in range(sizes.layers))
    x = rng.random((1, sizes.length, sizes.width), np.float32)
    torch, calls = engine.find("torch"), {"jit": own_layers(attention, params, x, sizes.heads)}
    for name, network in others(torch, attention, params, sizes.heads).items():
        calls[name] = partial(peers.in_torch, torch, network, [x], x, False)
    return calls


# --- In a process of its own ----------------------------------------------------------------------------------------


def times(attention: str, sizes: Sizes, repeats: int, seed: int) -> list[Results]:
    """The rows of one attention, after the outputs have been compared."""
    with one_thread(engine.find("torch")):
        calls = layers_of(attention, sizes, seed)
        return engine.measure({"attention": attention}, calls, repeats, tolerance=1e-4, outputs=("rows",))


def peak_of(attention: str, kernel: str, sizes: Sizes, seed: int) -> int:
    """Bytes."""
    with one_thread(engine.find("torch")):
        layers_of(attention, sizes._replace(layers=1, length=64), seed)[kernel]()
        return peak_resident(layers_of(attention, sizes, seed)[kernel])


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """One row per kernel, and a note."""
    sizes = results.sizes
    timed = f"{sizes.layers} layers on one sequence, s"
    header = "attention", "who", timed, "times jit's", f"on {SEQUENCES}, s", "peak, MB"
    rows = []
    for row, memory in zip(results.rows, results.memory, strict=True):
        seconds, ratio = row.median_ms / 1e3, f"{row.ratio_median:.2f} ({row.ratio_min:.2f})"
        numbers = f"{seconds:.1f}", ratio, f"{SEQUENCES * seconds:.0f}", f"{memory.megabytes:.0f}"
        rows.append((row.attention, row.kernel, *numbers))
    note = (
        f"Sequences of {sizes.length} tokens; {sizes.heads} heads, width {sizes.width}, feed-forward layers of "
        f"{sizes.hidden}, forward, float32, one thread. CPU time, median of {results.repeats} rounds; times jit's: "
        f"median (least); {SEQUENCES} sequences: {SEQUENCES} times one. The peak is that of one sequence."
    )
    compared = engine.compared(results.versions, [peers.PYTORCH, peers.FAST])
    return engine.page(markdown.table(header, rows, "llr"), note=[note, compared])


def draw(results: Results) -> Figure:
    """A forward pass of all layers on one sequence: 12 heads of 64, feed-forward layers of 3072, float32, one
    thread. Left: CPU time. Right: the most memory in use beyond weights and inputs. fast-transformers' full
    attention keeps its matrix; PyTorch's kernel and this package's keep none. PyTorch has no linear attention.
    """
    figure, axes = style.figure(1, 2, height=0.4, sharey=True)
    names = [f"{row.attention},\n{row.kernel}" for row in results.rows]
    colours = [COLOURS[row.kernel] for row in results.rows]
    seconds = [row.median_ms / 1e3 for row in results.rows], "%.1f", f"CPU seconds of {results.sizes.layers} layers"
    megabytes = [one.megabytes for one in results.memory], "%.0f", "peak, MB"
    for axis, (values, form, label) in zip(axes, (seconds, megabytes), strict=True):
        axis.bar_label(axis.barh(names, values, color=colours), fmt=form, padding=2)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
    axes[0].invert_yaxis()
    return figure
