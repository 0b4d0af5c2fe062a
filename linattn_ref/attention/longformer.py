"""Longformer (Beltagy et al. 2020): a sliding window, and a few global tokens that see all and are seen by all.

Let ``W_i`` be the keys in the window of query ``i`` (``|i - j| <= window * dilation`` in steps of ``dilation``) and
``G`` the global tokens. For a query that is not global

    P_ij = exp(scale q_i . k_j) / sum_{l in W_i u G} exp(scale q_i . k_l)      (1)  j in W_i u G
    o_i = sum_{j in W_i u G} P_ij v_j                                          (2)

one softmax over the union, so that a key that is both in the window and global counts once. A global query has
projections of its own, and sees everything:

    o_g = softmax_j(scale q_global_g . k_global_j) v_global                    (3)  all j

``O(N (2 window + 1 + G))`` pairs instead of ``N^2``. As a graph it is a star: with one global token every pair of
tokens is two steps apart (``linattn_ref.theory.pattern_graphs``).

:Time: ``O(N (window + G) max(D, M))``
:Memory: ``O(N M)``
:Causal: no
:Exact: over its pairs
:Gives: softmax attention over a window and a few global tokens

Two parts, one softmax
----------------------
The pairs are kept as two disjoint parts, the window without ``G`` and the columns ``G``. With the output ``o_W`` and
the log-sum-exp ``s_W`` of the one, ``o_G`` and ``s_G`` of the other, the softmax over both is

    s = log(exp(s_W) + exp(s_G)),   o = exp(s_W - s) o_W + exp(s_G - s) o_G    (4)

since ``exp(s_W) o_W`` is the sum of ``exp(a_j) v_j`` over ``W``. This is exact, in any order and number of parts.

The gradient, by hand
---------------------
(1) and (2) are softmax attention, with pairs that are left out. Its backward pass holds pair by pair once ``P`` is
normalised by the ``s`` of the whole row, and no pair outside ``W_i u G`` has a gradient:

    P_ij = exp(scale q_i . k_j - s_i)                                          (5)
    dA_ij = P_ij (dO_i . v_j - dO_i . o_i)                                     (6)
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (7)

The sums over ``i`` leave the global queries out. Those are (3), softmax attention of ``G`` queries, and give the
gradients of ``q_global``, ``k_global`` and ``v_global``. What is not used has gradient 0: rows of ``q`` that are
global, rows of ``q_global`` that are not.

References
----------
Beltagy et al. (2020), "Longformer: the long-document Transformer", section 3.1, "Linear projections for global
attention" and Figure 2.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import patterns, softmax
from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_array,
    check_d_out,
    check_kernels,
    check_qkv,
    check_saved,
    check_shape,
    check_sizes,
    resolve_scale,
)
from linattn_ref.attention.gpu_arrays import takes_gpu_arrays
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.patterns import check_square, distinct_indices
from linattn_ref.kernels import parts, reference

__all__ = ["Gradients", "Saved", "backward", "forward", "parts_of", "pattern"]

pattern = patterns.longformer  # which query sees which key, as a boolean matrix


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output and one number a row; no pairs."""

    q: Array  # (..., N, D)
    k: Array  # (..., N, D), masked rows 0
    v: Array  # (..., N, M), masked rows 0
    out: Array  # (..., N, M)
    log_sum_exp: Array  # (..., N), of the softmax over window and global keys
    key_mask: Mask | None  # (..., N)
    window: int
    dilation: int
    tokens: tuple[int, ...]  # the global ones, ascending, each once
    scale: float
    kernel: ModuleType
    attention: softmax.Saved | None  # of the global queries; None if there are none


class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D), 0 in global rows
    k: Array  # (..., N, D)
    v: Array  # (..., N, M)
    q_global: Array  # (..., N, D), 0 in all other rows
    k_global: Array  # (..., N, D)
    v_global: Array  # (..., N, M)


