"""Nyströmformer (Xiong et al. 2021): a few landmarks stand between the queries and the keys.

    Q~ = segment means of Q,   K~ = segment means of K       (1)  (R, D): segment_means.py
    F = softmax(scale Q K~^T)                                (2)  (N, R)
    A = softmax(scale Q~ K~^T)                               (3)  (R, R)
    B = softmax(scale Q~ K^T)                                (4)  (R, L)
    Z = A^+                                                  (5)  pinv_iterative.py or pinv_exact.py
    O = F (Z (B V))                                          (6)  (N, M)
    O_i += sum_t c_t v_(i + t - K // 2)                      (7)  optional: depthwise.py

The Nyström method rebuilds a matrix from some of its columns ``F`` and rows ``B`` and the block ``A`` where they cross,
``P ~ F A^+ B``. It cannot be used on softmax attention's ``P`` itself: the softmax of a single entry needs its whole
row. So each of the three has a softmax of its own, over what it has: nothing is ``(N, L)``, and no column of ``F`` is
one of ``P``.

With ``key_mask`` a key landmark is the mean of the unmasked keys of its segment. Landmark ``r`` is dropped where there
are none: column ``r`` of ``F``, row and column ``r`` of ``A``, row ``r`` of ``B``. Then the rows and columns of ``A``
and ``A^+`` at dropped places are 0, and all else is as if they were not there.

:Time: ``O((N + L) R max(D, M) + R^3)``
:Memory: ``O(N M + R (D + M + R))``
:Causal: no
:Exact: no
:Gives: softmax attention of low rank, by the Nyström method

The gradient, by hand
---------------------
(6) is read from the right. ``G = B V`` is softmax attention of the landmark queries, ``H = Z G`` a product, and ``F H``
softmax attention to the landmark keys with ``H`` for values. Their backward passes give, from ``dO``,

    dQ, dK~, dH   of F H                                     (8)
    dG = Z^T dH,  dZ = dH G^T                                (9)
    dQ~, dK, dV   of B V, from dG                            (10)

The middle: ``dA`` from ``dZ`` through (5), then through the softmax (3), whose scores are ``S``, as in softmax
attention,

    dS = A * (dA - rowsum(dA * A))                           (11)
    dQ~ += scale dS K~,   dK~ += scale dS^T Q~               (12)

and the means (1) hand their gradient to every row of the segment in equal parts:

    dq_i += dq~_r / |segment r|,   dk_j likewise             (13)

Example
-------
With as many landmarks as tokens, ``F = A = B``, and ``A A^+ A`` is softmax attention itself; with one, every query gets
what the mean query gets from all keys.

>>> import numpy as np
>>> x, v = np.array([[0.0], [2.0]]), np.array([[1.0], [5.0]])
>>> print(forward(x, x, v, pinv="exact")[0].T.round(3))  # softmax((0, 0)) and softmax((0, 4))
[[3.    4.928]]
>>> out, saved = forward(x, x, v, landmarks=1)  # softmax((0, 2)), twice
>>> print(out.T.round(3))
[[4.523 4.523]]
>>> print(backward(np.ones((2, 1)), saved).v.T.round(3))
[[0.238 1.762]]

References
----------
Xiong et al. (2021), "Nyströmformer: a Nyström-based algorithm for approximating self-attention", equations 13 to 17,
Figure 4 (the convolution).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from linattn_ref.attention import depthwise, pinv_exact, pinv_iterative, segment_means, softmax
from linattn_ref.attention.arguments import Array, Mask, backward_check, resolve_scale
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.nystromformer_checks import PSEUDO_INVERSES, PseudoInverse, check_forward, check_matrix
from linattn_ref.attention.rooms import SoftmaxRoom
from linattn_ref.kernels import reference

__all__ = [
    "PSEUDO_INVERSES",
    "Gradients",
    "GradientsWithConv",
    "PseudoInverse",
    "Saved",
    "backward",
    "forward",
    "matrix",
]

LANDMARKS = 64  # unless given, or there are fewer tokens


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output, and some matrices of ``R`` rows."""

    means_q: segment_means.Saved
    means_k: segment_means.Saved
    outer: softmax.Saved  # of F H: its q, k, v are Q, K~, H
    inner: softmax.Saved  # of B V: its q, k, v are Q~, K, V, masked rows 0; its output is G
    z: Array  # (..., R, R)
    inverse: pinv_iterative.Saved | pinv_exact.Saved  # its a is A
    convolution: depthwise.Saved | None


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)

    @property
    def conv(self) -> None:
        """No field: there was none."""
        return None


