"""Does hashing find the right keys? The recall of the most similar ones, against rounds, buckets and chunks.

The shared vectors are the keys of a pretrained network's heads, which were not trained to be shared: a network trained
with LSH attention may learn better ones. Each token has ``top`` most similar others, by the scores that LSH attention
uses, ``x_i . x_j / |x_j|``. The recall is the share of them that the token meets. It is compared with the share of
*all* others that the token meets, which is the cost, and the recall of chunks cut at random.

References
----------
Kitaev, Kaiser and Levskaya (2020), "Reformer: the efficient transformer", sections 2 and 5, Figure 4.
"""

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from linattn_ref.attention import reformer
from linattn_ref.experiments.measuring.heads import Heads, Random, Source, heads_from
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, Ints, Results, labels, style
from linattn_ref.theory.lsh_collision import collision_probability, measured_collisions

__all__ = ["compute", "draw"]

COSINES = tuple(float(x) for x in np.cos(np.radians(np.arange(5, 180, 10))))
COLLISION_BUCKETS = (2, 16, 64)


QUICK: dict[str, Any] = {"rounds": (1, 2), "buckets": (4,), "chunk": 4, "chunks": (4, 8), "top": 3, "trials": 100}
QUICK["heads"] = Random(sentences=1, layers=1, heads=2, length=32, width=8)


