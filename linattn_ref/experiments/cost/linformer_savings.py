"""What Linformer saves over softmax attention, by length and ``k``: Table 3 of its paper, for attention alone.

The forward pass, as in the paper (there of a whole network on a GPU, with memory counted as the number of examples that
fit). Both sides are run in the same form, because the answer depends on it:

``matrix kept``
    ``P (N, N)`` against ``P~ (N, R)``, both by NumPy as the formulas print them. This is what the paper compares.
``online``
    No matrix on either side, both by the Numba kernel.
``whole layer``
    A block of an encoder around them, with its projections, norms and feed-forward layer, which cost the same on both
    sides; attention by the Numba kernel. `layer_savings` measures it.

Time is CPU time on one thread; a ratio is taken within a round, and the median of the rounds is given; of a whole
layer, the least times. Memory is the most in use at once beyond the inputs, measured in a process of its own
(`memory`); ``E`` and ``F`` are inputs.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", Table 3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import linformer, softmax
from linattn_ref.experiments.cost.resource_methods import Setting
from linattn_ref.experiments.measuring.measurements import measure_all
from linattn_ref.experiments.measuring.memory import HAND_BACK, KEEP, in_new_process, peak_resident
from linattn_ref.experiments.measuring.timing import in_turn, one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit
from linattn_ref.nn import block, mechanism, pre_norm
from linattn_ref.op import Array

__all__ = ["FORMS", "LAYER", "Results", "compute", "draw", "table"]

LENGTHS = (512, 1024, 2048, 4096, 8192)
REDUCED = (128, 256, 512, 1024, 2048)
FORMS = ("matrix kept", "online")
LAYER = "whole layer"
WARM_UP = 128  # tokens


class Savings(NamedTuple):
    """Softmax attention's cost over Linformer's, NaN where ``k`` is more than half of ``n``."""

    time: Array  # (n, k)
    memory: Array  # (n, k)
    softmax_seconds: Array  # (n,), median
    softmax_peak: Array  # (n,), bytes


class Results(NamedTuple):
    setting: Setting
    dtype: str
    lengths: tuple[int, ...]  # the paper's n
    reduced: tuple[int, ...]  # the paper's k
    rounds: int
    forms: dict[str, Savings]  # FORMS, or LAYER


def compute(
    *,
    lengths: Sequence[int] = LENGTHS,
    reduced: Sequence[int] = REDUCED,
    rounds: int = 5,
    seed: int = 0,
    setting: Setting = Setting(),  # noqa: B008  # a tuple
    forms: Sequence[str] = FORMS,
    quick: bool = False,
    parts: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Results:
    """Measure both forms at every length and every ``k`` up to half of it; some 2 minutes.

    Parameters
    ----------
    lengths, reduced : sequence of int
        The paper's ``n`` and ``k``. With its matrix, softmax attention takes ``H n^2`` numbers.
    rounds : int
        Of timing, after one that is not counted.
    seed : int
        Of the inputs.
    setting : Setting
        Heads and width.
    forms : sequence of str
    quick : bool
        One length: for tests.
    parts, resume, progress
        As in `measure_all`.

    Raises
    ------
    ValueError
        A count below 1, or ``resume`` with other settings than those of ``parts``.
    ChildProcessError
        A measuring process failed, such as for lack of memory.
    """
    if quick:
        lengths, reduced, rounds = (512,), (128,), 1
    for name, count in (*(("lengths", n) for n in lengths), *(("reduced", r) for r in reduced), ("rounds", rounds)):
        if count < 1:
            raise ValueError(f"{name}: expected at least 1, got {count}")
    settings = {"lengths": lengths, "reduced": reduced, "rounds": rounds, "seed": seed, **setting._asdict()}
    settings["forms"] = list(forms)
    tasks: dict[str, Callable[[], Array]] = {}
    for form in forms:
        for n in lengths:
            tasks[f"time-{form}-{n}"] = partial(
                in_new_process, measure_time, form, n, _columns(n, reduced), rounds, setting, seed, malloc=KEEP
            )
        for n in lengths:
            for r in _columns(n, reduced):
                tasks[f"memory-{form}-{n}-{r}"] = partial(
                    in_new_process, measure_memory, form, n, r, setting, seed, malloc=HAND_BACK
                )
    found = measure_all(tasks, settings, parts=parts, resume=resume, progress=progress)
    savings = {form: _savings(form, found, lengths, reduced) for form in forms}
    return Results(setting, "float32", tuple(lengths), tuple(reduced), rounds, savings)


def _columns(n: int, reduced: Sequence[int]) -> list[int]:
    """What is run at length ``n``: softmax attention, as 0, and Linformer with each ``R`` up to half of it."""
    return [0, *(r for r in reduced if 2 * r <= n)]


def attend(form: str, inputs: tuple[Array, ...]) -> Array:
    """The output of softmax attention, given ``q, k, v``, or of Linformer, given ``q, k, v, e, f``."""
    if form == "online":
        out, _ = (softmax if len(inputs) == 3 else linformer).forward(*inputs, kernels=jit)
        return out
    q, k, v, *projections = inputs
    if projections:
        e, f = projections
        k, v = e @ k, f @ v  # (H, R, D), (H, R, M)
    return softmax.forward(q, k, v)[0]


def prepared(form: str, n: int, r: int, setting: Setting, seed: int) -> Callable[[], Array]:
    """What is measured: attention, or a whole layer, of ``n`` tokens; softmax's where ``r`` is 0."""
    if form != LAYER:
        return partial(attend, form, draw_inputs(n, r, setting, seed))
    rng, width = np.random.default_rng(seed), setting.heads * setting.width
    own = tuple(rng.standard_normal((2, r, n), np.float32) / np.float32(r**0.5)) if r else ()
    params = block.draw(width, 4 * width, rng, own=own, dtype=np.float32)
    x = rng.standard_normal((1, n, width), np.float32)
    inside = mechanism.of(linformer if r else softmax, kernels=jit)

    def call() -> Array:
        y, _ = pre_norm.forward(x, params, inside, heads=setting.heads, kernels=jit)
        return y

    return call


