"""`linattn_ref.nn.multi_head`, (1) as a product per projection.

So ``q`` and ``k`` can be let go of where the mechanism keeps only their features. The output is asked for in the order
of memory in which heads are merged.
"""

import numpy as np

from linattn_ref.nn import affine
from linattn_ref.nn.heads import Part, cut, merge, parts_of, split
from linattn_ref.nn.mechanism import shared
from linattn_ref.nn.multi_head import Saved, attend

__all__ = ["forward"]


def forward(x, params, mechanism, *, heads, memory=None, key_mask=None, groups=1):
    mechanism, (w, b), width, buffers = shared(mechanism, groups), params.inner, params.outer.w.shape[0], {}
    parts, end, arrays, keys = parts_of(params, mechanism, heads), 0, [], x if memory is None else memory
    for i, part in enumerate(parts):
        some, end = slice(end, end + part.heads * part.width), end + part.heads * part.width
        arrays += split((keys if i else x) @ w[:, some] + b[some], part)  # (1)
    if "out" in mechanism.accepts["forward"]:
        (buffers["out"],) = split(np.empty((*x.shape[:-1], width), x.dtype), Part(heads, width // heads))
    o, attention, gates, own = attend(arrays, x, memory, params, mechanism, key_mask, **buffers)  # (2)
    del arrays
    y, outer = affine.forward(merge(o), params.outer)  # (3)
    inner, of_memory = affine.Saved(x, params.inner), None
    if memory is not None:
        of_x, of_keys = cut(params.inner, parts)
        inner, of_memory = affine.Saved(x, of_x), affine.Saved(memory, of_keys)
    return y, Saved(outer, inner, attention, mechanism.backward, gates, own, mechanism.reads, heads, of_memory)