@takes_gpu_arrays
def forward(
    q: Array,
    k: Array,
    v: Array,
    q_global: Array,
    k_global: Array,
    v_global: Array,
    *,
    window: int,
    global_tokens: Any,
    dilation: int = 1,
    key_mask: Mask | None = None,
    scale: float | None = None,
    kernels: Any = reference,
) -> tuple[Array, Saved]:
    """Longformer attention.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., N, D)``, ``(..., N, M)``, float32 or float64
    q_global, k_global, v_global : ndarray, shapes of ``q``, ``k``, ``v``
        The global projections. Of ``q_global`` the rows of global tokens are used, of the others all rows.
    window : int
        Keys on each side of a query.
    global_tokens : sequence of int or ndarray of integers
        Positions, the same for all leading axes; negative ones are counted from the end, one given twice is one. May
        be empty.
    dilation : int
        The step from one key of the window to the next.
    key_mask : ndarray of bool ``(..., N)``, optional
        True = may be attended. A masked key has weight and gradient exactly 0, be it global or not.
    scale : float, optional
        ``1/sqrt(D)`` unless given.
    kernels : module
        ``linattn_ref.kernels.reference``, ``.jit`` or ``.cuda``. The last also takes arrays of CuPy, PyTorch or Numba
        that are on a GPU, and gives back such arrays.

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
    check_qkv(q, k, v, key_mask=key_mask)
    check_square(q, k)
    for name, x, like, letters in (
        ("q_global", q_global, q, "(..., N, D)"),
        ("k_global", k_global, k, "(..., N, D)"),
        ("v_global", v_global, v, "(..., N, M)"),
    ):
        check_array(name, x, dtype=q.dtype)
        check_shape(name, x, like.shape, letters)
    check_sizes(window=window, dilation=dilation)
    kernel = check_kernels(kernels, "pattern_softmax")
    scale, n = resolve_scale(scale, q.shape[-1]), q.shape[-2]
    tokens = distinct_indices("global_tokens", global_tokens, n)  # (G,)
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    allowed = parts_of(n, window=window, global_tokens=tokens, dilation=dilation)
    out, log_sum_exp = kernel.forward(q, k, v, key_mask, allowed, scale)  # (1), (2)
    attention = None
    if tokens.size:
        out[..., tokens, :], attention = softmax.forward(
            q_global[..., tokens, :], k_global, v_global, key_mask=key_mask, scale=scale, kernels=kernels
        )  # (3)  (..., G, M)
    kept = tuple(tokens.tolist())
    return out, Saved(q, k, v, out, log_sum_exp, key_mask, window, dilation, kept, scale, kernel, attention)


@takes_gpu_arrays
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (5)-(7)."""
    check_saved(saved, Saved)
    q, k, v, out, log_sum_exp, key_mask, window, dilation, kept, scale, kernel, attention = saved
    check_d_out(d_out, out.shape, q.dtype)
    tokens = np.array(kept, np.intp)  # (G,)
    d_ordinary = d_out.copy()
    d_ordinary[..., tokens, :] = 0  # no output of (2) in these rows
    allowed = parts_of(q.shape[-2], window=window, global_tokens=tokens, dilation=dilation)
    d_q, d_k, d_v = kernel.backward(d_ordinary, q, k, v, out, log_sum_exp, key_mask, allowed, scale)  # (5)-(7)
    d_q_global = np.zeros_like(q)
    if attention is None:
        return Gradients(d_q, d_k, d_v, d_q_global, np.zeros_like(k), np.zeros_like(v))
    of_rows = softmax.backward(d_out[..., tokens, :], attention)
    d_q_global[..., tokens, :] = of_rows.q  # (..., G, D)
    return Gradients(d_q, d_k, d_v, d_q_global, of_rows.k, of_rows.v)


def parts_of(n: int, *, window: int, global_tokens: Any, dilation: int = 1) -> parts.Pattern:
    """The keys of ordinary queries as two disjoint parts: the window without global tokens, and the global tokens.

    Global queries are in both like any other; what they get there is thrown away.
    """
    tokens = distinct_indices("global_tokens", global_tokens, n)
    near = parts.band(n, n, -window, window, dilation=dilation, without=tokens)
    return near, parts.columns(n, tokens)