def draw_inputs(n: int, r: int, setting: Setting, seed: int) -> tuple[Array, ...]:
    """``q, k, v (H, N, W)``, and ``e, f (R, N)`` unless ``r`` is 0."""
    rng = np.random.default_rng(seed)
    qkv = rng.standard_normal((3, setting.heads, n, setting.width), np.float32)
    return (*qkv, *(rng.standard_normal((2, r, n), np.float32) / np.float32(r**0.5) if r else ()))


def measure_time(form: str, n: int, columns: Sequence[int], rounds: int, setting: Setting, seed: int) -> Array:
    """CPU seconds ``(columns, rounds)`` of one thread; to be called by `memory.in_new_process` with KEEP."""
    calls = {str(r): prepared(form, n, r, setting, seed) for r in columns}
    with one_thread():
        return np.array(list(in_turn(calls, rounds).values()))


def measure_memory(form: str, n: int, r: int, setting: Setting, seed: int) -> Array:
    """Bytes in use at the peak, ``()``; to be called by `memory.in_new_process` with HAND_BACK."""
    with one_thread():
        prepared(form, WARM_UP, r and min(r, WARM_UP), setting, seed)()
        return np.array(peak_resident(prepared(form, n, r, setting, seed)))


def _savings(form: str, found: dict[str, Array], lengths: Sequence[int], reduced: Sequence[int]) -> Savings:
    time, memory = np.full((2, len(lengths), len(reduced)), np.nan)
    for i, n in enumerate(lengths):
        seconds, peak = found[f"time-{form}-{n}"], found[f"memory-{form}-{n}-0"]
        for row, r in enumerate(_columns(n, reduced)[1:], start=1):
            time[i, reduced.index(r)] = _ratio(form, seconds[0], seconds[row])
            memory[i, reduced.index(r)] = peak / found[f"memory-{form}-{n}-{r}"]
    typical = np.min if form == LAYER else np.median
    softmax_seconds = [typical(found[f"time-{form}-{n}"][0]) for n in lengths]
    softmax_peak = [found[f"memory-{form}-{n}-0"] for n in lengths]
    return Savings(time, memory, np.array(softmax_seconds), np.array(softmax_peak))


def _ratio(form: str, softmax_seconds: Array, seconds: Array) -> Any:
    """Of the least of the rounds for a layer, which has few; else the median of the rounds' ratios."""
    return softmax_seconds.min() / seconds.min() if form == LAYER else np.median(softmax_seconds / seconds)


# --- The figure and the table ---------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """What Linformer saves over softmax attention: forward pass, 8 heads of width 64, float32, one sequence, one
    thread. Above, both keep their matrix, as in Table 3 of the paper. Below, neither does, and one kernel does
    both: time is saved all the same, but there is no memory left to save. A number below 1 is a loss. Memory is
    measured, beyond the inputs. No entry: k is more than half of n.
    """
    rows = len(results.forms)
    figure, axes = style.figure(rows, 2, height=0.31 * rows, sharex=True, sharey=True, squeeze=False)
    for axis, (form, title, saved) in zip(axes.flat, _panels(results), strict=True):
        _heat_map(axis, results, saved)
        axis.set_title(f"{title} saved, {form}")
    for axis in axes[-1]:
        axis.set_xlabel("k")
    for axis in axes[:, 0]:
        axis.set_ylabel("n")
    return figure


def _panels(results: Results) -> Iterator[tuple[str, str, Array]]:
    for form, savings in results.forms.items():
        yield form, "time", savings.time
        yield form, "memory", savings.memory


def _heat_map(axis: Any, results: Results, saved: Array) -> None:
    """The ratios, the colour their logarithm: the same for all panels, 1 in the middle."""
    image = axis.imshow(np.log2(saved), cmap="PuOr", vmin=-5, vmax=5, aspect="auto")
    axis.set_xticks(range(len(results.reduced)), [str(r) for r in results.reduced])
    axis.set_yticks(range(len(results.lengths)), [str(n) for n in results.lengths])
    axis.grid(False)
    for (i, j), ratio in np.ndenumerate(saved):
        if np.isfinite(ratio):
            colour = style.text_colour(image.to_rgba(np.log2(ratio))[:3])
            axis.text(j, i, _times(ratio), ha="center", va="center", color=colour)


def _times(ratio: np.floating[Any]) -> str:
    """Two digits that count."""
    return f"{ratio:.2f}x" if ratio < 0.995 else f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def table(results: Results) -> str:
    """The tables as Markdown."""
    lines = []
    for form, title, saved in _panels(results):
        lines += [
            f"\n{title.capitalize()} saved, {form}:\n",
            f"| n | {' | '.join(f'k = {r}' for r in results.reduced)} |",
        ]
        lines.append("|" + " ---: |" * (1 + len(results.reduced)))
        for n, ratios in zip(results.lengths, saved, strict=True):
            lines.append(f"| {n} | {' | '.join(_times(x) if np.isfinite(x) else '' for x in ratios)} |")
    return "\n".join(lines).lstrip()
