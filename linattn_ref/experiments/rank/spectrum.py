"""Self-attention is low rank: the figure that Linformer's argument rests on, drawn from a real transformer.

The normalised cumulative singular value ``c_k = sum_{i<=k} sigma_i / sum_i sigma_i`` of the context mapping matrix
``P`` against ``k``, one line per layer (mean over sentences and heads, the band holds the middle half of the heads);
the same for the network before training and for random queries and keys; and ``c_k`` at one ``k`` by layer and head.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", Figure 1.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from linattn_ref.data.fetch import PathLike
from linattn_ref.experiments.measuring.measurements import measure_all
from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Results, style
from linattn_ref.experiments.rank import spectrum_inputs
from linattn_ref.op.options import check_choice
from linattn_ref.telling import Say, silent
from linattn_ref.theory.spectrum import METHODS, Method, cumulative_share, rank_for_share, singular_values
from linattn_ref.visible import visible

__all__ = ["compute", "draw", "table"]

SHARE = 0.9  # of the sum of singular values, which a rank holds
BAND = (0.25, 0.75)  # the quantiles of the heads between which the band lies
# Of the baselines, one line per layer, and of the model's mean to compare with: name, dashes and colour
LOOKS = {"untrained": ("untrained", "-", style.GREEN), "given": ("trained", "-", style.BLACK)}
LOOKS["gaussian"] = ("Gaussian", "--", style.VERMILLION)


QUICK = {"sentences": 2, "length": 128, "baselines": 1}


def compute(
    *,
    sentences: int = 128,
    length: int = 512,
    baselines: int = 2,
    seed: int = 0,
    method: Method = "svd",
    model: PathLike | None = None,
    text: PathLike | None = None,
    arrays: PathLike | None = None,
    workers: int = 1,
    say: Say = silent,
    **where: Any,
) -> Results:
    """The singular values of every attention matrix of a model on some sentences, summed up.

    Parameters
    ----------
    sentences, length : int
        How many sentences, if the text has as many, and how many tokens each.
    baselines : int
        Sentences for the untrained network and draws of random queries and keys; 0 for no baselines.
    seed : int
    method : {"svd", "gram"}
        See `linattn_ref.theory.spectrum.singular_values`.
    model, text : path, optional
        See `spectrum_inputs.from_model`.
    arrays : path, optional
        Use these matrices, not a model's: see `spectrum_inputs.from_arrays`.
    parts, resume, workers, dask, progress
        The folder where results are kept as they come (None: nowhere), and who computes them: see `measure_all`.
    say : callable
        Told, a line each, what is fetched and what is not as one might expect in the text or the matrices.

    Returns
    -------
    Results
        The same bits for the same arguments before ``parts``, whoever computes them, on the same machine.
    """
    check_choice("method", method, METHODS)
    if arrays is not None and (model or text):
        raise ValueError("arrays: they are their own matrices; leave out model and text")
    with threadpool_limits(1):
        common: dict[str, Any] = {"baselines": baselines, "seed": seed, "say": say}
        if arrays is not None:
            inputs, read = spectrum_inputs.from_arrays(arrays, **common), {}
        else:
            inputs = spectrum_inputs.from_model(model, text, sentences=sentences, length=length, **common)
            read = {"sentences": len(inputs.tasks["given"]), "length": length}
        settings = {**read, **inputs.sources, "baselines": baselines, "seed": seed, "method": method}
        calls = {
            f"{group}-{i:04}": (spectrum_inputs.values_of, method, *task)
            for group, tasks in inputs.tasks.items()
            for i, task in enumerate(tasks)
        }
        values = measure_all(calls, settings, workers=workers, unit="sentence", **where)
        loss = measure_gram_loss(inputs.tasks["given"][0]) if method == "gram" else None
    return summarise(inputs, values, settings, loss)


def summarise(
    inputs: spectrum_inputs.Inputs, values: Mapping[str, Array], settings: dict[str, Any], loss: Results | None
) -> Results:
    """From singular values ``(T, H, K)`` by task to the numbers of the figure."""
    k = max(1, min(inputs.shape[1:]) // 4)
    curves = {}
    for group, tasks in inputs.tasks.items():
        if tasks:
            stack = np.stack([values[f"{group}-{i:04}"] for i in range(len(tasks))])  # (S, T, H, K)
            curves[group] = curves_of(inputs.title if group == "given" else group, stack, k)
    return Results(
        curves=curves,  # "given", and the baselines "untrained" and "gaussian"
        shape=inputs.shape,  # (H, N, L)
        k=k,  # of the heat map
        share=SHARE,
        band=BAND,
        settings=settings,
        gram_loss=loss,
    )


def curves_of(title: str, values: Array, k: int) -> Results:
    """Sum up the singular values ``(S, T, H, K)`` of one group."""
    share = cumulative_share(values)  # (S, T, H, K)
    by_head = share.mean(axis=0)  # (T, H, K)
    low, high = np.quantile(by_head, np.asarray(BAND, by_head.dtype), axis=1)  # (T, K)
    rank = rank_for_share(values, SHARE).mean(axis=0)  # (T, H)
    return Results(
        title=title,
        sentences=len(values),
        mean=by_head.mean(axis=1),  # (T, K), c_k by layer, over sentences and heads
        low=low,  # (T, K), the quantile BAND[0] of the heads' means over sentences
        high=high,  # (T, K), the quantile BAND[1]
        at_k=by_head[..., k - 1],  # (T, H), over sentences
        rank=rank,  # (T, H), the rank that holds SHARE of the spectrum, over sentences
    )


def measure_gram_loss(task: spectrum_inputs.Task) -> Results:
    """What the Gram matrix's eigenvalues lose: the first head of each layer, computed three ways."""
    of_layers, *arguments = task
    matrices = np.stack([p[0] for p in of_layers(*arguments)])  # (T, N, L)
    exact = singular_values(matrices.astype(np.float64))  # (T, K)

    def errors(method: Method) -> tuple[float, float]:
        """The largest of ``c_k``; and of a singular value, relative to the matrix's largest."""
        values = singular_values(matrices, method=method)
        curve = np.abs(cumulative_share(values) - cumulative_share(exact)).max()
        return float(curve), float((np.abs(values - exact) / exact[:, :1]).max())

    (curve_svd, value_svd), (curve, value) = errors("svd"), errors("gram")
    return Results(matrices=len(matrices), curve=curve, curve_svd=curve_svd, value=value, value_svd=value_svd)


