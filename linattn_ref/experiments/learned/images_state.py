"""What a state of linear attention holds while an image is drawn.

Some rows of a digit are read; all that is left of them is two sums per head, ``S (D, D)`` and ``z (D,)``. From copies
of that state the rest is drawn many times: the mean of what is drawn is what the state knows of it. Beside it, how many
directions the sums of each layer have taken up, counted as the effective rank of ``S``: with ``p`` its squared singular
values over their sum,

    exp(-sum_i p_i log p_i)                                  (1)

which is ``r`` where ``r`` singular values are equal and the others 0. A network that has learned nothing is beside it:
features are positive, so all sums have a large part in common, and training has to bring about the rest.
"""

import numpy as np

from linattn_ref.experiments.learned import drawing
from linattn_ref.experiments.learned.images_drawn import from_text, to_text
from linattn_ref.experiments.learning import images
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, NDArray, Results, labels, style
from linattn_ref.models import causal

__all__ = ["compute", "draw", "effective_rank"]

ROWS = (0, 4, 8, 12, 16, 20, 24)  # that are read
COUNT = 64  # of ways to go on


def compute(*, rng: Generator, quick: bool = False) -> Results:
    """Read, and draw the rest.

    Parameters
    ----------
    rng : numpy.random.Generator
    quick : bool
        Of an image that is drawn, not fetched, and fewer of each: for tests.
    """
    network = drawing.load()
    original = drawing.draw(network, 1, rng)[0] if quick else images.read(None).test[0]
    chosen, count = (ROWS[3:5], 2) if quick else (ROWS, COUNT)
    side = network.shape[0]
    drawn = [drawing.draw(network, count, rng, begun=original[:rows].ravel()) for rows in chosen]
    facts, flat = network.facts, original.ravel().astype(np.int64)
    begun = images.start(facts["attention"], network.head, images.Shape(**facts["shape"]), side, rng)
    ranks, size = _ranks(network, flat, side)
    before, _ = _ranks(network._replace(params=begun), flat, side)
    heads, layers, width = network.model.heads, len(network.params.blocks), len(network.params.norm.gain)
    return Results(
        original=to_text(original[None]),  # one image, as text
        rows=chosen,
        means=to_text(np.mean(drawn, axis=1).round().astype(np.uint8)),  # an image for each of `rows`
        pixels=np.arange(side, len(flat) + 1, side),  # (T,), read
        ranks=ranks,  # (T, layers), effective, the mean over heads
        before=before,  # (T, layers), the same of a network as training begins with it
        state_bytes=size,
        cache_bytes=2 * layers * heads * side * side * (width // heads) * 4,  # that softmax attention would keep
    )


def _ranks(network: drawing.Network, pixels: NDArray[np.int64], side: int) -> tuple[Array, int]:
    """Effective ranks after each row, ``(side, layers)``, and the bytes of the state."""
    tokens = images.shifted(pixels[None])
    state = causal.init_state(1, network.params, network.model)
    ranks = []
    for first in range(0, len(pixels), side):
        state = causal.read(tokens[:, first : first + side], network.params, state, network.model)
        ranks.append([effective_rank(one.s[0]).mean() for one in state.blocks])
    return np.array(ranks), sum(one.s.nbytes + one.z.nbytes for one in state.blocks)


def effective_rank(s: Array) -> Array:
    """Equation (1) of matrices ``(..., D, M)``."""
    p = np.linalg.svd(s, compute_uv=False).astype(float) ** 2
    p /= p.sum(axis=-1, keepdims=True)
    return np.exp(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1))  # (1)


def draw(results: Results) -> Figure:
    """What two sums per head hold of a digit. Top: some rows of a test image are read. The picture is the mean of
    what the network draws from the state after them, 64 times; at 0 rows it is the mean of all that it draws. Bottom:
    the effective rank of the sums S along the pixels, the mean of a layer's two heads of width 32; grey: of a network
    that has learned nothing, all its layers. The state is as large after 784 pixels as after one.
    """
    figure, axes = style.figure(2, 1 + len(results.rows), height=0.42, height_ratios=(1, 1.3))
    (original,), means = from_text(results.original), from_text(results.means)
    titles = "the image", *(f"{rows} rows" for rows in results.rows)
    for one, picture, title in zip(axes[0], (original, *means), titles, strict=True):
        one.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="none")
        one.set(title=title, xticks=[], yticks=[])
    for one, rows in zip(axes[0, 1:], results.rows, strict=True):
        one.axhline(rows - 0.5, color=style.ORANGE)
    for one in axes[1]:
        one.remove()
    below = figure.add_subplot(axes[1, 0].get_subplotspec().get_gridspec()[1, :])
    for layer, colour in enumerate(style.sequence(results.ranks.shape[1])):
        below.plot(results.pixels, results.ranks[:, layer], color=colour)
    trained = list(below.lines)
    below.plot(results.pixels, results.before, color=style.GREY, linestyle="--", linewidth=0.6)
    below.set(xlabel="pixels read", ylabel="effective rank", ylim=(0, None))
    labels.at_ends(below, trained, [f"layer {layer + 1}" for layer in range(results.ranks.shape[1])], rows=2)
    figure.draw_without_rendering()  # beside pictures of a fixed shape a label has room the second time
    return figure
