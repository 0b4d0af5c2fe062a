"""Nyströmformer (Xiong et al. 2021): a few landmarks stand between the queries and the keys.

    Q~ = segment means of Q,   K~ = segment means of K       (1)  (R, D): parts/segment_means.py
    F = softmax(scale Q K~^T)                                (2)  (N, R)
    A = softmax(scale Q~ K~^T)                               (3)  (R, R)
    B = softmax(scale Q~ K^T)                                (4)  (R, L)
    Z = A^+                                                  (5)  parts/pinv_iterative.py or pinv_exact.py
    O = F (Z (B V))                                          (6)  (N, M)
    O_i += sum_t c_t v_(i + t - w // 2)                      (7)  w weights c, if given: parts/depthwise.py

The Nyström method rebuilds a matrix from some of its columns ``F`` and rows ``B`` and the block ``A`` where they cross,
``P ~ F A^+ B``. It cannot be used on softmax attention's ``P`` itself: the softmax of a single entry needs its whole
row. So each of the three has a softmax of its own, over its own columns. Nothing is ``(N, L)``, and unless ``R = L`` no
column of ``F`` is one of ``P``.

With ``key_mask`` a key landmark is the mean of the unmasked keys of its segment, and with ``query_mask`` a query
landmark that of the unmasked queries. Landmark ``r`` is dropped where there are none: column ``r`` of ``F``, row and
column ``r`` of ``A``, row ``r`` of ``B``. Then the rows and columns of ``A`` and ``A^+`` at dropped places are 0, and
all else is as if they were not there.

:Time: ``O((N + L) R max(D, M) + iterations R^3 + N w M)``
:Memory: ``O((N + L) R + R (D + M) + iterations R^2)``
:Causal: no
:Exact: no
:Gives: softmax attention of low rank, in the shape of the Nyström method

The gradient, by hand
---------------------
Read (6) from the right: ``G = B V`` is softmax attention of the landmark queries, ``H = Z G`` a product, and ``F H``
softmax attention to the landmark keys with ``H`` for values. Their backward passes return, from ``dO``,

    dQ, dK~, dH   of F H                                     (8)
    dG = Z^T dH,  dZ = dH G^T                                (9)
    dQ~, dK, dV   of B V, from dG                            (10)

``A`` is in the middle. Its gradient ``dA`` comes from ``dZ`` through (5), and goes on through the softmax (3), whose
scores are ``S``:

    dS = A * (dA - rowsum(dA * A))                           (11)
    dQ~ += scale dS K~,   dK~ += scale dS^T Q~               (12)

The means (1) pass their gradient to the rows of the segment in equal parts:

    dq_i += dq~_r / |unmasked queries of segment r|,   dk_j += dk~_r / |unmasked keys|, if unmasked      (13)

With as many landmarks as tokens, ``F = A = B``, and ``A A^+ A`` is softmax attention itself. With one, every query gets
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
Xiong et al. (2021), "Nyströmformer: a Nyström-based algorithm for approximating self-attention", equations 13-17.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Literal, NamedTuple, get_args

from linattn_ref.attention import softmax
from linattn_ref.attention.parts import depthwise, pinv_exact, pinv_iterative, segment_means
from linattn_ref.attention.parts.masks import shown
from linattn_ref.attention.parts.recurrent import matrix_of
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import check_choice, check_sizes

__all__ = ["PSEUDO_INVERSES", "Gradients", "PseudoInverse", "Saved", "backward", "forward", "matrix"]

LANDMARKS = 64  # unless given, or there are fewer tokens

PseudoInverse = Literal["iterative", "exact"]
PSEUDO_INVERSES: tuple[PseudoInverse, ...] = get_args(PseudoInverse)


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, what two softmax attentions keep, and some matrices of ``R`` rows."""

    means_q: segment_means.Saved
    means_k: segment_means.Saved
    outer: Any  # of F H: its q, k, v are Q, K~, H
    inner: Any  # of B V: its q, k, v are Q~, K, V, masked rows 0
    g: Float[Array, "... R M"]  # the output of that
    key_mask: Bool[Array, "... L"] | None
    z: Float[Array, "... R R"]
    inverse: pinv_iterative.Saved | pinv_exact.Saved  # its a is A
    convolution: depthwise.Saved | None


class Gradients(NamedTuple):
    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]
    v: Float[Array, "... L M"]
    conv: Float[Any, "*... K"] = None  # where forward was given one