def compute(
    *,
    seed: int = 0,
    heads: Heads | Source | Random = Source(sentences=4, every=4),  # noqa: B008  # a tuple
    rounds: Ints = (1, 2, 4, 8, 16),
    buckets: Ints = (4, 16, 64),
    chunk: int = 16,
    chunks: Ints = (8, 16, 32, 64),
    top: int = 10,
    trials: int = 2000,
) -> Results:
    """Hash the vectors in every way; half a minute with the network.

    Parameters
    ----------
    seed : int
        Of the choice of sentences and of the rotations.
    heads : Heads, Source or Random
        Whose keys are hashed; by default those of a pretrained network on a text.
    rounds : sequence of int
        Ascending.
    buckets, chunk
        Numbers of buckets to compare, at that size of chunk.
    chunks : sequence of int
        Sizes of chunk to compare, with as many buckets as chunks.
    top : int
        How many of the most similar keys are to be found.
    trials : int
        Hashes drawn for each point on the left.
    """
    rng = np.random.default_rng(seed)
    with threadpool_limits(1):
        found, sources = heads_from(heads, seed, rng)
        vectors = found.k.reshape(-1, *found.k.shape[-2:])
        n = vectors.shape[-2]
        if not 1 <= top < n:
            raise ValueError(f"top: expected at least 1 and fewer than the {n} tokens, got {top}")
        by_buckets = tuple(recall_of(vectors, b, chunk, rounds, top, rng) for b in buckets)
        by_chunk = tuple(recall_of(vectors, max(2, n // c // 2 * 2), c, rounds, top, rng) for c in chunks)
    width = vectors.shape[-1]
    return Results(
        collisions={str(b): [collision_probability(c, b) for c in COSINES] for b in COLLISION_BUCKETS},  # by buckets
        drawn={str(b): [measured_collisions(c, b, width, trials, rng) for c in COSINES] for b in COLLISION_BUCKETS},
        rounds=tuple(rounds),
        by_buckets=by_buckets,
        by_chunk=by_chunk,
        top=top,
        shape=vectors.shape,
        settings={**sources, "seed": seed, "trials": trials},
    )


def recall_of(vectors: Array, n_buckets: int, chunk: int, rounds: Ints, top: int, rng: Generator) -> Results:
    """What the first ``r`` of the same rounds find, for each ``r``: means over tokens and ``vectors (heads, N, D)``."""
    n, itself = vectors.shape[-2], np.eye(vectors.shape[-2], dtype=np.bool_)
    rotations = reformer.draw_rotations(max(rounds), vectors.shape[-1], n_buckets, rng, vectors.dtype)
    found = np.empty((3, len(rounds), len(vectors)))
    for head, x in enumerate(vectors):
        scores = np.where(itself, -np.inf, x @ (x / np.linalg.norm(x, axis=-1, keepdims=True)).T)  # (N, N)
        best = np.argpartition(-scores, top, axis=-1)[:, :top]  # (N, top)
        weights = np.exp((scores - scores.max(axis=-1, keepdims=True)) / x.shape[-1] ** 0.5)
        weights /= weights.sum(axis=-1, keepdims=True)
        for i, r in enumerate(rounds):
            pattern = reformer.pattern(x, rotations=rotations[:r], chunk=chunk)
            hits = np.take_along_axis(pattern, best, axis=-1).mean()
            found[:, i, head] = hits, pattern.sum() / (n * (n - 1)), (weights * pattern).sum(axis=-1).mean()
    recall, met, weight = found.mean(axis=-1).tolist()
    return Results(
        n_buckets=n_buckets,
        chunk=chunk,
        recall=recall,  # of the top keys
        met=met,  # the share of all other tokens
        weight=weight,  # the share of softmax attention's weight on what is met
    )


def draw(results: Results) -> Figure:
    """Locality-sensitive hashing in Reformer. Left: two vectors share a bucket the more often the smaller the angle
    between them is (lines: computed; points: drawn). Middle: the share of each token's ten most similar tokens that
    it meets, against the number of rounds, in chunks of 16. Dashed is the share of all tokens that it meets, which is
    the recall of random chunks. Few buckets find more in one round, many in many rounds. Right: recall against that
    share, 1, 2, 4, 8 and 16 rounds on each line; dotted: random chunks. Small chunks in many rounds find more than
    large ones in few. Keys of a pretrained network on 512 tokens of text.
    """
    figure, (left, middle, right) = style.figure(1, 3, height=0.5)
    for axis in (left, middle, right):
        axis.set_ylim(0, 1.04)
    counts = sorted({*map(int, results.collisions), *(each.n_buckets for each in results.by_buckets)})
    colours = dict(zip(counts, style.sequence(len(counts)), strict=True))

    angles = np.degrees(np.arccos(COSINES))
    for n_buckets, computed in results.collisions.items():
        colour = colours[int(n_buckets)]
        left.plot(angles, computed, "-", color=colour, label=f"{n_buckets} buckets")
        left.plot(angles, results.drawn[n_buckets], "o", color=colour)
    left.legend(loc="upper right", borderaxespad=0)
    left.set(title="Sharing a bucket", xlabel="angle between them (degrees)", ylabel="probability")
    left.set_xticks([0, 60, 120, 180])

    for each in results.by_buckets:
        colour = colours[each.n_buckets]
        middle.plot(results.rounds, each.recall, "o-", color=colour, label=f"{each.n_buckets}\u00a0buckets")
        middle.plot(results.rounds, each.met, "--", color=colour)
    labels.at(middle, results.rounds[-1], 0.1, "dashed:\nof all tokens", style.BLACK, ha="right")
    middle.set(title=f"Found of the {results.top} nearest", xlabel="rounds", ylabel="share")
    middle.set_xscale("log", base=2)
    middle.set_xticks(results.rounds, [str(r) for r in results.rounds])
    labels.at_ends(middle)

    for each, colour in zip(results.by_chunk, style.sequence(len(results.by_chunk), "copper"), strict=True):
        right.plot(each.met, each.recall, "o-", color=colour)
        labels.at(right, each.met[0], each.recall[0], str(each.chunk), colour, xytext=(5, -3), ha="left", va="top")
    right.plot([0, 1], [0, 1], ":", color=style.GREY)
    labels.at(right, 0.98, 0.3, "random\nchunks", style.GREY, ha="right")
    labels.at(right, 0.98, 0.05, "numbers: tokens\nper chunk", style.BLACK, ha="right")
    right.set(title="Found, by cost", xlabel="share of all tokens met", xticks=[0, 0.5, 1])

    return figure
