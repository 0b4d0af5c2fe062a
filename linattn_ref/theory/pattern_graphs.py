"""A sparse pattern as a graph: an edge from query ``i`` to each key ``j`` that it sees.

One layer of attention carries information along one edge. So the number of steps from ``i`` to ``j`` is the number of
layers until output ``i`` can depend on input ``j``, and the graph's diameter is the number of layers that let
everything depend on everything. Every query is taken to see itself, as the residual connection around a layer does.

The star graph property
    With one global token ``g``, which sees all and is seen by all, the path ``i -> g -> j`` exists for every pair:
    two layers, whatever the length and whatever else there is (:func:`within_steps`).
Random graphs
    A window alone has a diameter of ``(N - 1) / w``. A few random edges each bring it down to about ``log N``; a random
    graph by itself has hardly any triangles, though, so no notion of neighbourhood (:func:`clustering`). A window and a
    few random edges together have both a short diameter and many triangles: a "small world".
Pairs
    The cost is the number of edges. :func:`pairs_per_row` counts those of Sparse Transformers without the matrix; with
    ``l = sqrt(N)`` they grow as ``N^1.5`` and not as ``N log N``.

References
----------
Watts and Strogatz (1998), "Collective dynamics of 'small-world' networks".
Zaheer et al. (2020), "Big Bird: Transformers for longer sequences", sections 2 and 3.
Child et al. (2019), "Generating long sequences with sparse Transformers", sections 4.2 (two steps) and 4.3.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from linattn_ref.attention.sparse.patterns import Kind, check_kind
from linattn_ref.op import Mask, plain_numbers
from linattn_ref.op.options import check_sizes

__all__ = ["best_stride", "check_pattern", "clustering", "diameter", "pairs", "pairs_per_row", "steps", "within_steps"]

# --- Steps ----------------------------------------------------------------------------------------------------------


def steps(pattern: Mask) -> NDArray[np.float64]:
    """The fewest steps from each ``i`` to each ``j``, ``(N, N)``: 0 on the diagonal, infinity where there is no path.

    Parameters
    ----------
    pattern : ndarray of bool ``(N, N)``
        True where query ``i`` sees key ``j``. Edges have a direction: that ``j`` sees ``i`` is another one.
    """
    check_pattern(pattern)
    return shortest_path(pattern.astype(np.float64), unweighted=True)


def diameter(pattern: Mask) -> float:
    """The number of layers that let every output depend on every input; infinite if none does."""
    return float(steps(pattern).max())


@plain_numbers
def within_steps(pattern: Mask, count: int) -> bool:
    """Whether every pair is at most ``count`` steps apart; with a global token it is so for two."""
    check_sizes(count=count)
    return diameter(pattern) <= count


def clustering(pattern: Mask) -> float:
    """The mean over tokens of the share of pairs of neighbours that are neighbours themselves.

    The direction of edges is left aside. A token with fewer than two neighbours counts as 0.
    """
    check_pattern(pattern)
    edges = (pattern | pattern.T) & ~np.eye(len(pattern), dtype=bool)
    counts = edges.astype(np.float64)
    degree = counts.sum(axis=1)  # (N,)
    closed = ((counts @ counts) * counts).sum(axis=1)  # (N,), twice the triangles at each token
    possible = degree * (degree - 1)
    return float(np.divide(closed, possible, out=np.zeros_like(closed), where=possible > 0).mean())


def check_pattern(pattern: Mask) -> None:
    """A square array of bool."""
    if not isinstance(pattern, np.ndarray) or pattern.dtype != bool:
        raise TypeError(f"pattern: expected an array of bool, got {getattr(pattern, 'dtype', type(pattern).__name__)}")
    if pattern.ndim != 2 or pattern.shape[0] != pattern.shape[1] or not pattern.size:
        raise ValueError(f"pattern: expected shape (N, N), got {pattern.shape}")


# --- Pairs ----------------------------------------------------------------------------------------------------------


@plain_numbers
def pairs_per_row(n: int, *, kind: Kind, stride: int, summary: int = 1) -> NDArray[np.int64]:
    """How many keys each query of a Sparse Transformer sees, ``(N,)``, counted without the matrix.

    With ``l = stride``, ``c = summary`` and ``i = a l + b``, ``b < l``:

        window       min(i + 1, l)                           (1)
        column       a + 1                                   (2)
        block        b + 1                                   (3)
        summaries    a c + max(0, b + 1 - (l - c))           (4)

    Window and column share the query's own place. Block and summaries share what there is of the latter in the query's
    own block.
    """
    check_sizes(n=n)
    check_kind(kind, stride, summary)
    i = np.arange(n, dtype=np.int64)
    a, b = i // stride, i % stride
    window, column = np.minimum(i + 1, stride), a + 1  # (1), (2)
    own_summaries = np.maximum(0, b + 1 - (stride - summary))
    return {
        "strided": window + column - 1,
        "local_only": window,
        "strided_only": column,
        "fixed": b + 1 + a * summary,  # (3), (4)
        "fixed_summary": a * summary + own_summaries,  # (4)
    }[kind]


@plain_numbers
def pairs(n: int, *, kind: Kind, stride: int, summary: int = 1) -> int:
    """The sum of :func:`pairs_per_row`: what the pattern costs."""
    return int(pairs_per_row(n, kind=kind, stride=stride, summary=summary).sum())


@plain_numbers
def best_stride(n: int) -> int:
    """The stride with the fewest pairs of the strided pattern, about ``sqrt(N / 2)``.

    ``N l`` pairs are in the window and ``N^2 / 2l`` in the columns, to leading order; the sum is smallest where both
    are equal.
    """
    check_sizes(n=n)
    near = range(1, 2 * math.isqrt(n) + 2)
    return min(near, key=lambda stride: pairs(n, kind="strided", stride=stride))
