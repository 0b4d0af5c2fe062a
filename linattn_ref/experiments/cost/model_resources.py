"""The resource figure of a whole network: time and memory of a step of training against the length.

`resources` measures attention alone. Here it stands in a transformer of `LAYERS` blocks, beside feed-forward layers,
norms and an embedding, which cost the same per token whatever the attention: a step is forward, cross-entropy, backward
and RAdam, of one sequence. CPU time on one thread, the mechanisms in turn in one process that keeps freed memory; the
most memory in use at once beyond parameters and the optimiser's state, each point in a process that hands freed memory
back.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", Figure 1 and section 4.1.2 (of attention alone).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import linear, reformer, softmax
from linattn_ref.experiments.measuring.measurements import measure_all
from linattn_ref.experiments.measuring.memory import HAND_BACK, KEEP, in_new_process, peak_resident
from linattn_ref.experiments.measuring.scaling import Growth, growth
from linattn_ref.experiments.measuring.timing import in_turn, one_thread
from linattn_ref.experiments.publishing import labels, style
from linattn_ref.kernels import jit
from linattn_ref.models import causal
from linattn_ref.nn import cross_entropy, mechanism
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op import Array
from linattn_ref.training import parameters, radam

__all__ = ["Results", "compute", "draw"]

LENGTHS = tuple(2**i for i in range(9, 15))
LONGEST = {"softmax": 2**13}  # beyond, a step takes more than a few seconds
LAYERS, WIDTH, HEADS, TOKENS = 2, 128, 4, 256
CHUNK, BUCKETS = 32, 64  # of lsh, as in `resources`
WARM_UP = 128  # tokens, in a first step that loads kernels and that no measure sees
M = style.MECHANISMS
LOOK = {  # colour, line
    "softmax": (M["softmax online"], "s-"),
    "lsh-4": (M["reformer"], "v--"),
    "lsh-1": (M["reformer"], "v:"),
    "linear": (M["linear"], "^-"),
}


class Curve(NamedTuple):
    """One mechanism."""

    lengths: tuple[int, ...]  # (T,)
    seconds: tuple[float, ...]  # (T,), CPU time of a step, the median of the rounds
    peak: tuple[int, ...]  # (T,), bytes
    time_growth: Growth
    memory_growth: Growth


class Results(NamedTuple):
    """All mechanisms."""

    rounds: int
    curves: dict[str, Curve]


def compute(
    *,
    lengths: Sequence[int] = LENGTHS,
    rounds: int = 3,
    seed: int = 0,
    quick: bool = False,
    parts: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Results:
    """Time and memory of a step at every length; 2 minutes of one core.

    Parameters
    ----------
    lengths : sequence of int
        ``N``, ascending; at least two that softmax attention goes to.
    rounds : int
        Of timing, after one that is not counted.
    seed : int
    quick : bool
        Two short lengths: for tests.
    parts, resume, progress
        As in `measure_all`.

    Raises
    ------
    ValueError
        Bad lengths or rounds, or ``resume`` with other settings than those of ``parts``.
    ChildProcessError
        A measuring process failed, such as for lack of memory.
    """
    if quick:
        lengths, rounds = (128, 256), 1
    if list(lengths) != sorted(set(lengths)) or len(names_at("softmax", lengths)) < 2 or lengths[0] < 1:
        raise ValueError(f"lengths: expected ascending ones, two of them up to {LONGEST['softmax']}, got {lengths}")
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    settings = {"lengths": lengths, "rounds": rounds, "seed": seed}
    found = measure_all(tasks(lengths, rounds, seed), settings, parts=parts, resume=resume, progress=progress)
    return Results(rounds, {name: _curve(name, lengths, found) for name in LOOK})


def tasks(lengths: Sequence[int], rounds: int, seed: int) -> dict[str, Callable[[], Array]]:
    """What is measured, by the name of its file: ``time-N (mechanisms, rounds)`` and ``memory-mechanism-N (1,)``."""
    found: dict[str, Callable[[], Array]] = {}
    for n in lengths:
        found[f"time-{n}"] = partial(in_new_process, measure_time, mechanisms_at(n), n, rounds, seed, malloc=KEEP)
    for n in lengths:
        for name in mechanisms_at(n):
            found[f"memory-{name}-{n}"] = partial(in_new_process, measure_memory, name, n, seed, malloc=HAND_BACK)
    return found


def names_at(name: str, lengths: Sequence[int]) -> list[int]:
    """The lengths that a mechanism goes to."""
    return [n for n in lengths if n <= LONGEST.get(name, n)]


def mechanisms_at(n: int) -> list[str]:
    """The mechanisms that go to a length."""
    return [name for name in LOOK if names_at(name, (n,))]


def _curve(name: str, lengths: Sequence[int], found: Mapping[str, Array]) -> Curve:
    mine = names_at(name, lengths)
    seconds = [float(np.median(found[f"time-{n}"][mechanisms_at(n).index(name)])) for n in mine]
    peak = [int(found[f"memory-{name}-{n}"][0]) for n in mine]
    return Curve(tuple(mine), tuple(seconds), tuple(peak), growth(mine, seconds), growth(mine, peak))


# --- In a process of its own ----------------------------------------------------------------------------------------


def measure_time(names: Sequence[str], n: int, rounds: int, seed: int) -> Array:
    """CPU seconds ``(mechanisms, rounds)`` of a step; to be called by `memory.in_new_process` with KEEP."""
    with one_thread():
        return np.array(list(in_turn({name: step_of(name, n, seed) for name in names}, rounds).values()))


def measure_memory(name: str, n: int, seed: int) -> Array:
    """Bytes in use at the peak of a first step, ``(1,)``; to be called by `memory.in_new_process` with HAND_BACK."""
    with one_thread():
        step_of(name, min(n, WARM_UP), seed)()
        return np.array([peak_resident(step_of(name, n, seed))])


def step_of(name: str, n: int, seed: int) -> Callable[[], float]:
    """A step of a network, ready to be taken; it returns its loss."""
    rng = np.random.default_rng(seed)
    model = causal.Model(attention_of(name, rng), HEADS)
    drawn = causal.draw(
        rng,
        tokens=TOKENS,
        places=n,
        width=WIDTH,
        hidden=4 * WIDTH,
        layers=LAYERS,
        reads=model.mechanism.reads,
        dtype=np.float32,
    )
    _, params = parameters.flatten(drawn)
    read, told = rng.integers(TOKENS, size=(2, 1, n))
    state = radam.init_state(params)

    def step() -> float:
        nonlocal state
        scores, saved = causal.forward(read, params, model)
        loss, surprise = cross_entropy.forward(scores, told, kernels=jit)
        grads = causal.backward(cross_entropy.backward(1.0, surprise).scores, saved).params
        state = radam.step(params, grads, state, learning_rate=1e-3, kernels=jit)
        return float(loss)

    return step


def attention_of(name: str, rng: np.random.Generator) -> Mechanism:
    """A causal mechanism by the name that the paper gives it."""
    options: dict[str, Any] = {"causal": True, "kernels": jit}
    if name.startswith("lsh-"):
        rotations = reformer.draw_rotations(int(name[4:]), WIDTH // HEADS, BUCKETS, rng, np.float32)
        return mechanism.of(reformer, rotations=rotations, chunk=CHUNK, **options)
    return mechanism.of({"softmax": softmax, "linear": linear}[name], **options)


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """A step of training of a causal transformer, one sequence: 2 layers of width 128, 4 heads of 32, feed-forward
    layers four times as wide, float32. Left: CPU time on one thread, with the exponent of N fitted to the longer
    half of a curve. Right: the most memory in use at once beyond parameters and the optimiser's state, over the
    length: a level line is linear memory. Softmax attention is the online kernel, which keeps no matrix; it stops
    where a step takes seconds. LSH: Reformer with 1 and 4 hash rounds, 64 buckets and chunks of 32.
    """
    figure, (left, right) = style.figure(1, 2, height=0.45)
    times, peaks = [], []
    for name, curve in results.curves.items():
        colour, line = LOOK[name]
        n = np.array(curve.lengths)
        times += left.plot(n, curve.seconds, line, color=colour)
        peaks += right.plot(n, np.array(curve.peak) / n / 1024, line, color=colour)
    for axes in (left, right):
        axes.set(yscale="log", xlabel="length N (tokens)")
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    left.set_ylabel("CPU time of a step (s)")
    right.set(ylabel="memory over length (KiB a token)", ylim=(10, 100))
    right.set_yticks([10, 20, 50, 100], ["10", "20", "50", "100"])
    written = [f"{name} $N^{{{curve.time_growth.exponent:.2f}}}$" for name, curve in results.curves.items()]
    labels.at_ends(left, times, written)
    labels.at_ends(right, peaks, list(results.curves))
    return figure
