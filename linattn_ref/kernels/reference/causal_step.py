"""One position of causal linear attention, for decoding: a row of `causal_product.normalised_forward`."""

from linattn_ref.kernels.reference.division import divide

__all__ = ["step"]


def step(phi_q, phi_k, v, s, z, eps):
    """One row of ``normalised_forward``: ``(..., C)``, ``(..., C)``, ``(..., M)`` -> ``out (..., M)``.

    ``s (..., C, M)`` and ``z (..., C)`` are brought up to date in place.
    """
    s += phi_k[..., :, None] * v[..., None, :]  # (1)
    z += phi_k
    numerator = (phi_q[..., None, :] @ s)[..., 0, :]  # (2)  (..., M)
    return divide(numerator, (phi_q * z).sum(axis=-1) + eps)
