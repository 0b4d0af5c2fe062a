"""The sums of linear attention over keys that all queries see, forward and backward: (1)-(3), (5)-(9) of ``linear.py``.

There they stand in the passes themselves. Here each is a function, for what has sums of another kind, ``linear_scaled``
and ``linformer_linear``, and for who wants to look at one by itself.
"""

from __future__ import annotations

from linattn_ref.attention.arguments import Array
from linattn_ref.kernels.reference.division import divide

__all__ = ["add_up", "add_up_backward", "read", "read_backward"]


def add_up(phi_k: Array, v: Array) -> tuple[Array, Array]:
    """``S (..., C, M)`` and ``Z (..., C)`` of some keys."""
    return phi_k.swapaxes(-1, -2) @ v, phi_k.sum(axis=-2)  # (1), (2)


def add_up_backward(d_s: Array, d_z: Array, phi_k: Array, v: Array) -> tuple[Array, Array]:
    """Gradients of ``phi_k (..., L, C)`` and ``v (..., L, M)``."""
    return v @ d_s.swapaxes(-1, -2) + d_z[..., None, :], phi_k @ d_s  # (8), (9)


def read(phi_q: Array, s: Array, z: Array, eps: float) -> tuple[Array, Array]:
    """The output ``(..., N, M)`` and denominator ``(..., N)`` of queries that see all of ``S`` and ``Z``."""
    denominator = (phi_q @ z[..., None])[..., 0] + eps  # (..., N)
    return divide(phi_q @ s, denominator), denominator  # (3)


def read_backward(
    d_out: Array,
    phi_q: Array,
    out: Array,
    denominator: Array,
    s: Array,
    z: Array,
    d_s: Array | None = None,
    d_z: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients of ``phi_q (..., N, C)``, ``S`` and ``Z``; ``d_s`` and ``d_z`` are what other readers ask of those."""
    d_n = divide(d_out, denominator)  # (5)  (..., N, M)
    d_d = -(d_n * out).sum(axis=-1, keepdims=True)  # (5)  (..., N, 1)
    d_phi_q = d_n @ s.swapaxes(-1, -2) + d_d * z[..., None, :]  # (6)
    own_s, own_z = phi_q.swapaxes(-1, -2) @ d_n, (phi_q.swapaxes(-1, -2) @ d_d)[..., 0]  # (7)
    return d_phi_q, own_s if d_s is None else own_s + d_s, own_z if d_z is None else own_z + d_z
