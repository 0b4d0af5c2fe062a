"""`pattern_softmax` on a loop that keeps one number per row."""

from functools import partial
from typing import NamedTuple

from linattn_ref.attention.parts.masks import shown
from linattn_ref.attention.sparse import pattern_softmax as page
from linattn_ref.attention.sparse.part import Pattern
from linattn_ref.kernels.common.saturation import divided_by_sums
from linattn_ref.op import Array, Bool, Float

__all__ = ["Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output, one number per row, and the pattern."""

    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]  # masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    out: Float[Array, "... N M"]
    log_sum_exp: Float[Array, "... N"]  # -inf where a query sees nothing
    key_mask: Bool[Array, "... L"] | None
    pattern: Pattern
    scale: float


def forward(loop, kind, q, k, v, seen, *, key_mask=None, scale=None, out=None):
    """Equations (1)-(4) of the page; ``kind`` is the backend's class of what is saved."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = shown(k, key_mask), shown(v, key_mask)
    buffer = {} if out is None else {"out": out}
    out, log_sum_exp = loop.forward(q, k, v, key_mask, seen, scale, **buffer)
    return out, kind(q, k, v, out, log_sum_exp, key_mask, seen, scale)


def backward(loop, d_out, saved, *, loop_adds_up=False):
    """Equations (5)-(8); see `saturation` for ``loop_adds_up``."""
    q, k, v, _, log_sum_exp, key_mask, seen, scale = saved
    again = partial(page.forward.page, q, k, v, seen, key_mask=key_mask, scale=scale)
    shares = d_out if loop_adds_up else divided_by_sums(d_out, log_sum_exp, again)
    return page.Gradients(*loop.backward(shares, *saved))