def look(q: Any, k: Any, v: Any = None, conv: Any = None, landmarks: Any = None, **options: Any) -> None:
    shorter, pinv = min(q.shape[-2], k.shape[-2]), options.get("pinv", "iterative")
    whole = isinstance(landmarks, int) and not isinstance(landmarks, bool)
    if landmarks is not None and not (whole and 1 <= landmarks <= shorter):
        raise ValueError(f"landmarks: expected an integer with 1 <= R <= min(N, L) = {shorter}, got {landmarks!r}")
    check_choice("pinv", pinv, PSEUDO_INVERSES)
    check_sizes(iterations=options.get("iterations", 6))
    depthwise.check_conv(v, conv)
    if conv is not None and q.shape[-2] != k.shape[-2]:
        raise ValueError(f"conv: needs N = L, a value for each query, got N = {q.shape[-2]} and L = {k.shape[-2]}")


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    conv: Float[Array, "*... K"] | None = None,
    *,
    landmarks: int | None = None,
    pinv: PseudoInverse = "iterative",
    iterations: int = 6,
    key_mask: Bool[Array, "... L"] | None = None,
    query_mask: Bool[Array, "... N"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(7); ``R``, ``landmarks``, is ``min(64, N, L)`` unless given, and ``conv (H, K)`` needs ``N = L``.

    Without ``query_mask``, the queries of padding stand in the means. With it they change no other row. But padding
    moves the segments' bounds, so that a padded sequence gives another approximation than the sequence alone.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    landmarks = landmarks or min(LANDMARKS, q.shape[-2], k.shape[-2])
    q_means, means_q = segment_means.forward(q, landmarks, key_mask=query_mask)  # (1)
    k_means, means_k = segment_means.forward(k, landmarks, key_mask=key_mask)  # (1)
    kept = kept_of(landmarks, key_mask, query_mask)
    a = shown(softmax.matrix(q_means, k_means, key_mask=kept, scale=scale), kept)  # (3), rows of dropped landmarks 0
    z, inverse = pseudo_inverse(a, kept, pinv, iterations)  # (5)
    # Row r of G is left in place where landmark r is dropped: it meets a column of zeros in Z.
    g, inner = softmax.forward(q_means, k, v, key_mask=key_mask, scale=scale)  # (4)
    out, outer = softmax.forward(q, k_means, z @ g, key_mask=kept, scale=scale)  # (2), (6)
    convolution = None
    if conv is not None:
        local, convolution = depthwise.forward(inner.v, conv)
        out = out + local  # (7), a new array: a backend's backward pass may need the one before
    return out, Saved(means_q, means_k, outer, inner, g, key_mask, z, inverse, convolution)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Equations (8)-(13)."""
    means_q, means_k, outer, inner, g, key_mask, z, inverse, convolution = saved
    a, q_means, k_means, scale = inverse.a, inner.q, outer.k, outer.scale
    d_q, d_k_means, d_h = softmax.backward(d_out, outer)  # (8)
    d_g, d_z = z.mT @ d_h, d_h @ g.mT  # (9)
    d_q_means, d_k, d_v = softmax.backward(d_g, inner)  # (10)
    inverse_page = pinv_exact if isinstance(inverse, pinv_exact.Saved) else pinv_iterative
    d_a = inverse_page.backward(d_z, inverse).a
    d_s = a * (d_a - (d_a * a).sum(axis=-1, keepdims=True))  # (11)
    d_q_means, d_k_means = d_q_means + scale * d_s @ k_means, d_k_means + scale * d_s.mT @ q_means  # (12)
    d_q = d_q + segment_means.backward(d_q_means, means_q).x  # (13)
    d_k = d_k + segment_means.backward(d_k_means, means_k).x  # (13)
    if convolution is None:
        return Gradients(d_q, d_k, d_v)
    d_v_local, d_conv = depthwise.backward(d_out, convolution)
    return Gradients(d_q, d_k, d_v + shown(d_v_local, key_mask), d_conv)


matrix = matrix_of(forward, without="conv")  # F Z B, of rank R at most; its entries can be negative


def kept_of(landmarks: int, *masks: Array | None) -> Array | None:
    """Which landmarks are not dropped, ``(..., R)``; None without a mask."""
    found = [segment_means.occupied(mask, landmarks) for mask in masks if mask is not None]
    return functools.reduce(operator.and_, found) if found else None


def pseudo_inverse(a: Array, kept: Array | None, pinv: PseudoInverse, iterations: int) -> tuple[Array, Any]:
    """``Z`` of equation (5), rows and columns of dropped landmarks 0."""
    if pinv == "iterative":
        return pinv_iterative.forward(a, iterations=iterations)
    z, inverse = pinv_exact.forward(a)
    z = shown(shown(z, kept).mT, kept).mT  # the decomposition leaves rounding where A has zeros; products do not
    return z, inverse._replace(x=z)
