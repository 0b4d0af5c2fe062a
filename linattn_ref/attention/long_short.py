"""Long-Short Transformer (Zhu et al. 2021): the neighbours as they are, and the rest as a few mixtures that it chooses.

The sequence is cut into segments of width ``w``. A query looks at two kinds of keys at once:

*short term*, the keys near it: its own segment and ``w // 2`` keys on both sides of that; causal, the segment before
its own, and of its own the keys up to itself;

*long term*, ``R`` mixtures of the keys, by weights that depend on the keys:

    P = softmax(K W_p)                                       (1)  (L, R), each column sums to 1 over the sequence
    K- = P^T K,   V- = P^T V                                 (2)  (R, D), (R, M)

Linformer's ``E`` has one column a position and is fixed; ``W_p (D, R)`` fits any length, and when the content moves to
another position, its weight in the mixture moves with it. Causal, every segment is mixed on its own into ``R`` rows,
and a query sees those of the segments wholly before its own: ``R`` rows a segment, ``N / w`` segments, so the long term
takes ``O(N^2 R / w)``: quadratic still, ``w / R`` times less than softmax attention.

Keys and mixtures of keys have different lengths, and at the start of training the longer would get all the weight. So
each kind has a layer norm of its own ("dual layer norm", ``long_short_norm.py``), and so have the values:

    K~ = norm(K),   K^ = norm'(K-),   V~ = norm(V),   V^ = norm'(V-)                                         (3)
    out_i = softmax(scale q_i [K^ ; K~ near i]^T) [V^ ; V~ near i]                                           (4)

:Time: ``O(N (w + R) (D + M))``; causal ``O(N (w + N R / w) (D + M))``
:Memory: ``O(L R + R (D + M))``; causal ``O(L R + L R / w (D + M))``
:Causal: yes
:Exact: no
:Gives: softmax attention over near keys and mixtures of all keys, chosen by content

The gradient, by hand
---------------------
(4) is softmax attention of ``w`` queries to a few keys, segment by segment; its backward pass (``softmax.py``) gives
``dK~``, ``dK^``, ``dV~`` and ``dV^``, to which every segment adds that saw the key. Back through the norms they are
gradients of ``K``, ``K-``, ``V`` and ``V-``, and what ``K-`` and ``V-`` get goes on through (2) and (1), to ``K`` and
``V`` once more and to ``W_p``: ``long_short_projection.py``.

References
----------
Zhu et al. (2021), "Long-short Transformer: efficient Transformers for language and vision", section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linattn_ref.attention import softmax
from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_d_out,
    check_qk,
    check_qkv,
    check_saved,
    check_sizes,
    resolve_scale,
)
from linattn_ref.attention.long_short_norm import Norm, check_norm, layer_norm, layer_norm_backward
from linattn_ref.attention.long_short_projection import check_w_p, in_parts, mix, mix_backward, projection
from linattn_ref.attention.masks import zero_masked


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the projection and the mixtures. Everything else is computed again."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    w_p: Array  # (..., D, R)
    norm_local: Norm | None
    norm_global: Norm | None
    p: Array  # (..., T, W, R): T = 1 and W = L, or causal T segments of width W = w
    mixed_k: Array  # K- (..., T R, D)
    mixed_v: Array  # V- (..., T R, M)
    key_mask: Mask | None  # (..., L)
    window: int
    causal: bool
    scale: float


class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``; None for a norm that is None."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)
    w_p: Array  # like w_p
    norm_local: Norm | None
    norm_global: Norm | None


def forward(
    q: Array,
    k: Array,
    v: Array,
    w_p: Array,
    norm_local: Norm | None,
    norm_global: Norm | None,
    *,
    window: int,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Long-short attention.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``, float32 or float64
        ``N = L``, as the short term is about places; causal, the ``N`` queries are the last of ``L`` places.
    w_p : ndarray ``(D, R)`` or ``(..., D, R)``
        What each mixture looks for; leading axes broadcast with those of ``k``.
    norm_local, norm_global : ``((gain, bias), (gain, bias))`` or None
        Of the near keys ``(D,)`` and values ``(M,)``, and of the mixtures. None is no norm.
    window : int
        ``w``, the width of a segment; the last may be shorter.
    causal : bool
        Query ``i`` sees keys ``j <= i + (L - N)``; needs ``N <= L``.
    key_mask : ndarray of bool ``(..., L)``, optional
        True = may be attended. A masked key has no share in a mixture; a segment without a key has no mixtures.
    scale : float, optional
        ``1/sqrt(D)`` unless given.

    Returns
    -------
    out : ndarray ``(..., N, M)``
        A query that may see nothing gets 0.
    saved : Saved

    Raises
    ------
    TypeError, ValueError
        Naming the argument that breaks the conventions above.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    _check_places(q, k, causal, window)
    check_w_p(w_p, k)
    check_norm("norm_local", norm_local, k, v)
    check_norm("norm_global", norm_global, k, v)
    scale = resolve_scale(scale, q.shape[-1])
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    p = dynamic_projection(k, w_p, window=window, causal=causal, key_mask=key_mask)  # (1)  (..., T, W, R)
    mixed_k, mixed_v = (mix(p, in_parts(x, window, causal)) for x in (k, v))  # (2)  (..., T R, D), (..., T R, M)
    saved = Saved(q, k, v, w_p, norm_local, norm_global, p, mixed_k, mixed_v, key_mask, int(window), causal, scale)
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    for segment, keys, values, mask in _segments(saved, *_normalised(saved)):
        rows = segment.queries
        out[..., rows, :], _ = softmax.dense_forward(
            q[..., rows, :], keys, values, causal=causal, key_mask=mask, scale=scale
        )  # (4)
    return out, saved


def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`.

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    saved : Saved

    Returns
    -------
    Gradients
        Exactly 0 for masked keys and for queries that see nothing.
    """
    check_saved(saved, Saved)
    q, k, v, mixed_k, mixed_v = saved.q, saved.k, saved.v, saved.mixed_k, saved.mixed_v
    check_d_out(d_out, (*q.shape[:-1], v.shape[-1]), q.dtype)
    d_q = np.empty(q.shape, q.dtype)
    d_near_k, d_near_v, d_far_k, d_far_v = (np.zeros(x.shape, x.dtype) for x in (k, v, mixed_k, mixed_v))
    for (rows, near, far), keys, values, mask in _segments(saved, *_normalised(saved)):
        g, x = d_out[..., rows, :], q[..., rows, :]
        _, kept = softmax.dense_forward(x, keys, values, causal=saved.causal, key_mask=mask, scale=saved.scale)
        d_q[..., rows, :], d_keys, d_values = softmax.dense_backward(g, kept)
        for d, d_near, d_far in ((d_keys, d_near_k, d_far_k), (d_values, d_near_v, d_far_v)):
            d_far[..., :far, :] += d[..., :far, :]
            d_near[..., near, :] += d[..., far:, :]
    d_k, d_v, d_norm_local = _both_backward(d_near_k, d_near_v, k, v, saved.norm_local)
    d_mixed_k, d_mixed_v, d_norm_global = _both_backward(d_far_k, d_far_v, mixed_k, mixed_v, saved.norm_global)
    k_parts, v_parts, d_k_parts, d_v_parts = (in_parts(x, saved.window, saved.causal) for x in (k, v, d_k, d_v))
    by_mixing_k, by_mixing_v, d_w_p = mix_backward(d_mixed_k, d_mixed_v, saved.p, k_parts, v_parts, saved.w_p)
    d_k_parts += by_mixing_k  # views of d_k and d_v
    d_v_parts += by_mixing_v
    return Gradients(d_q, d_k, d_v, d_w_p, d_norm_local, d_norm_global)


