"""Linformer's error against ``k`` on the heads of a real pretrained network: random, pooled and fitted projections.

The network's ``Q``, ``K`` and ``V`` stay as they are; softmax attention is replaced by attention to ``R`` mixed keys
and values (``R`` is the paper's ``k``). Three questions:

- How far is the output from softmax attention's? Each way of mixing in `WAYS`, against ``R``, on sentences that the
  fitted ones have not seen.
- How far is the matrix that it applies, ``P~ F (N, L)``, from ``P``? Nothing of rank ``R`` can be nearer than the
  truncated SVD. It is no such bound for the *output*, which has only ``M`` columns.
- What does it cost to share the projections? The four sharing modes at one ``R``, each fitted.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 4.
"""

from collections.abc import Mapping

import numpy as np
from threadpoolctl import threadpool_limits

from linattn_ref.attention import linformer, softmax
from linattn_ref.experiments.measuring import heads as measured
from linattn_ref.experiments.measuring import linformer_fit
from linattn_ref.experiments.measuring.heads import Errors, Heads, Random, Source, each_error, errors_by_way, spread
from linattn_ref.experiments.measuring.linformer_fit import CONVOLUTIONS, MATRICES, Mixing, Parameters, begun, fit
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, Ints, Results, labels, over_reduced, style
from linattn_ref.kernels import jit
from linattn_ref.theory.johnson_lindenstrauss import gaussian_projection

__all__ = ["RATE", "WAYS", "compute", "draw", "errors_of", "returned"]

RATE = 3e-4  # of the fit to many sentences
RATE_ONE = 1e-3  # of the fit to a single one
# name -> (label, colour). Those of the first panel can be used; the others need P, or a fit to the very sentence.
USABLE = {
    "gaussian": ("random E, F", style.VERMILLION),
    "max": ("max pooling", style.ORANGE),
    "mean": ("mean pooling", style.SKY),
    "fitted": ("fitted E, F", style.BLUE),
    "convolution": ("fitted convolution", style.GREEN),
}
NOT_USABLE = {
    "theorem_1": ("P RᵀR (Theorem 1)", style.PURPLE),
    "one_sentence": ("E, F fitted to this text", style.BROWN),
    "svd": ("truncated SVD", style.BLACK),
}
WAYS = USABLE | NOT_USABLE
TITLES = {"mean_pooling": "mean pooling", "none": "each its own", "key_value": "key-value"}


QUICK = {"heads": Random(), "reduced": (4, 16), "sharing_reduced": 16, "unseen": 1, "epochs": 2, "steps_one": 8}


def compute(
    *,
    seed: int = 0,
    heads: Heads | Source | Random = Source(sentences=56),  # noqa: B008  # a tuple
    reduced: Ints = (8, 16, 32, 64, 128),
    sharing_reduced: int = 64,
    unseen: int = 8,
    epochs: int = 3,
    steps_one: int = 150,
) -> Results:
    """Measure every way of mixing at every ``R``; some ten minutes.

    Parameters
    ----------
    seed : int
        Of the choice of sentences and the random projections.
    heads : Heads, Source or Random
        What to approximate; by default heads of a pretrained network on a text.
    reduced : sequence of int
        ``R``; those above the length are left out.
    sharing_reduced : int
        ``R`` of the sharing modes.
    unseen : int
        Sentences to measure on; the others are for fitting.
    epochs, steps_one : int
        Passes over the sentences in a fit; steps of the fit to a single sentence.
    """
    rng = np.random.default_rng(seed)
    with threadpool_limits(1):
        found, order, settings = measured.heads_to_fit(heads, seed, rng, unseen, epochs)
        new, (_, _, n_heads, length, width) = range(unseen), found.v.shape
        reduced, sharing_reduced = tuple(r for r in reduced if r <= length), min(sharing_reduced, length)
        errors = errors_by_way(WAYS, lambda r: ways_at(r, found, new, order, steps_one, rng), reduced, found, new)
        sharing = sharing_modes(sharing_reduced, found, new, order)
        means, _ = each_error(found, new, lambda q, k, v: v.mean(axis=-2, keepdims=True))
    return Results(  # relative errors in the Frobenius norm
        reduced=reduced,  # (K,), R
        shape=(n_heads, length, width),  # (H, N, M)
        **errors,
        mean_of_values=spread(means),  # error of the output's replacement by the mean of the values
        sharing_reduced=sharing_reduced,
        sharing=sharing,  # mode -> errors at sharing_reduced
        settings={**settings, "steps": steps_one},
    )


# --- The ways ---------------------------------------------------------------------------------------------------------


def ways_at(r: int, heads: Heads, unseen: Ints, order: Ints, steps_one: int, rng: Generator) -> dict[str, Errors]:
    """The errors of output and matrix, each ``(S, T, H)``, of all `WAYS` but the truncated SVD at one ``R``."""
    _, layers, n_heads, length, _ = heads.k.shape
    dtype = heads.k.dtype

    def max_pooled(q: Array, k: Array, v: Array) -> Array:
        return softmax.forward(q, linformer.max_pool(k, r)[0], linformer.max_pool(v, r)[0], kernels=jit)[0]

    drawn = linformer.draw_projections(r, length, rng, layers=layers, heads=n_heads, dtype=dtype)
    random = np.stack([each.e for each in drawn]), np.stack([each.f for each in drawn])  # (T, H, R, L) each
    _, pooled = begun("none", r, heads)
    convolutions = fit(CONVOLUTIONS, (mean_convolutions(r, heads),) * 2, heads, order, rate=RATE)
    one_sentence = fit(MATRICES, pooled, heads, [unseen[0]] * steps_one, rate=RATE_ONE)
    jl = gaussian_projection(r, length, rng, dtype=dtype)  # (R, L)
    return {
        "gaussian": errors_of(random, heads, unseen),
        "max": each_error(heads, unseen, max_pooled),
        "mean": errors_of(pooled, heads, unseen),
        "fitted": errors_of(fit(MATRICES, pooled, heads, order, rate=RATE), heads, unseen),
        "convolution": each_error(heads, unseen, CONVOLUTIONS.applied(convolutions)),
        "one_sentence": errors_of(one_sentence, heads, unseen[:1]),
        "theorem_1": each_error(
            heads,
            unseen,
            lambda q, k, v: softmax.matrix(q, k) @ (jl.T @ (jl @ v)),
            lambda q, k: (softmax.matrix(q, k) @ jl.T) @ jl,
        ),
    }


