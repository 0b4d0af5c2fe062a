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

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from linattn_ref.attention import linformer, softmax
from linattn_ref.experiments.cost.resource_methods import Setting, draw_mixtures
from linattn_ref.experiments.measuring.points import Group, Points, check_counts, measure_points
from linattn_ref.experiments.publishing.kit import Array, Figure, Ints, Results, setp, style
from linattn_ref.kernels import jit, reference
from linattn_ref.nn import block, mechanism, pre_norm

__all__ = ["FORMS", "LAYER", "compute", "draw"]

LENGTHS = (512, 1024, 2048, 4096, 8192)
REDUCED = (128, 256, 512, 1024, 2048)
FORMS = ("matrix kept", "online")
LAYER = "whole layer"
WARM_UP = 128  # tokens
QUICK = {"lengths": (512,), "reduced": (128,), "rounds": 1}


def compute(
    *,
    lengths: Ints = LENGTHS,
    reduced: Ints = REDUCED,
    rounds: int = 5,
    seed: int = 0,
    setting: Setting = Setting(),  # noqa: B008  # a tuple
    forms: Sequence[str] = FORMS,
    **where: Any,
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
    **where
        ``parts``, ``resume`` and ``progress``, as in `measure_all`.

    Raises
    ------
    ValueError
        A count below 1, or ``resume`` with other settings than those of ``parts``.
    ChildProcessError
        A measuring process failed, such as for lack of memory.
    """
    check_counts(lengths=lengths, reduced=reduced, rounds=rounds)
    settings = {"lengths": lengths, "reduced": reduced, "rounds": rounds, "seed": seed, "forms": forms}
    groups = {
        f"{form}-{n}": Group([str(r) for r in _columns(n, reduced)], n, rounds, (form, setting, seed))
        for form in forms
        for n in lengths
    }
    found = measure_points(prepared, groups, settings | setting._asdict(), warm_up=WARM_UP, **where)
    return Results(
        setting=setting,
        dtype="float32",
        lengths=tuple(lengths),  # the paper's n
        reduced=tuple(reduced),  # the paper's k
        rounds=rounds,
        forms={form: _savings(form, found, lengths, reduced) for form in forms},  # FORMS, or LAYER
    )


def _columns(n: int, reduced: Ints) -> list[int]:
    """What is run at length ``n``: softmax attention, as 0, and Linformer with each ``R`` up to half of it."""
    return [0, *(r for r in reduced if 2 * r <= n)]


def attend(form: str, inputs: tuple[Array, ...]) -> Array:
    """The output of softmax attention, given ``q, k, v``, or of Linformer, given ``q, k, v, e, f``."""
    page = softmax if len(inputs) == 3 else linformer
    return page.forward(*inputs, kernels=jit if form == "online" else reference)[0]


def prepared(name: str, n: int, form: str, setting: Setting, seed: int) -> Callable[[], Array]:
    """What is measured: attention, or a whole layer, of ``n`` tokens; softmax's where ``R``, the name, is 0."""
    r = min(int(name), n)
    if form != LAYER:
        return partial(attend, form, draw_inputs(n, r, setting, seed))
    rng, width = np.random.default_rng(seed), setting.heads * setting.width
    params = block.draw(width, 4 * width, rng, own=draw_mixtures(r, n, rng), dtype=np.float32)
    x = rng.standard_normal((1, n, width), np.float32)
    inside = mechanism.of(linformer if r else softmax, kernels=jit)
    return lambda: pre_norm.forward(x, params, inside, heads=setting.heads, kernels=jit)[0]


def draw_inputs(n: int, r: int, setting: Setting, seed: int) -> tuple[Array, ...]:
    """``q, k, v (H, N, W)``, and ``e, f (R, N)`` unless ``r`` is 0."""
    rng = np.random.default_rng(seed)
    return (*rng.standard_normal((3, setting.heads, n, setting.width), np.float32), *draw_mixtures(r, n, rng))


def _savings(form: str, found: Points, lengths: Ints, reduced: Ints) -> Results:
    time, memory = np.full((2, len(lengths), len(reduced)), np.nan)
    least = np.min if form == LAYER else np.median  # of a layer, which has few rounds, the least times
    seconds, peak = ([of[f"{form}-{n}"] for n in lengths] for of in found)
    for i, n in enumerate(lengths):
        for r in _columns(n, reduced)[1:]:
            one, both = peak[i]["0"][0], (seconds[i]["0"], seconds[i][str(r)])
            ratio = both[0].min() / both[1].min() if form == LAYER else np.median(both[0] / both[1])
            time[i, reduced.index(r)], memory[i, reduced.index(r)] = ratio, one / peak[i][str(r)][0]
    return Results(  # softmax attention's cost over Linformer's, NaN where k is more than half of n
        time=time,  # (n, k)
        memory=memory,  # (n, k)
        softmax_seconds=np.array([least(of["0"]) for of in seconds]),  # (n,)
        softmax_peak=np.array([of["0"][0] for of in peak]),  # (n,), bytes
    )


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """What Linformer saves: softmax attention's time and memory over Linformer's. Forward pass, 8 heads of width 64,
    float32, one sequence, one thread. Above, both keep their matrix, as in Table 3 of the paper. Below, neither does,
    and one kernel does both: time is saved all the same, but there is no memory left to save. A number below 1 is a
    loss. Memory is measured, beyond the inputs; below 8 MB, as it is online up to n = 2048, to about a tenth. No entry:
    k is more than half of n.
    """
    rows = len(results.forms)
    figure, axes = style.figure(rows, 2, height=0.31 * rows, sharex=True, sharey=True, squeeze=False)
    for row, (form, savings) in zip(axes, results.forms.items(), strict=True):
        for axis, what in zip(row, ("time", "memory"), strict=True):
            _heat_map(axis, results, savings[what])
            axis.set_title(f"{what}, {form}")
    figure.suptitle("softmax attention over Linformer", fontsize="medium")
    setp(axes[-1], xlabel="$k$")
    setp(axes[:, 0], ylabel="$n$")
    return figure


def _heat_map(axis: Any, results: Results, saved: Array) -> None:
    """The ratios, the colour their logarithm: the same for all panels, 1 in the middle."""
    image = axis.imshow(np.log2(saved), cmap="PuOr", vmin=-5, vmax=5, aspect="auto")
    axis.set_xticks(range(len(results.reduced)), [str(r) for r in results.reduced])
    axis.set_yticks(range(len(results.lengths)), [str(n) for n in results.lengths])
    axis.grid(False)
    for (i, j), ratio in np.ndenumerate(saved):
        if np.isfinite(ratio):
            colour = style.text_colour(image.to_rgba(np.log2(ratio))[:3])
            digits = 2 if ratio < 0.995 else 1 if ratio < 9.95 else 0  # two that count
            axis.text(j, i, f"{ratio:.{digits}f}", ha="center", va="center", color=colour)
