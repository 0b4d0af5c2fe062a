"""The sparse patterns as their papers draw them: Longformer's four, BigBird's four, Sparse Transformer's two.

Each picture is made from `linattn_ref.attention.patterns`, the same matrices that the tests hold the mechanisms to.
"""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from linattn_ref.attention.sparse import patterns
from linattn_ref.attention.sparse.bigbird import draw_random_blocks
from linattn_ref.experiments.publishing.kit import PAIRS, Figure, Generator, Mask, NDArray, Results, paint, setp, style

__all__ = ["Picture", "compute", "draw", "draw_picture"]

SEEN, GLOBAL, RANDOM, SECOND, NEAR, ITSELF = list(PAIRS)[1:]  # from "a pair" to "the query itself"


class Picture(NamedTuple):
    title: str
    reasons: NDArray[np.int8]  # (rows, columns), as `pairs.paint` makes them


def compute(*, rng: Generator) -> Results:
    """The three rows of pictures.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws BigBird's random blocks.
    """
    return Results(
        longformer=longformer_pictures(16),  # tokens
        bigbird=bigbird_pictures(16, rng),  # blocks
        sparse_transformer=sparse_transformer_pictures(6, 27),  # pixels of 6 * 6, and what number 27 sees
    )


def longformer_pictures(n: int) -> list[Picture]:
    """Full, window, dilated window, window and global tokens."""
    window, tokens = 2, [0, n // 3, n - 1]
    near, far = (patterns.local(n, window=window, dilation=dilation) for dilation in (1, 2))
    everything = patterns.longformer(n, window=window, global_tokens=tokens)
    own = np.eye(n, dtype=bool)
    return [
        Picture("full", paint([(SEEN, np.ones((n, n), bool)), (ITSELF, own)])),
        Picture(f"window, w = {window}", paint([(NEAR, near), (ITSELF, own)])),
        Picture("dilated, d = 2", paint([(NEAR, far), (ITSELF, own)])),
        Picture("global and window", paint([(GLOBAL, everything), (NEAR, near), (ITSELF, own)])),
    ]


def bigbird_pictures(n: int, rng: Generator) -> list[Picture]:
    """Random, window, global, and their union, with the same random blocks; a place is a block."""
    whole, own = (0, 1), np.eye(n, dtype=bool)
    near = patterns.bigbird(n, block=1, window_blocks=3, global_blocks=())
    is_whole = np.isin(np.arange(n), whole)
    star = is_whole[:, None] | is_whole
    drawn = draw_random_blocks(n, 2, rng, 3, whole)
    random = patterns.bigbird(n, block=1, window_blocks=1, global_blocks=(), random_blocks=drawn) & ~own
    everything = patterns.bigbird(n, block=1, global_blocks=whole, random_blocks=drawn)
    return [
        Picture("random, r = 2", paint([(RANDOM, random)])),
        Picture("window of 3 blocks", paint([(NEAR, near), (ITSELF, own)])),
        Picture("global, g = 2", paint([(GLOBAL, star)])),
        Picture("BigBird", paint([(RANDOM, everything), (GLOBAL, star), (NEAR, near), (ITSELF, own)])),
    ]


def sparse_transformer_pictures(side: int, query: int) -> list[Picture]:
    """Strided and fixed, each as a matrix and as what one pixel sees."""
    n = side * side
    first_heads: dict[patterns.Kind, Mask] = {
        "strided": patterns.sparse_transformer(n, kind="local_only", stride=side),
        "fixed": patterns.block_local(n, block=side, causal=True),
    }
    pictures = []
    for kind, near in first_heads.items():
        both = patterns.sparse_transformer(n, kind=kind, stride=side)
        reasons = paint([(SECOND, both), (NEAR, near), (ITSELF, np.eye(n, dtype=bool))])
        pictures += [
            Picture(f"{kind}, l = {side}", reasons),
            Picture(f"what pixel {query} sees", reasons[query].reshape(side, side)),
        ]
    return pictures


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Which query (row) sees which key (column). First row: Longformer's Figure 2. Second row: BigBird's Figure 1,
    one square per block; the last panel is the union of the three before it. Third row: Sparse Transformer's Figure
    3, causal, the two heads in two colours. Next to each matrix is what one query of it sees if the tokens are the
    pixels of a picture, read row by row.
    """
    figure, axes = style.figure(3, 4, height=0.93)
    for row, (paper, pictures) in zip(axes, results.items(), strict=True):
        for panel, picture in zip(row, pictures, strict=True):
            draw_picture(panel, picture)
        row[0].set_ylabel(f"{paper.replace('_', ' ').title().replace('Bigbird', 'BigBird')}\nquery i")
    setp(axes[-1][::2], xlabel="key j")
    colours = [Patch(facecolor=colour, edgecolor=style.GREY, lw=0.4) for colour in PAIRS.values()]
    figure.legend(colours[1:], list(PAIRS)[1:], loc="outside lower center", ncols=3)
    return figure


def draw_picture(axes: Any, picture: Picture) -> None:
    """One pattern, with lines between the places."""
    rows, columns = picture.reasons.shape
    colours = ListedColormap(list(PAIRS.values()))
    axes.imshow(picture.reasons, cmap=colours, vmin=-0.5, vmax=len(PAIRS) - 0.5, interpolation="nearest")
    axes.grid(False)
    axes.set(title=picture.title, xticks=[], yticks=[])
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(True, which="minor", color="#DDDDDD", lw=0.3)
    axes.set_axisbelow(False)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(True)
