"""Where attention looks in a network that has learned to copy: the diagonal, with softmax and with the linear kernel.

In the second copy, the row that reads ``w_j`` has to tell ``w_(j+1)``, which stands exactly ``n`` places before: the
keys it needs lie on a diagonal. The networks are those of the committed weights (`duplication_curves`: seed 0).

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.1.1.
"""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from linattn_ref.attention import softmax
from linattn_ref.data.duplication import Words
from linattn_ref.data.duplication import draw as draw_words
from linattn_ref.experiments.learning import duplication, runs
from linattn_ref.experiments.learning.duplication import Shape
from linattn_ref.experiments.publishing.kit import Array, Figure, NDArray, Results, setp, style
from linattn_ref.models import causal
from linattn_ref.models.causal import Model, Params

__all__ = ["compute", "draw", "learned", "weights_of"]

MECHANISMS = ("softmax", "linear")
WORD = 20  # symbols of the word in the picture


def learned(attention: str, record: Path = runs.RECORDS / "duplication.json") -> tuple[Params, Model]:
    """The committed network of a mechanism."""
    rng = np.random.default_rng(0)
    params = duplication.start(attention, Shape(), rng)
    params = runs.kept_weights(runs.beside(record, f"{attention}-0"), params)
    return params, duplication.model_of(attention, Shape(), rng)


def compute(*, seed: int = 0, count: int = 512, record: Path = runs.RECORDS / "duplication.json") -> Results:
    """Weights of one word, and shares over ``count`` others."""
    rng, length = np.random.default_rng(seed), Shape().length
    words = draw_words(rng, count=count, length=length)
    shown = rng.integers(1, duplication.SYMBOLS + 1, size=WORD)
    read = np.concatenate([shown, [0], shown])
    networks = {name: _network(*learned(name, record), words, read) for name in MECHANISMS}
    return Results(read=read, networks=networks)  # read: (N,), the word in the picture


def _network(params: Params, model: Model, words: Words, read: NDArray[np.int64]) -> Results:
    scores, saved = causal.forward(words.read, params, model)
    right = (scores.argmax(axis=-1) == words.told) | ~words.counts  # (count, S)
    copied, separator = looked_for(words)
    p = weights_of(saved)  # (count, layers, heads, S, S)
    rows = copied.sum(axis=(-1, -2))[:, None, None]
    on_copied, on_separator = (
        ((p * mask[:, None, None]).sum(axis=(-1, -2)) / rows).mean(axis=0) for mask in (copied, separator)
    )
    _, of_shown = causal.forward(read[None], params, model)
    return Results(
        p=np.round(weights_of(of_shown)[0], 3),  # (layers, heads, N, N), of the word in the picture
        on_copied=on_copied,  # (layers, heads), the share of the weight on the symbol to be told; of other words
        on_separator=on_separator,  # (layers, heads)
        symbols=float(right[words.counts].mean()),  # the share of those words' symbols that is told
        words=float(right.all(axis=-1).mean()),  # and of the words that are told from the first symbol to the last
    )


def looked_for(words: Words) -> tuple[Array, Array]:
    """For each row of the second copy, the key it has to find, and the separator: ``(count, S, S)``."""
    copied, separator = np.zeros((2, *words.read.shape, words.read.shape[1]), bool)
    for counts, to, at in zip(words.counts, copied, separator, strict=True):
        n = counts.sum() - 1
        rows = np.arange(n, 2 * n)
        to[rows, rows - n] = True
        at[rows, n] = True
    return copied, separator


def weights_of(saved: causal.Saved) -> Array:
    """The matrices that attention has applied, without them, in a forward pass: ``(B, layers, heads, N, N)``."""
    return np.stack([_matrix(block.attention.attention) for block in saved.blocks], axis=1)


def _matrix(saved: Any) -> Array:
    if not hasattr(saved, "phi_q"):
        return softmax.matrix(saved.q, saved.k, causal=True, scale=saved.scale)
    similarity = np.tril(saved.phi_q @ saved.phi_k.swapaxes(-1, -2))
    return similarity / similarity.sum(axis=-1, keepdims=True)


def draw(results: Results) -> Figure:
    """Attention of two networks that have learned to copy, reading a word of 20 symbols, the separator, and the
    word again; each layer and head, one query per row. Above softmax, below the linear kernel. The rows between the
    lines are to find a symbol, and the keys that have it lie on the diagonal n places back. In each picture: the
    share of the weight that lies there, and on the separator, the mean over those rows of 512 other words. The
    colours go from 0 to the largest weight of a picture, at most 1.
    """
    layers, heads = next(iter(results.networks.values())).on_copied.shape
    figure, axes = style.figure(len(results.networks), layers * heads, height=0.56, sharex=True, sharey=True)
    n = len(results.read) // 2
    for (name, network), row in zip(results.networks.items(), axes, strict=True):
        for panel, (layer, head) in zip(row, np.ndindex(layers, heads), strict=True):
            panel.imshow(network.p[layer, head], cmap="magma_r", vmin=0, interpolation="nearest")
            panel.grid(False)
            panel.hlines([n - 0.5, 2 * n - 0.5], -0.5, 2 * n + 0.5, color=style.GREY, linewidth=0.6)
            panel.set(xticks=[0, n, 2 * n], yticks=[0, n, 2 * n])
            on = network.on_copied[layer, head], network.on_separator[layer, head]
            panel.set_title(f"{name}, layer {layer + 1}, head {head + 1}", fontsize="small")
            size = matplotlib.rcParams["legend.fontsize"]
            told = "n back: {:.0%}\nseparator: {:.0%}".format(*on)
            panel.text(0.97, 0.95, told, transform=panel.transAxes, ha="right", va="top", fontsize=size)
        row[0].set_ylabel("query")
    setp(axes[-1], xlabel="key")
    return figure
