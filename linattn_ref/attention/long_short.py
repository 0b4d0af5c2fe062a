"""Long-Short Transformer (Zhu et al. 2021): the neighbours as they are, and the rest as a few mixtures that it chooses.

The sequence is cut into segments of width ``w``. A query looks at two kinds of keys at once:

*short term*, the keys near it: its own segment and ``w // 2`` keys on both sides of that; causal, the segment before
its own, and of its own the keys up to itself;

*long term*, ``R`` mixtures of the keys, by weights that depend on the keys:

    P = softmax(K W_p)                                       (1)  (L, R), each column sums to 1 over the sequence
    K- = P^T K,   V- = P^T V                                 (2)  (R, D), (R, M)

Linformer's ``E`` has one column per position and is fixed; ``W_p (D, R)`` fits any length, and when the content moves,
its weight in the mixture moves with it. Causal, every segment is mixed on its own into ``R`` rows, and a query sees
those of the segments wholly before its own. These are ``N / w``, so the long term takes ``O(N^2 R / w)``: quadratic
still, ``w / R`` times less than softmax attention.

A mixture is a mean, and so shorter than the keys. At the start of training its scores and values are almost 0. So
each kind has a layer norm of its own ("dual layer norm"), and so have the values:

    K~ = norm(K),   K^ = norm'(K-),   V~ = norm(V),   V^ = norm'(V-)                                         (3)
    out_i = softmax(scale q_i [K^ ; K~ near i]^T) [V^ ; V~ near i]                                           (4)

:Time: ``O(N (w + R) (D + M))``; causal ``O(N (w + N R / w) (D + M))``
:Memory: ``O(N / w (w + R) (w + D + M))``; causal ``O(N / w (w + N R / w) (w + D + M))``
:Causal: yes
:Exact: no
:Gives: softmax attention over near keys and mixtures of all keys, chosen by content

The gradient, by hand
---------------------
(4) is softmax attention of ``w`` queries to a few keys, segment by segment. Its backward pass returns

    dQ, dK~, dK^, dV~, dV^   of (4), from dO                 (5)

to which every segment adds that saw the key. Back through the norms these are

    dK, dK-, dV, dV-   of (3), from dK~, dK^, dV~, dV^       (6)

and what ``K-`` and ``V-`` get goes on through (2) and (1), to ``K`` and ``V`` once more and to ``W_p``:

    dK += dK',   dV += dV',   dW_p   from dK-, dV-           (7)  parts/dynamic_projection.py

Five tokens in segments of two, all scores equal, one mixture: with equal weights it is the mean of all values, 3. A
query sees it, its own segment and one key on both sides.

>>> x, v, w_p = np.zeros((5, 2)), np.array([[1.0], [2.0], [3.0], [4.0], [5.0]]), np.zeros((2, 1))
>>> out, saved = forward(x, x, v, w_p, None, None, window=2)
>>> print(out.T)  # (3 + 1 + 2 + 3) / 4, (3 + 2 + 3 + 4 + 5) / 5, (3 + 4 + 5) / 3
[[2.25 2.25 3.4  3.4  4.  ]]
>>> print(backward(np.ones((5, 1)), saved).v.T.round(3))
[[0.747 1.147 1.147 0.98  0.98 ]]

References
----------
Zhu et al. (2021), "Long-short Transformer: efficient Transformers for language and vision", section 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import softmax
from linattn_ref.attention.parts import dynamic_projection
from linattn_ref.attention.parts.dynamic_projection import Mixtures, in_parts
from linattn_ref.attention.parts.near_keys import Segment, pattern, segments
from linattn_ref.nn import layer_norm  # from the layers above: a layer norm here would be the same text again
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import check_sizes
from linattn_ref.op.shapes import check, rules_of

__all__ = ["Gradients", "Norm", "Saved", "backward", "forward", "matrix", "pattern", "segments"]

EPS = 1e-5  # of the norms
Pair = tuple[Array, Array]  # gain and bias, (W,) each
Norm = tuple[Pair, Pair]  # for keys (D,) and for values (M,)


class Saved(NamedTuple):
    """What the backward pass needs: what the projection, four norms and the softmax of each segment keep."""

    q: Float[Array, "... N D"]
    mixing: dynamic_projection.Saved  # its k and v have masked rows 0
    mixed: Mixtures  # K-, V-
    norms: tuple[layer_norm.Saved | None, ...]  # of K, V, K-, V-; None for no norm
    attended: list[tuple[Segment, Any]]  # of (4)


class Gradients(NamedTuple):
    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]
    v: Float[Array, "... L M"]
    w_p: Float[Array, "#... D R"]
    norm_local: Norm | None = None  # where forward was given one
    norm_global: Norm | None = None


def look(q: Any, k: Any, norm_local: Any, norm_global: Any, window: Any, causal: Any, v: Any = None, **_: Any) -> None:
    check_sizes(window=window)
    if not causal and q.shape[-2] != k.shape[-2]:
        n, keys = q.shape[-2], k.shape[-2]
        raise ValueError(f"q: the keys near a query need N = L (or causal=True), got N = {n} and L = {keys}")
    for name, norm in (("norm_local", norm_local), ("norm_global", norm_global)):
        if norm is not None and not (is_pair(norm) and all(map(is_pair, norm))):
            raise TypeError(f"{name}: expected None or ((gain, bias) of keys, (gain, bias) of values), got {norm!r}")
        for part, pair, x in zip(("keys", "values"), norm or (), (k, v), strict=False):
            if x is not None:
                sizes = {"dtype": x.dtype, "W": x.shape[-1]}
                check(layer_norm.Params(*pair)._asdict(), rules_of(layer_norm.Params), sizes, f"{name}, {part}: ")


def is_pair(x: object) -> bool:
    return isinstance(x, (tuple, list)) and len(x) == 2


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    w_p: Float[Array, "#... D R"],
    norm_local: Norm | None,
    norm_global: Norm | None,
    *,
    window: int,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(4). A norm is ``((gain, bias), (gain, bias))``, of keys and of values; None is no norm.

    ``N = L`` unless causal. A masked key has no share in a mixture; a segment without a key has no mixtures.
    """
    mixed, mixing = dynamic_projection.forward(k, v, w_p, window=window, causal=causal, key_mask=key_mask)  # (1), (2)
    pairs = *(norm_local or (None, None)), *(norm_global or (None, None))
    rows = zip((mixing.k, mixing.v, *mixed), pairs, strict=True)
    (near_k, near_v, far_k, far_v), norms = zip(*(normed(x, pair) for x, pair in rows), strict=True)  # (3)
    far_mask: Any = None if key_mask is None else mask_of_mixtures(key_mask, window, causal, w_p.shape[-1])
    out, attended = np.empty_like(q, shape=(*q.shape[:-1], v.shape[-1])), []
    for segment in segments(q.shape[-2], k.shape[-2], window, w_p.shape[-1], causal):
        queries, near, far = segment
        keys = np.concatenate([far_k[..., :far, :], near_k[..., near, :]], axis=-2)  # causal, its own come last
        values = np.concatenate([far_v[..., :far, :], near_v[..., near, :]], axis=-2)
        seen = None if key_mask is None else np.concatenate([far_mask[..., :far], key_mask[..., near]], axis=-1)
        options = {"causal": causal, "key_mask": seen, "scale": scale}
        out[..., queries, :], kept = softmax.forward(q[..., queries, :], keys, values, **options)  # (4)
        attended.append((segment, kept))
    return out, Saved(q, mixing, mixed, norms, attended)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Equations (5)-(7)."""
    q, mixing, mixed, norms, attended = saved
    d_normed = d_near_k, d_near_v, d_far_k, d_far_v = [np.zeros_like(x) for x in (mixing.k, mixing.v, *mixed)]
    d_q = np.empty_like(q)
    for (queries, near, far), kept in attended:
        d_q[..., queries, :], d_keys, d_values = softmax.backward(d_out[..., queries, :], kept)  # (5)
        for d, d_near, d_far in ((d_keys, d_near_k, d_far_k), (d_values, d_near_v, d_far_v)):
            d_far[..., :far, :] += d[..., :far, :]  # (5)
            d_near[..., near, :] += d[..., far:, :]  # (5)
    (d_k, d_v, *d_mixed), pairs = zip(*map(normed_backward, d_normed, norms), strict=True)  # (6)
    by_mixing = dynamic_projection.backward(Mixtures(*d_mixed), mixing)  # (7)
    d_norm_local, d_norm_global = (None if pair[0] is None else pair for pair in (pairs[:2], pairs[2:]))
    return Gradients(d_q, d_k + by_mixing.k, d_v + by_mixing.v, by_mixing.w_p, d_norm_local, d_norm_global)  # (7)


def normed(x: Array, pair: Pair | None) -> tuple[Array, layer_norm.Saved | None]:
    return (x, None) if pair is None else layer_norm.forward(x, layer_norm.Params(*pair), eps=EPS)


def normed_backward(d_y: Array, saved: layer_norm.Saved | None) -> tuple[Array, Pair | None]:
    if saved is None:
        return d_y, None
    d_x, (d_gain, d_bias) = layer_norm.backward(d_y, saved)
    return d_x, (d_gain, d_bias)


def mask_of_mixtures(key_mask: Array, window: int, causal: bool, reduced: int) -> Array:
    """Which mixtures there are, ``(..., T R)``: a part without a key has none."""
    there = in_parts(key_mask[..., None], window, causal).any(axis=(-2, -1))[..., None]  # (..., T, 1)
    return np.broadcast_to(there, (*there.shape[:-1], reduced)).reshape(*there.shape[:-2], -1)


@op(look=look)
def matrix(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    w_p: Float[Array, "#... D R"],
    norm_local: Norm | None,
    norm_global: Norm | None,
    *,
    window: int,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    scale: float | None = None,
) -> Array:
    """The matrix ``(..., N, L)`` that is applied to ``V``, the mixtures' weights passed on to the keys in them.

    ``out == matrix @ v`` where the values have no norm: those given are used for the keys alone. Rows sum to 1, those
    of queries that see nothing to 0.
    """
    v = np.broadcast_to(np.eye(k.shape[-2], dtype=k.dtype, like=k), (*k.shape[:-1], k.shape[-2]))
    of_keys = [None if norm is None else (norm[0], None) for norm in (norm_local, norm_global)]
    return forward(q, k, v, w_p, *of_keys, window=window, causal=causal, key_mask=key_mask, scale=scale)[0]
