"""The causal product as a matrix of scores, with the arguments and results of a backend's loop, which is held to it."""

import numpy as np

from linattn_ref.attention.parts.masks import divide

__all__ = [
    "backward",
    "backward_by_row",
    "forward",
    "forward_by_row",
    "normalised_backward",
    "normalised_forward",
    "step",
]


def forward(phi_q, phi_k, v, state):
    s = _or_zeros(state, phi_k, v)
    return np.tril(phi_q @ phi_k.mT) @ v + phi_q @ s, s + phi_k.mT @ v


def backward(d_out, d_state, phi_q, phi_k, v, state):
    s, a = _or_zeros(state, phi_k, v), _or_zeros(d_state, phi_k, v)
    scores, d_scores = np.tril(phi_q @ phi_k.mT), np.tril(d_out @ v.mT)
    d_phi_q, d_phi_k = d_scores @ phi_k + d_out @ s.mT, d_scores.mT @ phi_q + v @ a.mT
    return d_phi_q, d_phi_k, scores.mT @ d_out + phi_k @ a, a + phi_q.mT @ d_out


def normalised_forward(phi_q, phi_k, v, s, z, eps):
    both, last = forward(phi_q, phi_k, _beside(v, np.ones_like(v[..., 0])), _beside(s, z))
    denominator = both[..., -1] + v.dtype.type(eps)
    return divide(both[..., :-1], denominator[..., None]), denominator, last[..., :-1], last[..., -1]


def normalised_backward(d_out, d_s, d_z, phi_q, phi_k, v, s, z, out, denominator):
    g, d_last, ones = divide(d_out, denominator[..., None]), _beside(d_s, d_z), np.ones_like(v[..., 0])
    rows = phi_q, phi_k, _beside(v, ones), _beside(s, z)
    d_phi_q, d_phi_k, d_v, a = backward(_beside(g, -(g * out).sum(axis=-1)), d_last, *rows)
    return d_phi_q, d_phi_k, d_v[..., :-1], a[..., :-1], a[..., -1]


def step(phi_q, phi_k, v, s, z, eps):
    s += phi_k[..., None] * v[..., None, :]
    z += phi_k
    denominator = (phi_q * z).sum(axis=-1, keepdims=True) + v.dtype.type(eps)
    return divide((phi_q[..., None, :] @ s)[..., 0, :], denominator)


forward_by_row, backward_by_row = forward, backward


def _or_zeros(state, phi_k, v):
    return np.zeros((*v.shape[:-2], phi_k.shape[-1], v.shape[-1]), v.dtype) if state is None else state


def _beside(x, column):
    """One column more; None as None."""
    return None if x is None else np.concatenate([x, column[..., None]], axis=-1)
