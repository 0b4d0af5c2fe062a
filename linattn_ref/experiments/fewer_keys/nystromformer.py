"""Nyström attention's error against landmarks on the heads of a real pretrained network, beside others of equal rank.

As in ``linformer.py``: the network's ``Q``, ``K`` and ``V`` stay as they are, softmax attention is replaced, and the
same sentences are measured. Three questions:

- How far is the output from softmax attention's, at ``R`` landmarks? Beside Linformer with ``R`` mixed keys.
- How far is the matrix that is applied from ``P``? Nothing of rank ``R`` can be nearer than the truncated SVD. And what
  would the Nyström method make of ``P`` itself, were it known, with the same pseudo-inverse?
- What do more iterations of the pseudo-inverse bring?

The convolution's weights are fitted, a row of them for each layer and head, to what Nyström attention leaves over on
other sentences: a least squares problem, solved exactly.

References
----------
Xiong et al. (2021), "Nyströmformer", section 3 and figure 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from linattn_ref.attention import (
    depthwise,
    linformer,
    nystromformer,
    pinv_exact,
    pinv_iterative,
    segment_means,
    softmax,
)
from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.fewer_keys.linformer import RATE, truncated_svd
from linattn_ref.experiments.fewer_keys.linformer_fit import MATRICES, fit
from linattn_ref.experiments.measuring.heads import Errors, Heads, errors_of, random_heads, read_heads, relative_error
from linattn_ref.experiments.measuring.pretrained import PathLike
from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.publishing.restore import restore
from linattn_ref.kernels import jit

__all__ = ["WAYS", "Results", "compute", "draw", "from_record"]

# name -> (label, colour, line); the last two cannot be used in practice: they need P.
WAYS = {
    "mean": ("Linformer, mean pooling", style.SKY, "s-"),
    "fitted": ("Linformer, fitted E, F", style.BLUE, "o-"),
    "exact": ("Nyström, exact pseudo-inverse", style.ORANGE, "v-"),
    "cut": ("exact, from largest/30 up", style.ORANGE, "v:"),
    "nystrom": ("Nyström, 6 iterations", style.MECHANISMS["nystromformer"], "o-"),
    "convolution": ("and a fitted convolution", style.GREEN, "D-"),
    "of_p": ("6 iterations on P itself, needs P", style.PURPLE, "^:"),
    "svd": ("truncated SVD, needs P", style.BLACK, "--"),
}
ITERATIONS = 6
CUT = 1 / 30  # rcond of the exact pseudo-inverse that leaves out what six iterations do not reach
CAPTION = (
    "Nyström attention in a pretrained network whose weights stay as they are. Left: error of the attention's output "
    "on text that nothing was fitted to, against the number of landmarks, beside Linformer with as many mixed keys. "
    "Six iterations of the pseudo-inverse do better than Linformer, even fitted. The exact pseudo-inverse errs by as "
    "much as the output or by several times that, unless it leaves out singular values below a thirtieth of the "
    "largest, which six iterations do not reach either. A convolution along the values, fitted on other text, helps. "
    "Middle: error of the matrix applied, above the truncated SVD's, below which no matrix of rank R can come (the "
    "convolution adds a matrix of full rank). The Nyström method with R columns of P itself is no better than with "
    "landmarks. Right: error of the output by iteration; more than six to nine make it worse."
)


class Results(NamedTuple):
    """All numbers of the figure: relative errors in the Frobenius norm, means over sentences and heads."""

    reduced: tuple[int, ...]  # (K,), R
    shape: tuple[int, int, int]  # (H, N, M)
    output: dict[str, Array]  # way -> (K, T), error of the output
    matrix: dict[str, Array]  # way -> (K, T), error of the matrix
    most_iterations: int  # I
    by_iteration: Array  # (K, I + 1), error of the output after 0 to I iterations
    settings: dict[str, Any]


def compute(
    *,
    seed: int = 0,
    quick: bool = False,
    heads: Heads | None = None,
    model: PathLike | None = None,
    text: PathLike | None = None,
    reduced: Sequence[int] = (8, 16, 32, 64, 128),
    most_iterations: int = 16,
    taps: int = 33,
    length: int = 512,
    every: int = 6,
    sentences: int = 48,
    unseen: int = 4,
    epochs: int = 3,
    say: Callable[[str], object] = lambda line: None,
) -> Results:
    """Measure every way at every ``R``.

    Parameters
    ----------
    seed : int
        Of the choice of sentences and their order.
    quick : bool
        Small random queries, keys and values instead of a network's: for tests.
    heads : Heads, optional
        What to approximate; by default heads of the pretrained network on a text.
    model, text : path, optional
        As in `pretrained.read`.
    reduced : sequence of int
        ``R``; those above the length are left out.
    most_iterations : int
        Of the pseudo-inverse, in the third panel.
    taps : int
        Weights of the convolution, for each layer and head.
    length, every, sentences, unseen, epochs, say
        As in `linformer.compute`.
    """
    rng = np.random.default_rng(seed)
    sources: dict[str, Any] = {}
    if quick:
        reduced, most_iterations, taps, unseen, epochs = (4, 16), 8, 5, 1, 2
        heads = heads or random_heads(rng, sentences=4, layers=2, heads=2, length=64, width=8)
    with threadpool_limits(1):
        if heads is None:
            heads, sources = read_heads(
                model, text, sentences=sentences + unseen, length=length, every=every, seed=seed, say=say
            )
        total, _, n_heads, length, width = heads.v.shape
        if not 1 <= unseen < total:
            raise ValueError(f"unseen: expected 1 to {total - 1} of {total} sentences, got {unseen}")
        order = [int(s) for _ in range(epochs) for s in unseen + rng.permutation(total - unseen)]
        reduced = tuple(r for r in reduced if r <= length)
        products = shifted_products(heads, range(unseen, total), taps)
        errors = [ways_at(r, heads, range(unseen), order, products) for r in reduced]
        for at_r, svd in zip(errors, truncated_svd(reduced, heads, range(unseen)), strict=True):
            at_r["svd"] = Errors(*(each.mean(axis=(0, 2)) for each in svd))
        by_iteration = np.stack([errors_by_iteration(r, heads, range(unseen), most_iterations) for r in reduced])
    return Results(
        reduced,
        (n_heads, length, width),
        {way: np.stack([at_r[way].output for at_r in errors]) for way in WAYS},
        {way: np.stack([at_r[way].matrix for at_r in errors]) for way in WAYS},
        most_iterations,
        by_iteration,
        {**sources, "seed": seed, "sentences": total - unseen, "unseen": unseen, "epochs": epochs, "taps": taps},
    )


def from_record(record: Mapping[str, Any]) -> Results:
    """The results in the figure's ``.json``, as they were."""
    return restore(Results, record["results"])


