"""What a second thread gains: causal and full attention on one thread and on two, float32, batch size 1.

Heads are shared out among the threads. Beside each stands what two threads gain that share nothing but the memory, each
with matrix products of its own, measured in the same rounds: about the most that it gives. On the wall, and the
least time of all rounds: what other processes take in between says nothing of threads.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numba
import numpy as np

from linattn_ref.attention import delta, gated_linear, linear, softmax
from linattn_ref.experiments.benches import engine
from linattn_ref.experiments.measuring.timing import second_thread
from linattn_ref.experiments.publishing.kit import Figure, Generator, Ints, Results, markdown, style
from linattn_ref.kernels import jit
from linattn_ref.op.workspace import workspace

__all__ = ["compute", "draw", "table"]

RULES = {"gated": "head", "delta": None, "gated delta": "head", "gate per channel": "channel"}  # and what has a gate
PRODUCT = 1024  # rows and columns of the products beside


def compute(
    *, length: int = 4096, keys: int = 2048, widths: Ints = (64, 128), heads: int = 8, repeats: int = 21, seed: int = 0
) -> Results:
    """Time attention on one thread and on two, beside products that share nothing.

    Parameters
    ----------
    length : int
        ``N`` of linear attention and of the rules with a state.
    keys : int
        ``N = L`` of softmax attention.
    widths : sequence of int
        ``D = M``.
    heads : int
        ``H``.
    repeats : int
        Rounds, after one that is not counted.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1, or Numba may start one thread only.
    """
    if numba.config.NUMBA_NUM_THREADS < 2:
        raise ValueError("NUMBA_NUM_THREADS: expected at least 2, got 1")
    engine.check_counts(length=length, keys=keys, widths=widths, heads=heads, repeats=repeats)
    rng, rows = np.random.default_rng(seed), []
    square = rng.standard_normal((2, PRODUCT, PRODUCT)).astype(np.float32)
    alone = [partial(np.matmul, x, x, out=np.empty_like(x)) for x in square]
    with workspace():
        for width in widths:
            for task, pages in _tasks(rng, length, keys, width, heads):
                for passes in engine.PASSES:
                    found = second_thread(partial(pages, passes), alone, repeats)
                    rows.append(Results(task=task, width=width, passes=passes, **found))
    return Results(length=length, keys=keys, heads=heads, repeats=repeats, rows=tuple(rows))


def _tasks(rng: Generator, length: int, keys: int, width: int, heads: int) -> Iterator[tuple[str, Any]]:
    """By name, a function of the passes."""

    def of(page: Any, n: int, **options: Any) -> Callable[[str], object]:
        *qkv, d_out = rng.standard_normal((4, 1, heads, n, width)).astype(np.float32)
        return lambda passes: engine.run(page, qkv, d_out, passes, kernels=jit, **options)

    yield "linear", of(linear, length, causal=True)
    for task, gate in RULES.items():
        options: dict[str, Any] = {} if task == "gated" else {"beta": rng.random((1, heads, length), np.float32)}
        if gate:
            shape = (1, heads, length) if gate == "head" else (1, heads, length, width)
            options["log_gate"] = -rng.exponential(0.1, shape).astype(np.float32)
        yield task, of(gated_linear if task == "gated" else delta, length, **options)
    yield "softmax", of(softmax, keys)
    yield "softmax, causal", of(softmax, keys, causal=True)


def table(results: Results) -> str:
    """Both times as a Markdown table, what the second thread gains, and what it could.

    `gain` is the time on one thread over that on two; `products` is what two threads gain that share nothing.
    """
    lines = markdown.table(
        ("attention", "D = M", "passes", "one thread", "two", "gain", "products"),
        [
            (x.task, x.width, x.passes, f"{x.one_ms:.1f} ms", f"{x.two_ms:.1f} ms", f"{x.ratio:.2f}", f"{x.limit:.2f}")
            for x in results.rows
        ],
        "lrlrrrr",
    )
    sizes = f"N = {results.length} (softmax {results['keys']}), B = 1, H = {results.heads}, float32"
    return engine.page(lines, note=[f"{sizes}, {results.repeats} rounds, the least."])


def draw(results: Results) -> Figure:
    """What a second thread gains: time on one thread over that on two, float32. Black: what two threads gain that
    share nothing, each with matrix products of its own.
    """
    figure, axes = style.figure(1, len(engine.PASSES), height=0.6, sharey=True)
    for axis, passes in zip(axes, engine.PASSES, strict=True):
        rows = engine.rows_of(results, passes=passes)[::-1]
        names = [f"{row.task}, {row.width}" for row in rows]
        axis.barh(names, [row.ratio for row in rows], color=style.BLUE)
        axis.plot([row.limit for row in rows], names, "|", color=style.BLACK, markersize=9)
        axis.set(title=passes, xlabel="one thread's time over two's", xlim=(0, 2.2))
        axis.axvline(1, color=style.GREY, linewidth=0.8)
    return figure
