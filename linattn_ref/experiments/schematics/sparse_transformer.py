"""Sparse Transformer: two causal patterns that reach everything in two steps."""

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import patterns
from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.schematics.patterns import Results, draw_pattern, sizes

__all__ = ["compute", "draw"]

TOKENS, STRIDE = 16, 4


def compute() -> Results:
    """Strided and fixed."""
    own = np.eye(TOKENS, dtype=bool)
    heads = {
        "strided": [patterns.sparse_transformer(TOKENS, kind=k, stride=STRIDE) for k in ("strided_only", "local_only")],
        "fixed": [
            patterns.sparse_transformer(TOKENS, kind="fixed_summary", stride=STRIDE),
            patterns.block_local(TOKENS, block=STRIDE, causal=True),
        ],
    }
    painted = {
        name: paint([("second head", far), ("window or block", near), ("the query itself", own)])
        for name, (far, near) in heads.items()
    }
    return Results(sizes(TOKENS), painted)


def draw(results: Results) -> Figure:
    """Sparse Transformer: a query sees the l keys before it, or those of its own block, and of the rest one in l,
    here l = 4; the two can be two heads. With l = sqrt(N) a row has about 2 sqrt(N) pairs, and two layers reach
    every earlier token. Causal: nothing above the diagonal.

    The strided pattern, and the fixed one beside it.
    """
    return draw_pattern(results, "Sparse Transformer: near keys, and one in l of the rest")
