"""`pattern_softmax` on a loop that keeps two numbers per row."""

from typing import NamedTuple

from linattn_ref.attention.parts.masks import shown
from linattn_ref.attention.sparse import pattern_softmax as page
from linattn_ref.attention.sparse.part import Pattern
from linattn_ref.op import Array, Bool, Float

__all__ = ["Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output, two numbers per row, and the pattern."""

    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]  # masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    out: Float[Array, "... N M"]
    m: Float[Array, "... N"]
    share: Float[Array, "... N"]  # one over the sum of weights; 0 where a query sees nothing
    key_mask: Bool[Array, "... L"] | None
    pattern: Pattern
    scale: float


def forward(loop, kind, q, k, v, seen, *, key_mask=None, scale=None, out=None):
    """Equations (1)-(4) of the page; ``kind`` is the backend's class of what is saved."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = shown(k, key_mask), shown(v, key_mask)
    buffer = {} if out is None else {"out": out}
    out, m, share = loop.forward(q, k, v, key_mask, seen, scale, **buffer)
    return out, kind(q, k, v, out, m, share, key_mask, seen, scale)


def backward(loop, d_out, saved):
    """Equations (5)-(8)."""
    return page.Gradients(*loop.backward(d_out, *saved))
