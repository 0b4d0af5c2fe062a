"""Linformer's error against ``k`` on the heads of a real pretrained network: random, pooled and fitted projections.

The network's ``Q``, ``K`` and ``V`` stay as they are; softmax attention is replaced by attention to ``R`` mixed keys
and values (``R`` is the paper's ``k``). Three questions:

- How far is the output from softmax attention's? Each way of mixing in `WAYS`, against ``R``, on sentences that the
  fitted ones have not seen.
- How far is the matrix that it applies, ``P~ F (N, L)``, from ``P``? Nothing of rank ``R`` can be nearer than the
  truncated SVD. For the *output* the truncated SVD is no such bound: it has only ``M`` columns.
- What does it cost to share the projections? The four sharing modes at one ``R``, each fitted.

References
----------
Wang et al. (2020), "Linformer: Self-Attention with Linear Complexity", section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from linattn_ref.experiments.fewer_keys.linformer_ways import Sharing, sharing_modes, ways_at
from linattn_ref.experiments.measuring.heads import (
    Heads,
    Spread,
    each_error,
    given_or_read,
    order_of_fit,
    random_heads,
    spread,
    truncated_svd,
)
from linattn_ref.experiments.measuring.pretrained import PathLike
from linattn_ref.experiments.publishing import labels, style
from linattn_ref.experiments.publishing.bands import over_reduced
from linattn_ref.op import Array

__all__ = ["WAYS", "Results", "compute", "draw", "returned"]

# name -> (label, colour). Those of the first panel can be used; the others need P, or the sentence beforehand.
USABLE = {
    "gaussian": ("random E, F", style.VERMILLION),
    "max": ("max pooling", style.ORANGE),
    "mean": ("mean pooling", style.SKY),
    "fitted": ("fitted E, F", style.BLUE),
    "convolution": ("fitted convolution", style.GREEN),
}
NOT_USABLE = {
    "theorem_1": ("P RᵀR: needs P", style.PURPLE),
    "one_sentence": ("E, F fitted to it", style.BROWN),
    "svd": ("truncated SVD: needs P", style.BLACK),
}
WAYS = USABLE | NOT_USABLE
SHARING_LABELS = {
    "mean_pooling": "mean pooling",
    "none": "each its own",
    "headwise": "headwise",
    "key_value": "key-value",
    "layerwise": "layerwise",
}


class Results(NamedTuple):
    """All numbers of the figure: relative errors in the Frobenius norm."""

    reduced: tuple[int, ...]  # (K,), R
    shape: tuple[int, int, int]  # (H, N, M)
    output: dict[str, Spread]  # way -> error of the output, (K, ...)
    matrix: dict[str, Spread]  # way -> error of the matrix, where there is one
    mean_of_values: Spread  # error of the output's replacement by the mean of the values
    sharing_reduced: int
    sharing: dict[str, Sharing]  # mode -> errors at sharing_reduced
    settings: dict[str, Any]


def compute(
    *,
    seed: int = 0,
    quick: bool = False,
    heads: Heads | None = None,
    model: PathLike | None = None,
    text: PathLike | None = None,
    reduced: Sequence[int] = (8, 16, 32, 64, 128),
    sharing_reduced: int = 64,
    length: int = 512,
    every: int = 1,
    sentences: int = 48,
    unseen: int = 8,
    epochs: int = 3,
    steps_one: int = 150,
    say: Callable[[str], object] = lambda line: None,
) -> Results:
    """Measure every way of mixing at every ``R``; some ten minutes.

    Parameters
    ----------
    seed : int
        Of the choice of sentences and the random projections.
    quick : bool
        Few steps on small random queries, keys and values instead of a network's: for tests.
    heads : Heads, optional
        What to approximate; by default heads of the pretrained network on a text.
    model, text : path, optional
        As in `pretrained.read`.
    reduced : sequence of int
        ``R``; those above the length are left out.
    sharing_reduced : int
        ``R`` of the sharing modes.
    length : int
        Tokens a sentence.
    every : int
        Take every ``every``-th head of each layer.
    sentences, unseen : int
        How many to fit to, and how many to measure on.
    epochs, steps_one : int
        Passes over the sentences in a fit; steps of the fit to a single sentence.
    say : callable
        Told in one line what is fetched.
    """
    rng = np.random.default_rng(seed)
    if quick:
        reduced, sharing_reduced, unseen, epochs, steps_one = (4, 16), 16, 1, 2, 8
        heads = heads or random_heads(rng, sentences=4, layers=2, heads=2, length=64, width=8)
    with threadpool_limits(1):
        heads, sources = given_or_read(
            heads, model, text, sentences=sentences + unseen, length=length, every=every, seed=seed, say=say
        )
        total, _, n_heads, length, width = heads.v.shape
        order = order_of_fit(heads, unseen, epochs, rng)
        reduced, sharing_reduced = tuple(r for r in reduced if r <= length), min(sharing_reduced, length)
        errors = [ways_at(r, heads, range(unseen), order, steps_one, rng) for r in reduced]
        for at_r, svd in zip(errors, truncated_svd(reduced, heads, range(unseen)), strict=True):
            at_r["svd"] = svd
        sharing = sharing_modes(sharing_reduced, heads, range(unseen), order)
        means, _ = each_error(heads, range(unseen), lambda q, k, v: v.mean(axis=-2, keepdims=True))
    return Results(
        reduced,
        (n_heads, length, width),
        {way: spread(np.stack([at_r[way][0] for at_r in errors])) for way in WAYS},
        {way: spread(np.stack([at_r[way][1] for at_r in errors])) for way in WAYS if errors[0][way][1].size},
        spread(means),
        sharing_reduced,
        sharing,
        {**sources, "seed": seed, "sentences": total - unseen, "unseen": unseen, "epochs": epochs, "steps": steps_one},
    )


def returned(sharing: Mapping[str, Sharing], mode: str) -> Array:
    """The part of what fitting gains over mean pooling that a sharing mode gives back, by unseen sentence ``(S,)``."""
    pooled, own, shared = (sharing[name].output.by_sentence for name in ("mean_pooling", "none", mode))
    return (shared - own) / (pooled - own)


# --- Drawing --------------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Linformer in a pretrained network whose weights stay as they are: all heads, eight texts that no projection
    was fitted to; lines are medians, bands the middle 80% of heads and texts. Above left: error of the attention's
    output. Random E and F, and max pooling, are off by more than the output itself; mean pooling does better,
    fitted E and F a little better still, a fitted convolution best. Above right: what cannot be used. E and F
    fitted to the very sentence show that good ones exist for each sentence, but they are not the same ones. Below
    left: the matrix that is applied, P~ F; no rank k comes below the truncated SVD's. Below right: sharing, with
    the number of parameters; means over heads, bars from text to text.
    """
    figure, ((usable, not_usable), (matrix, sharing)) = style.figure(2, 2, height=0.8)
    of_matrix = {name: WAYS[name] for name in ("theorem_1", "fitted", "mean", "svd")}
    mean_of_v = float(results.mean_of_values.median), "answer: mean\nof V"
    over_reduced(usable, results.reduced, results.output, USABLE, level=mean_of_v)
    over_reduced(not_usable, results.reduced, results.output, {"mean": WAYS["mean"]} | NOT_USABLE, level=mean_of_v)
    over_reduced(matrix, results.reduced, results.matrix, of_matrix)
    for axes in (usable, not_usable, matrix):
        axes.set_xlabel("reduced length $k$")
    usable.set(title="Output, text not fitted to", ylabel="relative error")
    not_usable.set_title("Output, what cannot be used")
    matrix.set(title="Matrix $\\tilde P F$ against $P$", ylabel="relative error")
    _draw_sharing(sharing, results)
    return figure


