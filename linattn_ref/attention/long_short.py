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
each kind has a layer norm of its own ("dual layer norm", ``layer_norm.py``), and so have the values:

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
``V`` once more and to ``W_p``: ``dynamic_projection.py``.

Example
-------
Five tokens in segments of two, all scores equal, one mixture: with equal weights it is the mean of all values, 3. A
query sees it, its own segment and one key on both sides.

>>> import numpy as np
>>> x, v, w_p = np.zeros((5, 2)), np.array([[1.0], [2.0], [3.0], [4.0], [5.0]]), np.zeros((2, 1))
>>> out, saved = forward(x, x, v, w_p, None, None, window=2)
>>> print(out.T)  # (3 + 1 + 2 + 3) / 4, (3 + 2 + 3 + 4 + 5) / 5, (3 + 4 + 5) / 3
[[2.25 2.25 3.4  3.4  4.  ]]
>>> print(backward(np.ones((5, 1)), saved).v.T.round(3))
[[0.747 1.147 1.147 0.98  0.98 ]]

No ``kernels``: keys of two kinds are put side by side for each segment, and what is left is dense softmax attention of
``w`` queries to some ``2 w + R`` keys, small matrices which NumPy's products are good at.

References
----------
Zhu et al. (2021), "Long-short Transformer: efficient Transformers for language and vision", section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import softmax
from linattn_ref.attention.arguments import Array, Mask, check_d_out, check_saved, check_sizes, resolve_scale
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.long_short_checks import Norm, Pair, check_forward, check_matrix
from linattn_ref.attention.parts import dynamic_projection, layer_norm
from linattn_ref.attention.parts.dynamic_projection import Mixtures, in_parts
from linattn_ref.attention.plain_numbers import plain_numbers

__all__ = ["Gradients", "Norm", "Saved", "backward", "forward", "matrix", "pattern", "segments"]

EPS = 1e-5  # of the norms
Pairs = tuple[Pair | None, Pair | None, Pair | None, Pair | None]
NONE = None, None


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the projection and the mixtures. Everything else is computed again."""

    q: Array  # (..., N, D)
    mixing: dynamic_projection.Saved  # of (1) and (2): K, V, W_p, P; whether causal, and w
    mixed: Mixtures  # K- (..., T R, D) and V- (..., T R, M)
    pairs: Pairs  # gain and bias of each of (3): of K, V, K-, V-
    key_mask: Mask | None  # (..., L)
    scale: float


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``; None for a norm that is None."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)
    w_p: Array  # like w_p
    norm_local: Norm | None
    norm_global: Norm | None


@door(check_forward)
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
    out: Array | None = None,
) -> tuple[Array, Saved]:
    """Long-short attention.

    Parameters
    ----------
    q, k, v, causal, key_mask, scale, out
        The common arguments: ``help(linattn_ref.attention)``. ``N = L`` unless causal, as the short term is about
        places. A masked key has no share in a mixture; a segment without a key has no mixtures.
    w_p : ndarray ``(D, R)`` or ``(..., D, R)``
        What each mixture looks for; leading axes broadcast with those of ``k``.
    norm_local, norm_global : ``((gain, bias), (gain, bias))`` or None
        Of the near keys ``(D,)`` and values ``(M,)``, and of the mixtures. None is no norm.
    window : int
        ``w``, the width of a segment; the last may be shorter.
    """
    mixed, mixing = dynamic_projection.forward.unchecked(
        k, v, w_p, window=int(window), causal=causal, key_mask=key_mask
    )  # (1), (2)
    pairs = *(norm_local or NONE), *(norm_global or NONE)
    saved = Saved(q, mixing, mixed, pairs, key_mask, resolve_scale(scale, q.shape[-1]))
    return _attend(saved, out), saved


def _attend(saved: Saved, out: Array | None = None) -> Array:
    """``out`` of (4), segment by segment."""
    normed = [y for y, _ in _normed(saved)]  # (3)
    if out is None:
        out = np.empty_like(saved.q, shape=(*saved.q.shape[:-1], saved.mixing.v.shape[-1]))
    for (rows, _, _), keys, values, mask in _segments(saved, *normed):
        out[..., rows, :], _ = softmax.forward.unchecked(
            saved.q[..., rows, :], keys, values, causal=saved.mixing.causal, key_mask=mask, scale=saved.scale
        )  # (4)
    return out


def _check_backward(d_out: Array, saved: Any) -> None:
    check_saved(saved, Saved)
    check_d_out(d_out, (*saved.q.shape[:-1], saved.mixing.v.shape[-1]), saved.q.dtype)


@door(_check_backward)
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`: exactly 0 for masked keys and for queries that see nothing."""
    normed, norms = zip(*_normed(saved), strict=True)  # (3), once more
    d_q = np.empty_like(saved.q)
    d_normed = d_near_k, d_near_v, d_far_k, d_far_v = tuple(np.zeros_like(x) for x in normed)
    for (rows, near, far), keys, values, mask in _segments(saved, *normed):
        _, kept = softmax.forward.unchecked(
            saved.q[..., rows, :], keys, values, causal=saved.mixing.causal, key_mask=mask, scale=saved.scale
        )
        d_q[..., rows, :], d_keys, d_values = softmax.backward.unchecked(d_out[..., rows, :], kept)  # of (4)
        for d, d_near, d_far in ((d_keys, d_near_k, d_far_k), (d_values, d_near_v, d_far_v)):
            d_far[..., :far, :] += d[..., :far, :]
            d_near[..., near, :] += d[..., far:, :]
    (d_k, d_v, d_mixed_k, d_mixed_v), pairs = zip(*map(_norm_backward, d_normed, norms), strict=True)  # of (3)
    by_mixing = dynamic_projection.backward.unchecked(Mixtures(d_mixed_k, d_mixed_v), saved.mixing)  # of (2) and (1)
    d_norm_local, d_norm_global = (None if of_k is None else (of_k, of_v) for of_k, of_v in (pairs[:2], pairs[2:]))
    return Gradients(d_q, d_k + by_mixing.k, d_v + by_mixing.v, by_mixing.w_p, d_norm_local, d_norm_global)


