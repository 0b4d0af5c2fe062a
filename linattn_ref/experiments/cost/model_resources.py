"""The resource figure of a whole network: time and memory of a step of training against the length.

`resources` measures attention alone. Here it stands in a transformer of `LAYERS` blocks, next to feed-forward layers,
norms and an embedding, which cost the same per token whatever the attention: a step is forward, cross-entropy, backward
and RAdam, of one sequence. CPU time on one thread, the mechanisms of a length in turn, and the most memory in use at
once beyond parameters and the optimiser's state (`points`).

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", Figure 1 and section 4.1.2 (of attention alone).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from linattn_ref.experiments.measuring import mechanisms
from linattn_ref.experiments.measuring.points import Group, Points, check_lengths, measure_points
from linattn_ref.experiments.measuring.scaling import growth
from linattn_ref.experiments.publishing.kit import Figure, Ints, Results, labels, style
from linattn_ref.kernels import jit
from linattn_ref.models import causal
from linattn_ref.nn import cross_entropy
from linattn_ref.training import parameters, radam

__all__ = ["compute", "draw"]

LENGTHS = tuple(2**i for i in range(9, 15))
LONGEST = {"softmax": 2**13}  # beyond, a step takes seconds
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


QUICK = {"lengths": (128, 256), "rounds": 1}


def compute(*, lengths: Ints = LENGTHS, rounds: int = 3, seed: int = 0, **where: Any) -> Results:
    """Time and memory of a step at every length; 2 minutes of one core.

    Parameters
    ----------
    lengths : sequence of int
        ``N``, ascending; at least two that softmax attention goes to.
    rounds : int
        Of timing, after one that is not counted.
    seed : int
    **where
        ``parts``, ``resume`` and ``progress``, as in `measure_all`.

    Raises
    ------
    ValueError
        Bad lengths or rounds, or ``resume`` with other settings than those of ``parts``.
    ChildProcessError
        A measuring process failed, such as for lack of memory.
    """
    check_lengths(lengths, rounds)
    if len([n for n in lengths if n <= LONGEST["softmax"]]) < 2:
        raise ValueError(f"lengths: expected two of them up to {LONGEST['softmax']}, got {lengths}")
    groups = {str(n): Group([x for x in LOOK if n <= LONGEST.get(x, n)], n, rounds, (seed,)) for n in lengths}
    settings = {"lengths": lengths, "rounds": rounds, "seed": seed}
    return summarise(measure_points(step_of, groups, settings, warm_up=WARM_UP, **where), rounds)


def summarise(found: Points, rounds: int) -> Results:
    """From what was measured to the numbers of the figure."""
    curves = {}
    for name in LOOK:
        seconds = {int(n): float(np.median(of[name])) for n, of in found.seconds.items() if name in of}
        peak = [int(of[name][0]) for of in found.memory.values() if name in of]
        curves[name] = Results(
            lengths=tuple(seconds),  # (T,)
            seconds=tuple(seconds.values()),  # (T,), CPU time of a step, the median of the rounds
            peak=tuple(peak),  # (T,), bytes, of a first step
            time_growth=growth([*seconds], [*seconds.values()]),
            memory_growth=growth([*seconds], peak),
        )
    return Results(rounds=rounds, curves=curves)


def step_of(name: str, n: int, seed: int) -> Callable[[], float]:
    """A step of a network, ready to be taken; it returns its loss."""
    rng = np.random.default_rng(seed)
    near = mechanisms.Sizes(n, WIDTH // HEADS, chunk=CHUNK, buckets=BUCKETS)
    model = causal.Model(mechanisms.of(name, near, rng, causal=True, kernels=jit), HEADS)
    sizes = {"tokens": TOKENS, "places": n, "width": WIDTH, "hidden": 4 * WIDTH, "layers": LAYERS}
    _, params = parameters.flatten(causal.draw(rng, **sizes, reads=model.mechanism.reads, dtype=np.float32))
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


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """A step of training of a causal transformer, one sequence: 2 layers of width 128, 4 heads of 32, feed-forward
    layers four times as wide, float32. Left: CPU time on one thread, with the exponent of N fitted to the longer
    half of a curve. Right: the most memory in use at once beyond parameters and the optimiser's state, over the
    length: a level line is linear memory. Softmax attention is the online kernel, which keeps no matrix; it stops
    where a step takes seconds. LSH: Reformer with 1 and 4 hash rounds, 64 buckets and chunks of 32.
    """
    figure, (left, right) = style.figure(1, 2, height=0.45)
    for name, curve in results.curves.items():
        colour, line = LOOK[name]
        n = np.array(curve.lengths)
        left.plot(n, curve.seconds, line, color=colour, label=f"{name} $N^{{{curve.time_growth.exponent:.2f}}}$")
        right.plot(n, np.array(curve.peak) / n / 1024, line, color=colour, label=name)
    for axes in (left, right):
        axes.set(yscale="log", xlabel="length N (tokens)")
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    left.set_ylabel("CPU time of a step (s)")
    right.set(ylabel="memory over length (KiB per token)", ylim=(10, 100))
    right.set_yticks([10, 20, 50, 100], ["10", "20", "50", "100"])
    labels.at_ends(left)
    labels.at_ends(right)
    return figure
