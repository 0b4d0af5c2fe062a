"""The mechanisms with few pairs: scores where there is a pair, and one softmax per row; who is sorted beside whom."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from linattn_ref.attention.parts import lsh_hashing
from linattn_ref.attention.sparse import patterns
from linattn_ref.attention.sparse.bigbird import draw_random_blocks
from linattn_ref.experiments.publishing.kit import PAIRS, Generator, Mask, NDArray, Results, paint, style
from linattn_ref.experiments.schematics.drawing import Cells, Picture, Sheet, picture, tint
from linattn_ref.experiments.schematics.parts import EQUALS, PRODUCT, K, O, Q, V, becomes

__all__ = ["CHUNK", "bigbird", "block_local", "local", "longformer", "reformer", "sparse_transformer"]

TOKENS = 18  # of a toy: twice as many as elsewhere, half as large
BLOCK, BLOCKS = 2, 12  # of BigBird
SQUARE, STRIDE = 16, 4  # tokens of Sparse Transformer, a square, and of Reformer
CHUNK, BUCKETS = 4, 4


def sizes(tokens: int) -> dict[str, int]:
    """The toy's."""
    return {"N": tokens, "L": tokens, "D": tokens // 3, "M": tokens // 3}


def painted(tokens: int, patterns: Mapping[str, Sequence[tuple[str, Mask]]]) -> Results:
    """What a picture of patterns has: of each its layers, later ones over earlier ones, and last the diagonal."""
    own = ("the query itself", np.eye(tokens, dtype=bool))
    return Results(sizes=sizes(tokens), patterns={name: paint([*layers, own]) for name, layers in patterns.items()})


def pattern(title: str) -> Callable[[Callable[..., Results]], Picture]:
    """Make a picture of patterns; of several the last stands beside the others: ``Q K^T``, its softmax, ``P V``.

    ``compute`` returns the sizes of the letters and, by what is written under it, each pattern ``(N, L)``, painted.
    """

    def put(sheet: Sheet, patterns: Mapping[str, NDArray[Any]]) -> None:
        first, *others = (Cells(kinds, label=name) for name, kinds in patterns.items())
        x = sheet.row(0, 0, Q, PRODUCT, K.T, becomes("softmax over\nthe pairs", 5.6), first, PRODUCT, V, EQUALS, O)
        for other in others:
            sheet.text(x + 1.4, 0, "or")
            x = sheet.row(x + 4, 0, other)
        drawn, x = np.unique([*patterns.values()]), 3.0
        for reason in [reason for i, reason in enumerate(PAIRS) if i and i in drawn]:
            sheet.square(x, -7.4, PAIRS[reason])
            sheet.text(x + 1.2, -7.4, reason, ha="left")
            x += 3.5 + 0.62 * len(reason)

    def of(compute: Callable[..., Results]) -> Picture:
        made = picture(title, compute)(put)
        made.draw.__doc__ = compute.__doc__
        return made

    return of


@pattern("Local attention: the keys nearby")
def local() -> Results:
    """Local attention: softmax attention over the keys of a sliding window, here two on each side, one after the
    other or every other one. Only the coloured pairs are computed; nothing is made where the square is white.

    The window, and the dilated one beside it.
    """
    near = {"window": patterns.local(TOKENS, window=2), "dilated": patterns.local(TOKENS, window=2, dilation=2)}
    return painted(TOKENS, {name: [("window or block", pairs)] for name, pairs in near.items()})


@pattern("Block-local attention: blocks that know nothing of each other")
def block_local() -> Results:
    """Block-local attention: softmax attention within blocks, here of six tokens, all keys of the block or only
    those before the query. However many layers there are, nothing passes from one block to another.

    The blocks, and the causal ones beside them.
    """
    kinds = {"blocks": False, "causal": True}
    blocks = {name: patterns.block_local(TOKENS, block=6, causal=causal) for name, causal in kinds.items()}
    return painted(TOKENS, {name: [("window or block", pairs)] for name, pairs in blocks.items()})


@pattern("Longformer: a window, and tokens that see all and are seen by all")
def longformer() -> Results:
    """Longformer: a sliding window, and global tokens that see all and are seen by all, here the first. One softmax
    over both. A global query has projections of its own, from other weights.

    The pattern.
    """
    both = patterns.longformer(TOKENS, window=2, global_tokens=[0])
    return painted(TOKENS, {"": [("global", both), ("window or block", patterns.local(TOKENS, window=2))]})


@pattern("BigBird: blocks in a window, global ones, and random ones")
def bigbird(*, rng: Generator) -> Results:
    """BigBird: tokens in blocks, here of two. A block of queries sees the blocks next to its own, a global block,
    which sees all as well, and one block drawn at random beforehand. One softmax over all of them.

    The pattern.
    """
    drawn = draw_random_blocks(BLOCKS, 1, rng, 3, (0,))
    n = BLOCK * BLOCKS
    everything = patterns.bigbird(n, block=BLOCK, global_blocks=(0,), random_blocks=drawn)
    star = patterns.bigbird(n, block=BLOCK, window_blocks=1, global_blocks=(0,))
    near = patterns.bigbird(n, block=BLOCK, global_blocks=())
    return painted(n, {"": [("random", everything), ("global", star), ("window or block", near)]})


@pattern("Sparse Transformer: near keys, and one in l of the rest")
def sparse_transformer() -> Results:
    """Sparse Transformer: a query sees the last l keys, itself among them, or those of its own block, and of the rest
    one in l, here l = 4; the two can be two heads. With l = sqrt(N) a row has about 2 sqrt(N) pairs, and two layers
    reach every earlier token. Causal: nothing above the diagonal.

    The strided pattern, and the fixed one beside it.
    """
    first: dict[patterns.Kind, Mask] = {
        "strided": patterns.sparse_transformer(SQUARE, kind="local_only", stride=STRIDE),
        "fixed": patterns.block_local(SQUARE, block=STRIDE, causal=True),
    }
    both = {kind: patterns.sparse_transformer(SQUARE, kind=kind, stride=STRIDE) for kind in first}
    return painted(SQUARE, {kind: [("second head", both[kind]), ("window or block", first[kind])] for kind in first})


def hashed(*, rng: Generator) -> Results:
    """Random vectors, hashed, sorted, and who meets whom."""
    x = rng.standard_normal((SQUARE, 8))
    buckets = lsh_hashing.buckets(x, lsh_hashing.draw_rotations(1, 8, BUCKETS, rng))  # (1, N)
    order = lsh_hashing.order_by_bucket(buckets)  # (1, N)
    return Results(
        sizes={letter: size for letter, size in sizes(SQUARE).items() if letter != "M"},
        buckets=buckets[0],  # (N,)
        order=order[0],  # (N,), the token at each place in sorted order
        pairs=paint([("window or block", lsh_hashing.pattern_of(order, CHUNK))]),  # (N, N)
    )


@picture("Reformer: a hash decides which tokens meet", hashed)
def reformer(sheet: Sheet, buckets: NDArray[Any], order: NDArray[Any], pairs: NDArray[Any]) -> None:
    """Reformer's LSH attention, one round of hashing. Queries and keys are the same vectors. A random hash assigns
    each token a bucket (its number and shade). Tokens are sorted by bucket and cut into chunks. Each attends to its
    own chunk and to the one before, but not to itself: a band in sorted order, scattered pairs in the order of the
    text.

    Tokens in the order of the text and sorted, a line from each to its place; then the pairs in both orders.
    """
    sheet.row(0, 0, Q._replace(name="$X$"), becomes("hash", 3.0))
    place = np.argsort(order)
    for token, bucket in enumerate(buckets):
        upper, lower = 10 + 1.3 * token, 9.5 + 1.3 * place[token] + 0.7 * (place[token] // CHUNK)
        colour = tint(style.ROLES["queries"], 0.12 + 0.2 * bucket)
        for x, y in ((upper, 3.2), (lower, -3.2)):
            sheet.square(x, y, colour, size=1.3)
            sheet.text(x, y, str(bucket), size=1.2)
        sheet.line((upper, 2.4), (lower, -2.4), color=style.GREY)
    sheet.text(20, 5, "buckets, in the order of the text")
    sheet.text(20, -5, "sorted by bucket, in chunks")
    x = sheet.row(35, 0, Cells(pairs[order][:, order], label="pairs, sorted"))
    sheet.row(x + 4, 0, Cells(pairs, label="as in the text"))