# --- Measuring ------------------------------------------------------------------------------------------------------


def ways_at(r: int, heads: Heads, unseen: Sequence[int], order: Sequence[int], products: Array) -> dict[str, Errors]:
    """All of `WAYS` at one ``R``, but the truncated SVD."""
    _, layers, n_heads, length, _ = heads.k.shape
    pool = linformer.mean_pool(r, length, heads.k.dtype)

    def of_matrices(e: Array, f: Array) -> Errors:
        return errors_of(heads, unseen, MATRICES.applied((e, f)), lambda q, k: linformer.matrix(q, k, e) @ f)

    def of_nystrom(pinv: nystromformer.PseudoInverse, conv: Array | None = None) -> Errors:
        def forward(q: Array, k: Array, v: Array) -> Array:
            out, _ = nystromformer.forward(q, k, v, landmarks=r, pinv=pinv, iterations=ITERATIONS, kernels=jit)
            return out if conv is None else out + convolved(v, conv)

        def matrix(q: Array, k: Array) -> Array:
            p = nystromformer.matrix(q, k, landmarks=r, pinv=pinv, iterations=ITERATIONS)
            return p if conv is None else p + depthwise.matrix(conv, length)

        return errors_of(heads, unseen, forward, matrix)

    start = (np.broadcast_to(pool, (layers, n_heads, r, length)),) * 2
    conv = fit_convolution(r, heads, sorted(set(order)), products)
    return {
        "mean": of_matrices(pool, pool),
        "fitted": of_matrices(*fit(MATRICES, start, heads, order, rate=RATE)),
        "exact": of_nystrom("exact"),
        "cut": errors_of(heads, unseen, lambda q, k, v: cut(q, k, r) @ v, lambda q, k: cut(q, k, r)),
        "nystrom": of_nystrom("iterative"),
        "convolution": of_nystrom("iterative", conv),
        "of_p": errors_of(heads, unseen, lambda q, k, v: of_p(q, k, r) @ v, lambda q, k: of_p(q, k, r)),
    }


def cut(q: Array, k: Array, r: int) -> Array:
    """`nystromformer.matrix` with the exact pseudo-inverse, but of the singular values above `CUT` alone."""
    q_means, k_means = segment_means.forward(q, r)[0], segment_means.forward(k, r)[0]
    inverse, _ = pinv_exact.forward(softmax.matrix(q_means, k_means), rcond=CUT)
    return softmax.matrix(q, k_means) @ (inverse @ softmax.matrix(q_means, k))


