"""Sparse Transformer (Child et al. 2019): causal attention in two patterns that reach every token in two steps.

A query at position ``p`` sees, of the keys ``j <= p``, with ``l = stride`` and ``c = summary``,

    strided    j > p - l   or   (p - j) mod l = 0                        (1)
    fixed      floor(j / l) = floor(p / l)   or   j mod l >= l - c       (2)

and attends to them with one softmax:

    P_pj = exp(scale q_p . k_j) / sum_{allowed l} exp(scale q_p . k_l),   O = P V       (3)

The paper uses both conditions at once ("merged"), or one in one head or layer and the other in the next: ``local_only``
and ``strided_only`` are the two of (1), ``fixed_summary`` is the second of (2), and the first is
``local.block_local(..., causal=True)``. A query that has no summary before it sees nothing, and its output is 0.

A row has about ``l + N / l`` pairs, which at ``l = sqrt(N)`` makes ``O(N sqrt(N))`` altogether, not ``O(N log N)``
(``linattn_ref.theory.pattern_graphs``). The strided pattern suits what has rows, as pictures do; the fixed one text.

:Time: ``O(N (l + N / l) max(D, M))``
:Memory: ``O(N M)``
:Causal: always
:Exact: over its pairs
:Gives: softmax attention over a causal pattern of two parts

The gradient, by hand
---------------------
That of softmax attention, over the pairs that there are, with the row's log-sum-exp ``s_p``:

    P_pj = exp(scale q_p . k_j - s_p),   dA_pj = P_pj (dO_p . v_j - dO_p . o_p)         (4)
    dQ_p = scale sum_j dA_pj k_j,  dK_j = scale sum_p dA_pj q_p,  dV_j = sum_p P_pj dO_p      (5)

References
----------
Child et al. (2019), "Generating long sequences with sparse Transformers", sections 4.2 and 4.3, Figure 3. (The paper's
first head of the strided pattern has one key more, ``j = p - l``, which is in the second head too.)
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import patterns
from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_d_out,
    check_kernels,
    check_qkv,
    check_saved,
    resolve_scale,
)
from linattn_ref.attention.gpu_arrays import takes_gpu_arrays
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.patterns import KINDS, check_kind
from linattn_ref.kernels import parts, reference

__all__ = ["KINDS", "Gradients", "Saved", "backward", "forward", "matrix", "parts_of", "pattern"]

pattern = patterns.sparse_transformer  # which query sees which key, as a boolean matrix


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output and one number a row; no pairs."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    out: Array  # (..., N, M)
    log_sum_exp: Array  # (..., N), -inf where a query sees nothing
    key_mask: Mask | None  # (..., L)
    kind: str
    stride: int
    summary: int
    scale: float
    kernel: ModuleType


class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)


@takes_gpu_arrays
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    kind: str,
    stride: int,
    summary: int = 1,
    key_mask: Mask | None = None,
    scale: float | None = None,
    kernels: Any = reference,
) -> tuple[Array, Saved]:
    """Attention of a Sparse Transformer, always causal.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``, float32 or float64
        ``N <= L``; query ``i`` is at position ``i + (L - N)``.
    kind : {"strided", "fixed", "local_only", "strided_only", "fixed_summary"}
    stride : int
        ``l``, best about ``sqrt(L)``.
    summary : int
        ``c``, the last places of each block that later blocks see; at most ``stride``. Of no effect but in the fixed
        patterns.
    key_mask : ndarray of bool ``(..., L)``, optional
        True = may be attended. A masked key has weight and gradient exactly 0.
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
    check_qkv(q, k, v, causal=True, key_mask=key_mask)
    kernel = check_kernels(kernels, "pattern_softmax")
    scale = resolve_scale(scale, q.shape[-1])
    allowed = parts_of(q.shape[-2], k.shape[-2], kind=kind, stride=stride, summary=summary)
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    out, log_sum_exp = kernel.forward(q, k, v, key_mask, allowed, scale)  # (3)
    return out, Saved(q, k, v, out, log_sum_exp, key_mask, kind, stride, summary, scale, kernel)


@takes_gpu_arrays
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (4) and (5)."""
    check_saved(saved, Saved)
    q, k, v, out, log_sum_exp, key_mask, kind, stride, summary, scale, kernel = saved
    check_d_out(d_out, out.shape, out.dtype)
    allowed = parts_of(q.shape[-2], k.shape[-2], kind=kind, stride=stride, summary=summary)
    return Gradients(*kernel.backward(d_out, q, k, v, out, log_sum_exp, key_mask, allowed, scale))


def matrix(
    q: Array,
    k: Array,
    *,
    kind: str,
    stride: int,
    summary: int = 1,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The dense matrix ``P`` of equation (3), ``(..., N, L)``: ``out == matrix @ v``. Arguments as in ``forward``."""
    n, n_keys = q.shape[-2], k.shape[-2]
    allowed = pattern(n_keys, kind=kind, stride=stride, summary=summary)[n_keys - n :]  # (N, L)
    return patterns.matrix(q, k, allowed, key_mask=key_mask, scale=scale)


def parts_of(n: int, n_keys: int, *, kind: str, stride: int, summary: int = 1) -> parts.Pattern:
    """What each query sees, as disjoint parts: of (1) the window and the column before it, of (2) the own block up to
    the query and the summaries of the blocks before.
    """
    check_kind(kind, stride, summary)
    shift = n_keys - n
    if kind == "local_only":
        return (parts.band(n, n_keys, 1 - stride, 0, shift=shift),)
    if kind == "strided_only":
        return (parts.band(n, n_keys, -n_keys, 0, dilation=stride, shift=shift),)
    if kind == "strided":
        window = parts.band(n, n_keys, 1 - stride, 0, shift=shift)
        return window, parts.band(n, n_keys, -n_keys, -1, dilation=stride, shift=shift)  # (1)
    position, first = np.arange(n) + shift, np.zeros(n, np.intp)
    summaries = np.flatnonzero(np.arange(n_keys) % stride >= stride - summary)
    if kind == "fixed_summary":
        return (parts.interval(first, np.searchsorted(summaries, position, side="right"), summaries),)
    start = position // stride * stride  # of the query's block
    own_block = parts.interval(start, position + 1, n_keys)
    return own_block, parts.interval(first, np.searchsorted(summaries, start), summaries)  # (2)
