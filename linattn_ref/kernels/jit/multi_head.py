"""`linattn_ref.nn.multi_head`, (1) as a product per projection.

So ``q`` and ``k`` can be let go of where the mechanism keeps only their features. The output is asked for in the order
of memory in which heads are merged.
"""

from typing import Any

import numpy as np

from linattn_ref.nn import affine
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.nn.multi_head import Params, Saved, attend, merge, split
from linattn_ref.op import Array

__all__ = ["forward"]


def forward(x: Any, params: Params, mechanism: Mechanism, *, heads: int, key_mask: Any = None) -> tuple[Array, Saved]:
    (w, b), width, buffers = params.inner, params.outer.w.shape[0], {}
    columns = (slice(i, i + width) for i in range(0, len(b), width))
    parts = [split(x @ w[:, some] + b[some], 1, heads)[0] for some in columns]  # (1)
    if "out" in mechanism.accepts["forward"]:
        buffers["out"] = split(np.empty((*x.shape[:-1], width), x.dtype), 1, heads)[0]
    o, attention, gates, own = attend(parts, x, params, mechanism, key_mask, **buffers)  # (2)
    del parts
    y, outer = affine.forward(merge(o), params.outer)  # (3)
    return y, Saved(
        outer, affine.Saved(x, params.inner), attention, mechanism.backward, gates, own, mechanism.reads, heads
    )