def dynamic_projection(
    k: Array, w_p: Array, *, window: int, causal: bool = False, key_mask: Mask | None = None
) -> Array:
    """``P`` of (1) for keys ``(..., L, D)``: ``(..., 1, L, R)``, or causal one for each segment but the last."""
    mask = None if key_mask is None else in_parts(key_mask[..., None], window, causal)  # (..., T, W, 1)
    return projection(in_parts(k, window, causal), w_p, mask)  # (1)


# --- Segments -------------------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """What a segment's queries see."""

    queries: slice
    near: slice  # of the keys; causal, the segment's own are its last
    far: int  # so many of the mixtures


def segments(n: int, length: int, window: int, reduced: int, causal: bool) -> Iterator[Segment]:
    """The segments that have queries: ``N`` queries at the last of ``L`` places, ``R`` mixtures a part."""
    first = length - n  # the place of the first query
    for start in range(first // window * window, length, window):
        stop = min(start + window, length)
        queries = slice(max(start, first) - first, stop - first)
        if causal:
            yield Segment(queries, slice(max(start - window, 0), stop), start // window * reduced)
        else:
            yield Segment(queries, slice(max(start - window // 2, 0), min(stop + window // 2, length)), reduced)


def _segments(
    saved: Saved, near_k: Array, near_v: Array, far_k: Array, far_v: Array
) -> Iterator[tuple[Segment, Array, Array, Mask | None]]:
    """Each segment with the keys, values and mask of (4); mixtures first, as causally the segment's own are last."""
    mask, reduced = saved.key_mask, saved.w_p.shape[-1]
    if mask is not None:  # a part without a key has no mixtures
        in_part = in_parts(mask[..., None], saved.window, saved.causal).any(axis=(-2, -1))  # (..., T)
        far_mask = np.repeat(in_part, reduced, axis=-1)  # (..., T R)
    for segment in segments(saved.q.shape[-2], saved.k.shape[-2], saved.window, reduced, saved.causal):
        near, far = segment.near, segment.far
        keys = np.concatenate([far_k[..., :far, :], near_k[..., near, :]], axis=-2)
        values = np.concatenate([far_v[..., :far, :], near_v[..., near, :]], axis=-2)
        seen = None if mask is None else np.concatenate([far_mask[..., :far], mask[..., near]], axis=-1)
        yield segment, keys, values, seen


def pattern(n: int, *, window: int, causal: bool = False) -> Mask:
    """Which query sees which key in the short term, ``(N, N)``: for teaching."""
    check_sizes(n=n, window=window)
    seen = np.zeros((n, n), np.bool_)
    for queries, near, _ in segments(n, n, window, 1, causal):
        seen[queries, near] = True
    return np.tril(seen) if causal else seen


# --- Both norms ------------------------------------------------------------------------------------------------


def _normalised(saved: Saved) -> tuple[Array, Array, Array, Array]:
    """``K~``, ``V~``, ``K^`` and ``V^``."""
    (near_k, near_v), (far_k, far_v) = saved.norm_local or (None, None), saved.norm_global or (None, None)
    return (
        layer_norm(saved.k, near_k),
        layer_norm(saved.v, near_v),
        layer_norm(saved.mixed_k, far_k),
        layer_norm(saved.mixed_v, far_v),
    )


def _both_backward(d_k: Array, d_v: Array, k: Array, v: Array, norm: Norm | None) -> tuple[Array, Array, Norm | None]:
    """Through the norms of keys and values."""
    of_keys, of_values = norm or (None, None)
    d_k, d_of_keys = layer_norm_backward(d_k, k, of_keys)
    d_v, d_of_values = layer_norm_backward(d_v, v, of_values)
    return d_k, d_v, None if d_of_keys is None or d_of_values is None else (d_of_keys, d_of_values)


# --- The matrix -----------------------------------------------------------------------------------------------------


def matrix(
    q: Array,
    k: Array,
    w_p: Array,
    norm_local: Norm | None,
    norm_global: Norm | None,
    *,
    window: int,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The matrix ``(..., N, L)`` that is applied to ``V``, the mixtures' weights handed on to the keys in them.

    ``out == matrix @ v`` where the values have no norm: those given are used for the keys alone. Rows sum to 1.
    """
    check_qk(q, k, causal=causal, key_mask=key_mask)
    one = np.broadcast_to(np.eye(k.shape[-2], dtype=k.dtype), (*k.shape[:-1], k.shape[-2]))  # V = I  (..., L, L)
    _, saved = forward(q, k, one, w_p, None, None, window=window, causal=causal, key_mask=key_mask, scale=scale)
    for name, norm in (("norm_local", norm_local), ("norm_global", norm_global)):
        check_norm(name, norm, k, None)
    near_k = layer_norm(saved.k, None if norm_local is None else norm_local[0])
    far_k = layer_norm(saved.mixed_k, None if norm_global is None else norm_global[0])
    p = np.empty((*q.shape[:-1], k.shape[-2]), q.dtype)
    for segment, keys, values, mask in _segments(saved, near_k, saved.v, far_k, saved.mixed_v):
        rows = segment.queries
        p[..., rows, :], _ = softmax.dense_forward(
            q[..., rows, :], keys, values, causal=causal, key_mask=mask, scale=scale
        )
    return p


# --- Checks ---------------------------------------------------------------------------------------------------------


def _check_places(q: Array, k: Array, causal: bool, window: int) -> None:
    check_sizes(window=window)
    if not causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"q: the keys near a query need N = L (or causal=True), got N = {q.shape[-2]} and L = {k.shape[-2]}"
        )