def errors_of(matrices: Parameters, heads: Heads, sentences: Ints) -> Errors:
    """The errors of Linformer with ``e`` and ``f``."""
    e, f = matrices
    return each_error(heads, sentences, MATRICES.applied(matrices), lambda q, k: linformer.matrix(q, k, e) @ f)


def mean_convolutions(r: int, heads: Heads) -> Array:
    """Mean pooling as a convolution for each layer and head: ``(T, H, K, D, D)`` with ``K = ceil(L / R)``."""
    _, layers, n_heads, length, width = heads.k.shape
    kernel = -(-length // r)
    weight = np.eye(width, dtype=heads.k.dtype) / kernel  # (D, D)
    return np.broadcast_to(weight, (layers, n_heads, kernel, width, width))


def sharing_modes(r: int, heads: Heads, unseen: Ints, order: Ints) -> dict[str, Results]:
    """Mean pooling, and the four sharing modes fitted: a matrix is shared along an axis where its shape has a 1."""
    seen = sorted(set(order))[: len(unseen)]

    def sharing(mixing: Mixing, parameters: Parameters, count: int) -> Results:
        on_unseen, on_seen = (spread(each_error(heads, s, mixing.applied(parameters))[0]) for s in (unseen, seen))
        return Results(parameters=count, output=on_unseen, seen=on_seen)  # relative errors

    results = {"mean_pooling": sharing(*begun("layerwise", r, heads), 0)}
    for mode in linformer_fit.SHARINGS:
        mixing, start = begun(mode, r, heads)
        fitted = fit(mixing, start, heads, order, rate=RATE)
        results[mode] = sharing(mixing, fitted, sum(x.size for x in fitted))
    return results


def returned(sharing: Mapping[str, Results], mode: str) -> Array:
    """The part of what fitting gains over mean pooling that a sharing mode loses again, by unseen sentence ``(S,)``."""
    pooled, own, shared = (sharing[name].output.by_sentence for name in ("mean_pooling", "none", mode))
    return (shared - own) / (pooled - own)


# --- Drawing -------------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Linformer in a pretrained network whose weights stay as they are: all heads, eight texts that no projection was
    fitted to; lines are medians, bars at the right the middle 80% of heads and texts at the largest k. Above left:
    error of the attention's output. Random E and F, and max pooling, are off by more than the output itself; mean
    pooling does better, fitted E and F a little better still, a fitted convolution best. Above right: ways that need
    the answer. E and F fitted to the first of the texts, and measured on it alone, show that good ones exist for that
    text. Below left: the matrix that is applied, P~ F; no rank k comes below the truncated SVD's. Below right:
    sharing, with the number of parameters; means over heads, bars from text to text.
    """
    figure, ((usable, not_usable), (matrix, sharing)) = style.figure(2, 2, height=0.8)
    of_matrix = {name: WAYS[name] for name in ("theorem_1", "fitted", "mean", "svd")}
    mean_of_v = float(results.mean_of_values.median), "mean of all\nvalues"
    over_reduced(usable, results.reduced, results.output, USABLE, level=mean_of_v)
    over_reduced(not_usable, results.reduced, results.output, {"mean": WAYS["mean"]} | NOT_USABLE, level=mean_of_v)
    over_reduced(matrix, results.reduced, results.matrix, of_matrix)
    for axes in (usable, not_usable, matrix):
        axes.set_xlabel("reduced length $k$")
    usable.set(title="Output, on new texts", ylabel="relative error")
    not_usable.set_title("Output, with the answer known")
    matrix.set(title="Matrix", ylabel="relative error")

    modes = list(results.sharing.values())
    rows = np.arange(len(modes))
    looks = ("output", style.BLUE, "new texts", "left"), ("seen", style.GREY, "fitted texts", "right")
    for name, colour, label, side in looks:
        by_text = np.stack([getattr(mode, name).by_sentence for mode in modes])  # (modes, S)
        mean = by_text.mean(axis=1)
        reach = np.abs(np.stack([by_text.min(axis=1), by_text.max(axis=1)]) - mean)
        sharing.errorbar(mean, rows, xerr=reach, fmt="o", color=colour)
        labels.at(sharing, mean[1], rows[1], label, colour, ha=side, xytext=(0, 6))
    ticks = [f"{TITLES.get(name, name)}\n{_thousands(mode.parameters)}" for name, mode in results.sharing.items()]
    sharing.set_yticks(rows, ticks)
    sharing.set(title=f"Sharing at $k$ = {results.sharing_reduced}", xlabel="relative error")
    sharing.set_ylim(len(modes) - 0.5, -0.5)
    low, high = sharing.get_xlim()
    sharing.set_xlim(low - 0.7 * (high - low), high + 0.3 * (high - low))  # room for the names

    return figure


def _thousands(parameters: int) -> str:
    return f"{parameters / 1000:,.0f}k parameters" if parameters else "no parameters"