def _draw_sharing(axes: Axes, results: Results) -> None:
    """Error by sharing mode, on unseen sentences and on those of the fit; bars from the least text to the largest."""
    modes = list(results.sharing.values())
    rows = np.arange(len(modes))
    for name, colour, label in (("output", style.BLUE, "not fitted to"), ("seen", style.GREY, "text of the fit")):
        by_text = np.stack([getattr(mode, name).by_sentence for mode in modes])  # (modes, S)
        mean = by_text.mean(axis=1)
        reach = np.abs(np.stack([by_text.min(axis=1), by_text.max(axis=1)]) - mean)
        axes.errorbar(mean, rows, xerr=reach, fmt="o", markersize=4, color=colour)
        side = {"ha": "left", "xytext": (0, 4)} if name == "output" else {"ha": "center", "xytext": (0, 4)}
        labels.at(axes, mean[1], rows[1], label, colour, **side)
    ticks = [f"{SHARING_LABELS[name]}\n{_thousands(mode.parameters)}" for name, mode in results.sharing.items()]
    axes.set_yticks(rows, ticks)
    axes.set(
        title=f"Sharing at $k$ = {results.sharing_reduced}", xlabel="relative error", ylim=(len(modes) - 0.5, -0.5)
    )
    low, high = axes.get_xlim()
    axes.set_xlim(low - 0.3 * (high - low), high + 0.3 * (high - low))  # room for the names


def _thousands(parameters: int) -> str:
    return f"{parameters / 1000:,.0f}k parameters" if parameters else "no parameters"