def table(results: Results) -> str:
    """The main numbers as lines of text: by layer, over all layers, and the baselines."""
    heads, n, n_keys = results.shape
    given = results.curves["given"]
    rows = [(f"layer {layer}", given.at_k[layer], given.rank[layer]) for layer in range(len(given.at_k))]
    rows.append(("all layers", given.at_k, given.rank))
    rows += [(group, curves.at_k, curves.rank) for group, curves in results.curves.items() if group != "given"]
    size = f"{given.sentences} sentences x {len(given.at_k)} layers x {heads} heads"
    columns = f"share at k={results.k}", "lowest, highest head", f"rank for {results.share:.0%}"
    lines = [f"{given.title}: {size}, matrices {n} x {n_keys}", "", _row("", *columns)]
    for name, at_k, rank in rows:
        lines.append(_row(name, f"{at_k.mean():.3f}", f"{at_k.min():.3f}, {at_k.max():.3f}", f"{rank.mean():.1f}"))
    if results.gram_loss is not None:
        loss = results.gram_loss
        lines.append(
            f"method gram on {loss.matrices} of these matrices, largest error: of the curve {loss.curve:.1e} (svd "
            f"{loss.curve_svd:.1e}), of a singular value over the largest {loss.value:.1e} (svd {loss.value_svd:.1e})"
        )
    return "\n".join(lines)


def _row(name: str, share: str, extremes: str, rank: str) -> str:
    return f"{name:<10}  {share:>14}  {extremes:>20}  {rank:>12}"


