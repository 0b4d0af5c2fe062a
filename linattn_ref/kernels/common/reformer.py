"""`reformer` on a loop that counts a pair in the first round where its two tokens meet, and in no other."""

from typing import NamedTuple

import numpy as np

from linattn_ref.attention import reformer as page
from linattn_ref.attention.features.feature_maps_random import or_infinity, unit
from linattn_ref.attention.parts.lsh_hashing import find_order
from linattn_ref.attention.parts.masks import shown
from linattn_ref.op import Array, Bool, Float, Int, Integers

__all__ = ["Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output, three numbers per row, and a permutation per round."""

    qk: Float[Array, "... N D"]  # masked rows 0
    length: Float[Array, "... N 1"]  # |x|
    v: Float[Array, "... N M"]  # masked rows 0
    out: Float[Array, "... N M"]
    m: Float[Array, "... N"]  # z of the page is m - log(share)
    share: Float[Array, "... N"]  # one over the sum of weights; 0 for a token that meets nobody
    order: Int[Integers, "... rounds N"]
    key_mask: Bool[Array, "... N"] | None
    chunk: int
    causal: bool
    scale: float


def forward(
    loop, kind, qk, v, *, rotations=None, chunk, causal=False, key_mask=None, scale=None, buckets=None, out=None
):
    """Equations (1)-(7) of the page; ``kind`` is the backend's class of what is saved."""
    scale, chunk = qk.shape[-1] ** -0.5 if scale is None else scale, min(chunk, qk.shape[-2])
    order = find_order(qk, rotations, key_mask, buckets)
    qk, v = shown(qk, key_mask), shown(v, key_mask)
    length = length_of(qk)
    who, buffer = (order, count_seen(qk, key_mask), chunk, causal, scale), {} if out is None else {"out": out}
    out, m, share = loop.forward(qk, key_of(qk, length), v, *who, **buffer)  # (1)-(6)
    np.copyto(out, v, where=is_alone(share, key_mask)[..., None])  # (7)
    return out, kind(qk, length, v, out, m, share, order, key_mask, chunk, causal, scale)


def backward(loop, d_out, saved):
    """Equations (8)-(11)."""
    qk, length, v, out, m, share, order, key_mask, chunk, causal, scale = saved
    k, who = key_of(qk, length), (order, count_seen(qk, key_mask), chunk, causal, scale)
    d_q, d_k, d_v = loop.backward(d_out, qk, k, v, out, m, share, *who)  # (8)-(10)
    add_rows(d_v, d_out, is_alone(share, key_mask))  # from (7)
    # (11), in the arrays that are there: each pass over new memory takes as long as a tenth of the kernel.
    k *= dot(k, d_k)  # the part along the key
    d_k -= k
    d_k /= or_infinity(length)
    d_q += d_k
    return page.Gradients(d_q, d_v)


def is_alone(share, key_mask):
    """Who meets nobody, and so attends to itself: ``(..., N)``."""
    alone = share == 0
    return alone if key_mask is None else alone & key_mask


def count_seen(qk, key_mask):
    """How many tokens are not masked: the first so many of every sorted order, ``(...)``."""
    return np.full(qk.shape[:-2], qk.shape[-2]) if key_mask is None else key_mask.sum(axis=-1, dtype=np.int32)


def length_of(x):
    """``|x| (..., N, 1)``; by way of the largest entry only where its square would leave the range of floats."""
    length = np.sqrt(dot(x, x))
    return with_odd(length, length, x, lambda odd: unit(odd)[1])


def key_of(x, length):
    """``x / |x|``, and 0 for the zero vector."""
    return with_odd(x / or_infinity(length), length, x, lambda odd: unit(odd)[0])


def with_odd(found, length, x, of):
    """``found``, in place: ``of(x)`` where a length, or the square of one, has left the range of floats."""
    limits = np.finfo(x.dtype)
    odd = ~((length > limits.tiny**0.25) & (length < limits.max**0.25))
    if not isinstance(x, np.ndarray):  # a GPU would have to be asked how many are odd
        return np.where(odd, of(x), found)
    found[odd[..., 0]] = of(x[odd[..., 0]])
    return found


def dot(x, y):
    """``x_i . y_i``, ``(..., N, 1)``."""
    return np.einsum("...d,...d->...", x, y)[..., None]


def add_rows(x, y, some):
    """``x[some] += y[some]``, in place; a GPU would have to be asked how many rows that are."""
    if isinstance(x, np.ndarray):
        x[some] += y[some]
    else:
        np.copyto(x, x + y, where=some[..., None])
