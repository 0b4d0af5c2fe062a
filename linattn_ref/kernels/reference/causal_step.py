"""One position of causal linear attention, for decoding: a row of `causal_product.normalised_forward`."""

from functools import partial

import numpy as np

from linattn_ref.kernels.reference.division import divide
from linattn_ref.kernels.turns import take_turn

__all__ = ["bind_step", "step"]


def step(phi_q, phi_k, v, s, z, eps):
    """One row of ``normalised_forward``: ``(..., C)``, ``(..., C)``, ``(..., M)`` -> ``out (..., M)``.

    ``s (..., C, M)`` and ``z (..., C)`` are brought up to date in place.
    """
    s += phi_k[..., :, None] * v[..., None, :]  # (1)
    z += phi_k
    numerator = (phi_q[..., None, :] @ s)[..., 0, :]  # (2)  (..., M)
    return divide(numerator, (phi_q * z).sum(axis=-1) + eps)


def bind_step(phi_q, phi_k, v, s, z, eps, out, *, turns=None, step=step):
    """:func:`step`, or another, of these arrays as a function without arguments that writes ``out``.

    ``turns`` is the count of steps that all share who work in ``s`` and ``z``, and that of those which this one has
    seen, both ``(1,)`` of int64 (see `turns`); None: nobody else does.
    """
    turns = (np.zeros(1, np.int64), np.zeros(1, np.int64)) if turns is None else turns
    return partial(_write_step, step, turns, phi_q, phi_k, v, s, z, eps, out)


def _write_step(step, turns, phi_q, phi_k, v, s, z, eps, out):
    take_turn(*turns)
    out[...] = step(phi_q, phi_k, v, s, z, eps)