def of_p(q: Array, k: Array, r: int) -> Array:
    """The Nyström method as it stands, on ``P (..., N, L)``: ``R`` of its columns and rows, evenly spaced."""
    p = softmax.matrix(q, k)
    places = (np.arange(r) * p.shape[-1] + p.shape[-1] // 2) // r  # (R,), the middles of the segments
    inverse, _ = pinv_iterative.forward(p[..., places[:, None], places], iterations=ITERATIONS)  # (..., R, R)
    return p[..., :, places] @ (inverse @ p[..., places, :])


def errors_by_iteration(r: int, heads: Heads, unseen: Sequence[int], most: int) -> Array:
    """Relative error of the output with each iterate of the pseudo-inverse, ``(I + 1,)``."""
    found = []
    for s in unseen:
        q, k, v, exact = heads.sentence(s)
        q_means, k_means = segment_means.forward(q, r)[0], segment_means.forward(k, r)[0]
        gathered, _ = softmax.forward(q_means, k, v, kernels=jit)  # (T, H, R, M)
        last, saved = pinv_iterative.forward(softmax.matrix(q_means, k_means), iterations=most)
        outs = (softmax.forward(q, k_means, z @ gathered, kernels=jit)[0] for z in (*saved.iterates, last))
        found.append([relative_error(out, exact).mean() for out in outs])
    return np.mean(found, axis=0)


# --- The convolution ------------------------------------------------------------------------------------------------


def convolved(v: Array, conv: Array) -> Array:
    """`depthwise.forward` of ``v (T, H, N, M)`` with ``conv (T, H, K)``: layers are a further axis of heads."""
    y, _ = depthwise.forward(v.reshape(-1, *v.shape[-2:]), conv.reshape(-1, conv.shape[-1]))
    return y.reshape(v.shape)


def shifted_products(heads: Heads, sentences: Iterable[int], taps: int) -> Array:
    """``(T, H, K, K)``: the inner products of ``V`` shifted by all of ``K`` steps, each sentence over ``|O|^2``."""
    pad = [(0, 0), (0, 0), (taps // 2, taps // 2), (0, 0)]
    total = np.zeros((*heads.v.shape[1:3], taps, taps), heads.v.dtype)
    for s in sentences:
        _, _, v, out = heads.sentence(s)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(v, pad), taps, axis=-2)  # (T, H, N, M, K)
        rows = windows.reshape(*v.shape[:2], -1, taps)  # (T, H, N M, K)
        total += rows.swapaxes(-1, -2) @ rows / np.square(out).sum(axis=(-2, -1), keepdims=True)
    return total


def fit_convolution(r: int, heads: Heads, sentences: Iterable[int], products: Array) -> Array:
    """The weights ``(T, H, K)`` with the least squared relative error beside Nyström attention on ``sentences``.

    The error is quadratic in the weights: its second derivative is `shifted_products`, and its slope at 0 is the
    convolution's own gradient.
    """
    _, layers, n_heads, *_ = heads.v.shape
    taps = products.shape[-1]
    slope = np.zeros((layers, n_heads, taps), heads.v.dtype)
    for s in sentences:
        q, k, v, exact = heads.sentence(s)
        out, _ = nystromformer.forward(q, k, v, landmarks=r, iterations=ITERATIONS, kernels=jit)
        left = (exact - out) / np.square(exact).sum(axis=(-2, -1), keepdims=True)  # (T, H, N, M)
        at_zero = np.zeros((layers * n_heads, taps), v.dtype)
        _, saved = depthwise.forward(v.reshape(-1, *v.shape[-2:]), at_zero)
        slope += depthwise.backward(left.reshape(saved.v.shape), saved).conv.reshape(slope.shape)
    return np.linalg.solve(products, slope[..., None])[..., 0]


# --- Drawing --------------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Error of the output, error of the matrix, and the output's by iteration."""
    figure, (left, middle, right) = style.figure(1, 3, height=0.48)
    for axes, errors, title in (
        (left, results.output, "Output, unseen text"),
        (middle, results.matrix, "Matrix applied against $P$"),
    ):
        for way, by_layer in errors.items():
            label, colour, line = WAYS[way]
            axes.plot(results.reduced, by_layer.mean(axis=1), line, color=colour, label=label)
        axes.axhline(1, color=style.GREY, linewidth=0.8)  # what 0 would give
        axes.set(title=title, xlabel="landmarks $R$", xscale="log", yscale="log")
        axes.set_xticks(results.reduced, [str(r) for r in results.reduced])
        axes.minorticks_off()
    left.set_ylabel("relative error")
    _draw_iterations(right, results)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_iterations(axes: Axes, results: Results) -> None:
    steps = range(results.most_iterations + 1)
    colours = style.sequence(len(results.reduced))
    for r, errors, colour in zip(results.reduced, results.by_iteration, colours, strict=True):
        axes.plot(steps, errors, "-", color=colour, label=f"R = {r}")
    axes.axvline(ITERATIONS, ymax=0.5, color=style.GREY, linestyle=":")
    axes.set(title="Output, by iteration", xlabel="iterations", yscale="log")
    axes.set_yticks([0.3, 0.5, 1, 2, 3], ["0.3", "0.5", "1", "2", "3"])
    axes.minorticks_off()
    axes.legend(loc="upper left")