@documented
class GradientsWithConv(NamedTuple):
    """The same, where ``forward`` was given a convolution."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)
    conv: Array  # (H, K)


@door(check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    conv: Array | None = None,
    *,
    landmarks: int | None = None,
    pinv: PseudoInverse = "iterative",
    iterations: int = 6,
    key_mask: Mask | None = None,
    scale: float | None = None,
    out: Array | None = None,
    kernels: SoftmaxRoom = reference,
) -> tuple[Array, Saved]:
    """Nyström attention.

    Parameters
    ----------
    q, k, v, key_mask, scale, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. Padding moves the segments' bounds, so that a padded
        sequence gives another approximation than the sequence alone.
    conv : ndarray ``(H, K)``, optional
        Weights of the convolution (7), ``K`` odd, ``H`` the last leading axis (``(K,)`` or ``(1, K)`` where there are
        no leading axes); needs ``N = L``. Masked rows of ``V`` are 0.
    landmarks : int, optional
        ``R <= min(N, L)``; ``min(64, N, L)`` unless given.
    pinv : {"iterative", "exact"}
    iterations : int
        Of the iterative pseudo-inverse.
    """
    scale, landmarks = resolve_scale(scale, q.shape[-1]), landmarks or min(LANDMARKS, q.shape[-2], k.shape[-2])
    q_means, means_q = segment_means.forward.unchecked(q, landmarks)  # (1)  (..., R, D)
    k_means, means_k = segment_means.forward.unchecked(k, landmarks, key_mask=key_mask)  # (1)  (..., R, D)
    kept = None if key_mask is None else segment_means.occupied(key_mask, landmarks)  # (..., R)

    a = _crossing(q_means, k_means, kept, scale)  # (3)  (..., R, R)
    z, inverse = _pseudo_inverse(a, kept, pinv, iterations)  # (5)  (..., R, R)
    # Row r of G is left in place where landmark r is dropped: it meets a column of zeros in Z.
    attend = softmax.forward.unchecked
    g, inner = attend(q_means, k, v, key_mask=key_mask, scale=scale, kernels=kernels)  # (4)  (..., R, M)
    buffer = out if conv is None else None  # the backward pass needs what is read before the convolution is added
    read, outer = attend(q, k_means, z @ g, key_mask=kept, scale=scale, out=buffer, kernels=kernels)  # (2), (6)
    if conv is None:
        return read, Saved(means_q, means_k, outer, inner, z, inverse, None)
    local, convolution = depthwise.forward.unchecked(inner.v, conv)  # (7)  (..., N, M)
    return np.add(read, local, out=out), Saved(means_q, means_k, outer, inner, z, inverse, convolution)


@door(backward_check(Saved, "outer.out"))
def backward(d_out: Array, saved: Saved) -> Gradients | GradientsWithConv:
    """Gradients of :func:`forward`, equations (8)-(13); of ``conv`` too, where it was given one."""
    means_q, means_k, outer, inner, z, inverse, convolution = saved
    a, q_means, k_means, scale = inverse.a, inner.q, outer.k, outer.scale
    d_q, d_k_means, d_h = softmax.backward.unchecked(d_out, outer)  # (8)  (..., N, D), (..., R, D), (..., R, M)
    d_g = z.swapaxes(-1, -2) @ d_h  # (9)  (..., R, M)
    d_z = d_h @ inner.out.swapaxes(-1, -2)  # (9)  (..., R, R)
    d_q_means, d_k, d_v = softmax.backward.unchecked(d_g, inner)  # (10)  (..., R, D), (..., L, D), (..., L, M)

    d_a = _pseudo_inverse_backward(d_z, inverse)  # (..., R, R)
    d_scores = a * (d_a - (d_a * a).sum(axis=-1, keepdims=True))  # (11)  (..., R, R)
    d_q_means += scale * (d_scores @ k_means)  # (12)
    d_k_means += scale * (d_scores.swapaxes(-1, -2) @ q_means)  # (12)
    d_q += segment_means.backward.unchecked(d_q_means, means_q).x  # (13)  (..., N, D)
    d_k += segment_means.backward.unchecked(d_k_means, means_k).x  # (13)  (..., L, D)
    if convolution is None:
        return Gradients(d_q, d_k, d_v)
    d_v_local, d_conv = depthwise.backward.unchecked(d_out, convolution)
    return GradientsWithConv(d_q, d_k, d_v + zero_masked(d_v_local, inner.key_mask), d_conv)


@door(check_matrix)
def matrix(
    q: Array,
    k: Array,
    *,
    landmarks: int | None = None,
    pinv: PseudoInverse = "iterative",
    iterations: int = 6,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The matrix ``F Z B (..., N, L)`` in place of softmax attention's ``P``: ``out == matrix @ v``, without ``conv``.

    Its rank is at most ``R``, and its entries can be negative. Arguments as in :func:`forward`.
    """
    scale, landmarks = resolve_scale(scale, q.shape[-1]), landmarks or min(LANDMARKS, q.shape[-2], k.shape[-2])
    q_means, _ = segment_means.forward.unchecked(q, landmarks)  # (1)
    k_means, _ = segment_means.forward.unchecked(k, landmarks, key_mask=key_mask)  # (1)
    kept = None if key_mask is None else segment_means.occupied(key_mask, landmarks)
    f = softmax.matrix.unchecked(q, k_means, key_mask=kept, scale=scale)  # (2)  (..., N, R)
    b = softmax.matrix.unchecked(q_means, k, key_mask=key_mask, scale=scale)  # (4)  (..., R, L)
    z, _ = _pseudo_inverse(_crossing(q_means, k_means, kept, scale), kept, pinv, iterations)  # (3), (5)
    return f @ (z @ b)  # (..., N, L)