def draw(results: Results) -> Figure:
    """Self-attention is low rank: the share of an attention matrix's singular values that the k largest hold. Left: a
    line is a layer's mean over sentences and heads, its band the middle half of the heads. Middle: the mean of the
    left, the same network with random weights, and random queries and keys. Right: the share at the dotted line by
    layer and head.
    """
    given = results.curves["given"]
    baselines = {name: curves for name, curves in results.curves.items() if name != "given"}
    widths = [1, 1, 1.45] if baselines else [1, 1.45]
    figure, axes = style.figure(1, len(widths), height=0.36 if baselines else 0.45, width_ratios=widths)
    k = 1 + np.arange(given.mean.shape[-1])
    layers = len(given.mean)
    for layer, shade in enumerate(style.sequence(layers)):
        mean = given.mean[layer]  # (K,)
        axes[0].fill_between(k, given.low[layer], given.high[layer], color=shade, alpha=0.18, linewidth=0)
        axes[0].plot(k, mean, color=shade, label=f"{_two_digits(mean[results.k - 1])}  layer {layer}")
    _frame(axes[0], results, columns=1 + (layers - 1) // 8)
    axes[0].set_title(visible(given.title), parse_math=False)  # a file may be called "$x$"
    axes[0].set_ylabel("normalised cumulative\nsingular value")
    if baselines:
        of = {"given": given.mean.mean(axis=0, keepdims=True)} | {name: x.mean for name, x in baselines.items()}
        for group, (label, dashes, colour) in LOOKS.items():
            if group in of:
                at_index = _two_digits(of[group][:, results.k - 1].mean())
                axes[1].plot(k, of[group][0], dashes, color=colour, label=f"{at_index}  {label}")
                axes[1].plot(k, of[group][1:].T, dashes, color=colour)
        _frame(axes[1], results)
        axes[1].set_title("Baselines")
        axes[1].tick_params(labelleft=False)
    _draw_heat_map(figure, axes[-1], results)
    return figure


def _frame(axes: Axes, results: Results, columns: int = 1) -> None:
    """The axes of a panel of curves, with a mark at the heat map's index and the values there in the legend."""
    last = min(results.shape[1:])
    axes.axvline(results.k, color=style.BLACK, linestyle=":", linewidth=0.6 * axes.get_lines()[0].get_linewidth())
    axes.set(xlabel="index $k$", xlim=(0, last), ylim=(0, 1.01), xticks=sorted({0, results.k, last // 2, last}))
    frame: dict[str, Any] = {"frameon": True, "framealpha": 1, "edgecolor": "none", "borderpad": 0.1}
    axes.legend(title=f"at $k$ = {results.k}", loc="lower right", ncols=columns, alignment="left", **frame)


def _two_digits(share: Any) -> str:
    return f"{share:.2f}".removeprefix("0")


def _draw_heat_map(figure: Figure, axes: Axes, results: Results) -> None:
    """The share at one index by layer and head: a number in each cell, or a colour bar where that could not be read."""
    shares = results.curves["given"].at_k  # (T, H)
    layers, heads = shares.shape
    image = axes.imshow(shares, aspect="auto", origin="lower", vmax=1)
    axes.set(title=f"Value at $k$ = {results.k}", xlabel="head", ylabel="layer")
    axes.set(xticks=range(0, heads, 1 + heads // 20), yticks=range(0, layers, 1 + layers // 20))
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    tick_size = float(axes.xaxis.get_ticklabels()[0].get_fontsize())
    size = min(tick_size, 0.16 * 72 * figure.get_figwidth() / heads)  # points: three signs must fit in a cell
    if size < 0.6 * tick_size:
        figure.colorbar(image, ax=axes, pad=0.02, aspect=30).outline.set_visible(False)
        return
    for (layer, head), rgba in zip(np.ndindex(layers, heads), image.to_rgba(shares).reshape(-1, 4), strict=True):
        text = _two_digits(shares[layer, head])
        axes.text(head, layer, text, ha="center", va="center", fontsize=size, color=style.text_colour(rgba))
