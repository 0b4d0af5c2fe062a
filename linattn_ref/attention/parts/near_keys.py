"""The keys near a query, by segments of a sequence: the short term of the Long-Short Transformer.

Segment ``s`` holds the places from ``s w`` to ``(s + 1) w - 1``. Its queries see its keys and ``w // 2`` on both sides;
causal, the segment before and, of its own keys, those up to themselves.

>>> [(x.queries, x.near) for x in segments(5, 5, window=2, reduced=1, causal=False)][1]
(slice(2, 4, None), slice(1, 5, None))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linattn_ref.op import Mask, op
from linattn_ref.op.options import sized

__all__ = ["Segment", "pattern", "segments"]


class Segment(NamedTuple):
    """What a segment's queries see."""

    queries: slice
    near: slice  # of the keys; causal, the segment's own are its last
    far: int  # how many of the mixtures they see


def segments(n: int, length: int, window: int, reduced: int, causal: bool) -> Iterator[Segment]:
    """The segments that have queries: ``N`` queries at the last of ``L`` places, ``R`` mixtures per part."""
    first = length - n  # the place of the first query
    for start in range(first // window * window, length, window):
        stop = min(start + window, length)
        queries = slice(max(start, first) - first, stop - first)
        if causal:
            yield Segment(queries, slice(max(start - window, 0), stop), start // window * reduced)
        else:
            yield Segment(queries, slice(max(start - window // 2, 0), min(stop + window // 2, length)), reduced)


@op(look=sized("window"))
def pattern(n: int, *, window: int, causal: bool = False) -> Mask:
    """Which query sees which key in the short term, ``(N, N)``: for teaching."""
    seen = np.zeros((n, n), np.bool_)
    for queries, near, _ in segments(n, n, window, 1, causal):
        seen[queries, near] = True
    return np.tril(seen) if causal else seen
