"""Reformer: tokens are sorted by a hash, and meet those beside them."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.random import Generator
from numpy.typing import NDArray

from linattn_ref.attention import lsh_hashing
from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.schematics.arrays import Q
from linattn_ref.experiments.schematics.drawing import Cells, Sheet, becomes, tint

__all__ = ["Results", "compute", "draw"]

TOKENS, CHUNK, BUCKETS = 16, 4, 4


class Results(NamedTuple):
    sizes: dict[str, int]
    buckets: NDArray[Any]  # (N,)
    order: NDArray[Any]  # (N,), the token at each place in sorted order
    pairs: NDArray[Any]  # (N, N), as `pairs.paint` makes them


def compute(*, rng: Generator) -> Results:
    """Random vectors, hashed, sorted, and who meets whom."""
    x = rng.standard_normal((TOKENS, 8))
    buckets = lsh_hashing.buckets(x, lsh_hashing.draw_rotations(1, 8, BUCKETS, rng))  # (1, N)
    order = lsh_hashing.order_by_bucket(buckets)  # (1, N)
    met = lsh_hashing.pattern_of(order, CHUNK)  # (N, N)
    return Results(
        {"N": TOKENS, "L": TOKENS, "D": TOKENS // 3}, buckets[0], order[0], paint([("window or block", met)])
    )


def draw(results: Results) -> Figure:
    """Reformer's LSH attention, one round of hashing. Queries and keys are the same vectors. A random hash gives
    each token a bucket (its number and shade); tokens are sorted by bucket and cut into chunks, and each attends to
    its own chunk and to the one before, but not to itself: a band in sorted order, scattered pairs in the order of
    the text.

    Tokens in the order of the text and sorted, a line from each to its place; then the pairs in both orders.
    """
    sheet = Sheet(results.sizes, unit=9 / TOKENS)
    sheet.row(0, 0, Q._replace(name="$X$"), becomes("hash", 3.0))
    place = np.argsort(results.order)
    for token, bucket in enumerate(results.buckets):
        upper, lower = 10 + 1.3 * token, 9.5 + 1.3 * place[token] + 0.7 * (place[token] // CHUNK)
        colour = tint(style.ROLES["queries"], 0.12 + 0.2 * bucket)
        for x, y in ((upper, 3.2), (lower, -3.2)):
            sheet.square(x, y, colour, size=1.3)
            sheet.text(x, y, str(bucket), size=1.2)
        sheet.line((upper, 2.4), (lower, -2.4), color=style.GREY)
    sheet.text(20, 5, "buckets, in the order of the text")
    sheet.text(20, -5, "sorted by bucket, in chunks")
    x = sheet.row(35, 0, Cells(results.pairs[results.order][:, results.order], label="pairs, sorted"))
    sheet.row(x + 4, 0, Cells(results.pairs, label="as in the text"))
    return sheet.figure("Reformer: a hash decides which tokens meet")
