"""`linattn_ref.nn.cross_entropy`, its gradient (3) made where the exponentials are, and kept.

With label smoothing the page computes.
"""

from typing import NamedTuple

from linattn_ref.kernels.jit.loops.layers import cross_entropy as loop
from linattn_ref.nn import cross_entropy as page
from linattn_ref.nn.cross_entropy import IGNORE, Gradients, shares
from linattn_ref.op import Array, Float

__all__ = ["Saved", "backward", "forward"]


class Saved(NamedTuple):
    d_scores: Float[Array, "... V"]  # (3) for G = 1


def forward(scores, targets, *, ignore=IGNORE, weight=None, label_smoothing=0.0):
    if label_smoothing:
        options = {"ignore": ignore, "weight": weight, "label_smoothing": label_smoothing}
        return page.forward.page(scores, targets, **options)
    t, share = shares(targets, ignore, weight, scores.dtype)
    of_targets, d_scores = loop.forward(scores, t, share)  # (1), (3)
    return -(share[share > 0] * of_targets[share > 0]).sum(), Saved(d_scores)  # (2); 0 times -inf is 0


def backward(d_loss, saved):
    return Gradients(saved.d_scores * d_loss)  # (3)
