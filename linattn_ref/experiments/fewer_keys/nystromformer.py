"""Nyström attention's error against landmarks on the heads of a real pretrained network, and others' of equal rank.

As in ``linformer.py``: the network's ``Q``, ``K`` and ``V`` stay as they are, softmax attention is replaced, and the
same sentences are measured. Three questions:

- How far is the output from softmax attention's, at ``R`` landmarks, compared with Linformer with ``R`` mixed keys?
- How far is the matrix that is applied from ``P``? Nothing of rank ``R`` can be nearer than the truncated SVD. And what
  would the Nyström method make of ``P`` itself, if it were known, with the same pseudo-inverse?
- Do more iterations of the pseudo-inverse help?

The convolution's weights, one row per layer and head, are fitted to the error that Nyström attention makes on other
sentences: a least squares problem, solved exactly.

References
----------
Xiong et al. (2021), "Nyströmformer: a Nyström-based algorithm for approximating self-attention", "Linearized
self-attention via Nyström method" (the sections have no numbers).
"""

from collections.abc import Iterable

import numpy as np
from threadpoolctl import threadpool_limits

from linattn_ref.attention import nystromformer, softmax
from linattn_ref.attention.parts import depthwise, pinv_exact, pinv_iterative, segment_means
from linattn_ref.experiments.fewer_keys.linformer import RATE, errors_of
from linattn_ref.experiments.measuring import heads as measured
from linattn_ref.experiments.measuring.heads import Errors, Heads, Random, Source, each_error, errors_by_way, spread
from linattn_ref.experiments.measuring.linformer_fit import MATRICES, begun, fit
from linattn_ref.experiments.publishing.kit import Array, Figure, Ints, Results, labels, over_reduced, style, with_range
from linattn_ref.kernels import jit

__all__ = ["WAYS", "compute", "draw"]

WAYS = {  # name -> (label, colour)
    "mean": ("Linformer, mean pooling", style.SKY),
    "fitted": ("Linformer, fitted E, F", style.BLUE),
    "exact": ("exact pseudo-inverse", style.ORANGE),
    "cut": ("exact, small singular values left out", style.VERMILLION),
    "nystrom": ("Nyström, 6 iterations", style.MECHANISMS["nystromformer"]),
    "convolution": ("Nyström and a fitted convolution", style.GREEN),
    "of_p": ("6 iterations on columns of P", style.PURPLE),
    "svd": ("truncated SVD", style.BLACK),
}
BESIDE_LINFORMER = ("mean", "fitted", "nystrom", "convolution")
PSEUDO_INVERSES = ("exact", "cut", "nystrom", "of_p")
OF_MATRIX = ("exact", "fitted", "mean", "nystrom", "svd")
ITERATIONS = 6
CUT = 1 / 30  # of the largest singular value: six iterations do not reach smaller ones


QUICK = {"heads": Random(), "reduced": (4, 16), "most_iterations": 8, "taps": 5, "unseen": 1, "epochs": 2}


def compute(
    *,
    seed: int = 0,
    heads: Heads | Source | Random = Source(sentences=56),  # noqa: B008  # a tuple
    reduced: Ints = (8, 16, 32, 64, 128),
    most_iterations: int = 16,
    taps: int = 33,
    unseen: int = 8,
    epochs: int = 3,
) -> Results:
    """Measure every way at every ``R``.

    Parameters
    ----------
    seed : int
        Of the choice of sentences and their order.
    heads : Heads, Source or Random
        What to approximate; by default heads of a pretrained network on a text.
    reduced : sequence of int
        ``R``; those above the length are left out.
    most_iterations : int
        Of the pseudo-inverse, in the third panel.
    taps : int
        Weights of the convolution, for each layer and head.
    unseen, epochs
        As in `linformer.compute`.
    """
    with threadpool_limits(1):
        found, order, settings = measured.heads_to_fit(heads, seed, np.random.default_rng(seed), unseen, epochs)
        new, (_, _, n_heads, length, width) = range(unseen), found.v.shape
        reduced = tuple(r for r in reduced if r <= length)
        products = shifted_products(found, sorted(set(order)), taps)
        errors = errors_by_way(WAYS, lambda r: ways_at(r, found, new, order, products), reduced, found, new)
        by_iteration = np.stack([errors_by_iteration(r, found, new, most_iterations) for r in reduced])
    return Results(  # relative errors in the Frobenius norm
        reduced=reduced,  # (K,), R
        shape=(n_heads, length, width),  # (H, N, M)
        **errors,
        most_iterations=most_iterations,  # I
        by_iteration=spread(by_iteration),  # error of the output after 0 to I iterations, (K, I + 1, ...)
        settings={**settings, "taps": taps},
    )


# --- Measuring ------------------------------------------------------------------------------------------------------


