"""`linattn_ref.nn.ctc`, its gradient (8) made forward, where ``alpha`` and ``beta`` are at hand, and kept."""

from typing import NamedTuple

from linattn_ref.kernels.jit.loops.layers import ctc as loop
from linattn_ref.nn.ctc import Gradients, in_rows, mean_of
from linattn_ref.op import Array, Float

__all__ = ["Saved", "backward", "forward"]


class Saved(NamedTuple):
    d_scores: Float[Array, "... T V"]  # (8) of (3)


def forward(scores, targets, *, frames=None, lengths=None, infinite_to_zero=False):
    rows = in_rows(scores, targets, frames, lengths)
    losses, d_scores = loop.forward(*rows)  # (1), (4)-(8)
    return mean_of(losses, rows[-1], infinite_to_zero), Saved(d_scores.reshape(scores.shape))  # (3)


def backward(d_loss, saved):
    return Gradients(saved.d_scores * d_loss)  # (8)