# --- The middle -----------------------------------------------------------------------------------------------------


def _crossing(q_means: Array, k_means: Array, kept: Mask | None, scale: float) -> Array:
    """``A`` of equation (3), rows and columns of dropped landmarks 0."""
    return zero_masked(softmax.matrix.unchecked(q_means, k_means, key_mask=kept, scale=scale), kept)


def _pseudo_inverse(
    a: Array, kept: Mask | None, pinv: PseudoInverse, iterations: int
) -> tuple[Array, pinv_iterative.Saved | pinv_exact.Saved]:
    """``Z`` of equation (5), rows and columns of dropped landmarks 0."""
    if pinv == "iterative":
        return pinv_iterative.forward.unchecked(a, iterations=iterations)
    z, inverse = pinv_exact.forward.unchecked(a)
    if kept is not None:  # the decomposition leaves rounding where A has zeros; products, above, do not
        z = np.where(kept[..., None] & kept[..., None, :], z, z.dtype.type(0))
    return z, inverse._replace(x=z)


def _pseudo_inverse_backward(d_z: Array, inverse: pinv_iterative.Saved | pinv_exact.Saved) -> Array:
    if isinstance(inverse, pinv_exact.Saved):
        return pinv_exact.backward.unchecked(d_z, inverse).a
    return pinv_iterative.backward.unchecked(d_z, inverse).a