def _normed(saved: Saved) -> Iterator[tuple[Array, layer_norm.Saved | None]]:
    """``K~``, ``V~``, ``K^`` and ``V^`` of (3), each with what its norm saved: None where there is no norm."""
    for x, pair in zip((saved.mixing.k, saved.mixing.v, *saved.mixed), saved.pairs, strict=True):
        yield (x, None) if pair is None else layer_norm.forward.unchecked(x, layer_norm.Params(*pair), eps=EPS)


def _norm_backward(d: Array, saved: layer_norm.Saved | None) -> tuple[Array, layer_norm.Params | None]:
    return (d, None) if saved is None else layer_norm.backward.unchecked(d, saved)


# --- Segments -------------------------------------------------------------------------------------------------------


@documented
class Segment(NamedTuple):
    """What a segment's queries see."""

    queries: slice
    near: slice  # of the keys; causal, the segment's own are its last
    far: int  # so many of the mixtures


@plain_numbers
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
    mask, window, causal, reduced = saved.key_mask, saved.mixing.window, saved.mixing.causal, saved.mixing.p.shape[-1]
    if mask is not None:  # a part without a key has no mixtures
        in_part = in_parts(mask[..., None], window, causal).any(axis=(-2, -1))  # (..., T)
        far_mask = np.repeat(in_part, reduced, axis=-1)  # (..., T R)
    for segment in segments(saved.q.shape[-2], near_k.shape[-2], window, reduced, causal):
        near, far = segment.near, segment.far
        keys = np.concatenate([far_k[..., :far, :], near_k[..., near, :]], axis=-2)
        values = np.concatenate([far_v[..., :far, :], near_v[..., near, :]], axis=-2)
        seen = None if mask is None else np.concatenate([far_mask[..., :far], mask[..., near]], axis=-1)
        yield segment, keys, values, seen


@plain_numbers
def pattern(n: int, *, window: int, causal: bool = False) -> Mask:
    """Which query sees which key in the short term, ``(N, N)``: for teaching."""
    check_sizes(n=n, window=window)
    seen = np.zeros((n, n), np.bool_)
    for queries, near, _ in segments(n, n, window, 1, causal):
        seen[queries, near] = True
    return np.tril(seen) if causal else seen


# --- The matrix -----------------------------------------------------------------------------------------------------


@door(check_matrix)
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
    one = np.broadcast_to(np.eye(k.shape[-2], dtype=k.dtype), (*k.shape[:-1], k.shape[-2]))  # V = I  (..., L, L)
    mixed, mixing = dynamic_projection.forward.unchecked(k, one, w_p, window=window, causal=causal, key_mask=key_mask)
    pairs = (norm_local or NONE)[0], None, (norm_global or NONE)[0], None  # of keys
    return _attend(Saved(q, mixing, mixed, pairs, key_mask, resolve_scale(scale, q.shape[-1])))