def ways_at(r: int, heads: Heads, unseen: Ints, order: Ints, products: Array) -> dict[str, Errors]:
    """The errors of output and matrix, each ``(S, T, H)``, of all `WAYS` but the truncated SVD at one ``R``."""
    length = heads.k.shape[-2]

    def of_nystrom(pinv: nystromformer.PseudoInverse, conv: Array | None = None) -> Errors:
        def forward(q: Array, k: Array, v: Array) -> Array:
            out, _ = nystromformer.forward(q, k, v, landmarks=r, pinv=pinv, iterations=ITERATIONS, kernels=jit)
            return out if conv is None else out + convolved(v, conv)

        def matrix(q: Array, k: Array) -> Array:
            p = nystromformer.matrix(q, k, landmarks=r, pinv=pinv, iterations=ITERATIONS)
            return p if conv is None else p + depthwise.matrix(conv, length)

        return each_error(heads, unseen, forward, matrix)

    conv = fit_convolution(r, heads, sorted(set(order)), products)
    _, pooled = begun("none", r, heads)
    return {
        "mean": errors_of(pooled, heads, unseen),
        "fitted": errors_of(fit(MATRICES, pooled, heads, order, rate=RATE), heads, unseen),
        "exact": of_nystrom("exact"),
        "cut": each_error(heads, unseen, lambda q, k, v: cut(q, k, r) @ v, lambda q, k: cut(q, k, r)),
        "nystrom": of_nystrom("iterative"),
        "convolution": of_nystrom("iterative", conv),
        "of_p": each_error(heads, unseen, lambda q, k, v: of_p(q, k, r) @ v, lambda q, k: of_p(q, k, r)),
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


def errors_by_iteration(r: int, heads: Heads, unseen: Ints, most: int) -> Array:
    """Relative error of the output with each iterate of the pseudo-inverse, ``(I + 1, S, T, H)``."""
    found = []
    for s in unseen:
        q, k, v, exact = heads.sentence(s)
        q_means, k_means = segment_means.forward(q, r)[0], segment_means.forward(k, r)[0]
        gathered, _ = softmax.forward(q_means, k, v, kernels=jit)  # (T, H, R, M)
        last, saved = pinv_iterative.forward(softmax.matrix(q_means, k_means), iterations=most)
        outs = (softmax.forward(q, k_means, z @ gathered, kernels=jit)[0] for z in (*saved.iterates, last))
        found.append([measured.relative_error(out, exact) for out in outs])  # (I + 1, T, H)
    return np.stack(found, axis=1)


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
    """The weights ``(T, H, K)`` that leave the least squared relative error of Nyström attention on ``sentences``.

    The error is quadratic in the weights. Half its second derivative is `shifted_products`; half its slope at 0, with
    the sign changed, is the convolution's own gradient for the output that is missing.
    """
    _, layers, n_heads, *_ = heads.v.shape
    taps = products.shape[-1]
    slope = np.zeros((layers, n_heads, taps), heads.v.dtype)
    for s in sentences:
        q, k, v, exact = heads.sentence(s)
        out, _ = nystromformer.forward(q, k, v, landmarks=r, iterations=ITERATIONS, kernels=jit)
        left = (exact - out) / np.square(exact).sum(axis=(-2, -1), keepdims=True)  # (T, H, N, M)
        _, saved = depthwise.forward(v.reshape(-1, *v.shape[-2:]), np.zeros((layers * n_heads, taps), v.dtype))
        slope += depthwise.backward(left.reshape(saved.v.shape), saved).conv.reshape(slope.shape)
    return np.linalg.solve(products, slope[..., None])[..., 0]


# --- Drawing --------------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Nyström attention in one pretrained network whose weights stay as they are: all 72 heads, eight texts of 512
    tokens to which nothing was fitted. Lines are medians; a bar at the right is the middle 80%
    of heads and texts, at the largest size. Above left: error
    of the attention's output against the number of landmarks, compared with Linformer with as many mixed keys. Six
    iterations of the pseudo-inverse do better than Linformer, even fitted. A convolution along the values, fitted on
    other text, helps most where the error is large. Above right: the exact pseudo-inverse is worse, and off by
    several times the output in some heads. It is nearly as good as six iterations (1 to 4 percent worse) if it leaves
    out singular values below a thirtieth of the largest, which these do not reach either. The Nyström method with R
    columns of P itself is no better than with landmarks. Below left: error of the matrix applied; no matrix of rank R
    comes below the truncated SVD's. Below right: error of the output by iteration (dotted: six); the least is at seven
    to nine, and more make it worse.
    """
    figure, ((left, right), (matrix, iterations)) = style.figure(2, 2, height=0.8)
    for axes, errors, names in (
        (left, results.output, BESIDE_LINFORMER),
        (right, results.output, PSEUDO_INVERSES),
        (matrix, results.matrix, OF_MATRIX),
    ):
        over_reduced(axes, results.reduced, errors, {way: WAYS[way] for way in names}, level=(1.0, "answering 0"))
        axes.set_xlabel("landmarks $R$")
    left.set(title="Output, against Linformer", ylabel="relative error")
    left.set_yticks([0.2, 0.5, 1], ["0.2", "0.5", "1"])
    right.set_title("Output, by way of inverting")
    matrix.set(title="Matrix", ylabel="relative error")

    steps = range(results.most_iterations + 1)
    shown = results.reduced[::2]
    for i, colour in enumerate(style.sequence(len(shown))):
        of_r = Results({name: getattr(results.by_iteration, name)[2 * i] for name in ("low", "median", "high")})
        with_range(iterations, steps, of_r, "-", colour=colour, at=steps[-1] + 0.7 * (i + 1), label=f"$R$ = {shown[i]}")
    iterations.axvline(ITERATIONS, color=style.GREY, linestyle=":")
    iterations.set(title="Output, by iteration", xlabel="iterations", yscale="log")
    labels.ticks(iterations, [0.2, 0.5, 1, 2], along="y")
    labels.at_ends(iterations, rows=2)

    return figure
