"""Local attention (Parmar et al. 2018): softmax attention over the keys nearby, in a window or in a block.

    W_i = {j : |i - j| <= window * dilation, (i - j) mod dilation = 0}         (1)  the sliding window
    W_i = {j : floor(j / block) = floor(i / block)}                            (2)  the block

and ``j <= i`` besides, if causal. Then

    P_ij = exp(scale q_i . k_j) / sum_{l in W_i} exp(scale q_i . k_l),   O = P V       (3)

``forward`` and ``backward`` are those of (1), ``block_local`` and ``block_local_backward`` of (2). Either has as many
pairs in a row whatever the length is, and time grows as ``N`` does. What is far away has to travel: ``t`` layers move
it ``t window dilation`` places by windows, and by blocks never out of its own.

:Time: ``O(N window max(D, M))``
:Memory: ``O(N M)``
:Causal: yes
:Exact: over its pairs
:Gives: softmax attention within a window

The gradient, by hand
---------------------
That of softmax attention. With the log-sum-exp ``s_i`` of a row's scores,

    P_ij = exp(scale q_i . k_j - s_i),   dA_ij = P_ij (dO_i . v_j - dO_i . o_i)         (4)  j in W_i
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (5)

The sums run over the same pairs, so that the backward pass too is linear in ``N``. For ``dK_j`` they go the other way:
over the queries that have ``j`` in their window, which is the same window turned round.

A dilated window is a plain one
-------------------------------
Query ``i`` sees only keys of its own residue, ``j mod dilation = i mod dilation``. Sorted by residue, and by position
within a residue, its keys are ``2 window + 1`` neighbours; so the kernel knows intervals only.

References
----------
Parmar et al. (2018), "Image transformer", section 3.3 (blocks).
Beltagy et al. (2020), "Longformer: the long-document Transformer", section 3.1 (windows, dilated windows).
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
    check_qk,
    check_qkv,
    check_saved,
    check_sizes,
    resolve_scale,
)
from linattn_ref.attention.gpu_arrays import takes_gpu_arrays
from linattn_ref.attention.masks import zero_masked
from linattn_ref.kernels import parts, reference

__all__ = [
    "BlockSaved",
    "Gradients",
    "Saved",
    "backward",
    "block_local",
    "block_local_backward",
    "block_local_matrix",
    "block_local_parts_of",
    "block_local_pattern",
    "forward",
    "matrix",
    "parts_of",
    "pattern",
]

pattern = patterns.local  # which query sees which key, as a boolean matrix
block_local_pattern = patterns.block_local


class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward`` and ``block_local``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)


# --- The sliding window ---------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output and one number a row; no pairs."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    out: Array  # (..., N, M)
    log_sum_exp: Array  # (..., N), -inf where a query sees nothing
    key_mask: Mask | None  # (..., L)
    window: int
    dilation: int
    causal: bool
    scale: float
    kernel: ModuleType


@takes_gpu_arrays
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    window: int,
    dilation: int = 1,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    kernels: Any = reference,
) -> tuple[Array, Saved]:
    """Attention in a sliding window.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``, float32 or float64
    window : int
        Keys on each side of a query's own place; only those before it, if causal.
    dilation : int
        The step from one key of the window to the next.
    causal : bool
        Query ``i`` is at position ``i + (L - N)`` and sees nothing later; needs ``N <= L``. Otherwise it is at position
        ``i``, whatever L is.
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
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    check_sizes(window=window, dilation=dilation)
    kernel = check_kernels(kernels, "pattern_softmax")
    scale = resolve_scale(scale, q.shape[-1])
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    allowed = parts_of(q.shape[-2], k.shape[-2], window=window, dilation=dilation, causal=causal)  # (1)
    out, log_sum_exp = kernel.forward(q, k, v, key_mask, allowed, scale)  # (3)
    return out, Saved(q, k, v, out, log_sum_exp, key_mask, window, dilation, causal, scale, kernel)


@takes_gpu_arrays
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (4) and (5)."""
    check_saved(saved, Saved)
    q, k, v, out, log_sum_exp, key_mask, window, dilation, causal, scale, kernel = saved
    check_d_out(d_out, out.shape, out.dtype)
    allowed = parts_of(q.shape[-2], k.shape[-2], window=window, dilation=dilation, causal=causal)
    return Gradients(*kernel.backward(d_out, q, k, v, out, log_sum_exp, key_mask, allowed, scale))


def matrix(
    q: Array,
    k: Array,
    *,
    window: int,
    dilation: int = 1,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The dense matrix ``P`` of (3), ``(..., N, L)``: ``out == matrix @ v``. Arguments as in :func:`forward`."""
    check_qk(q, k, causal=causal, key_mask=key_mask)
    square = patterns.local(max(q.shape[-2], k.shape[-2]), window=window, dilation=dilation, causal=causal)
    return patterns.matrix(q, k, _cut_out(square, q, k, causal), key_mask=key_mask, scale=scale)


def parts_of(n: int, n_keys: int, *, window: int, dilation: int = 1, causal: bool = False) -> parts.Pattern:
    """The keys of each query (1), as the kernels take them: a single band."""
    shift = n_keys - n if causal else 0
    return (parts.band(n, n_keys, -window, 0 if causal else window, dilation=dilation, shift=shift),)


# --- Blocks ---------------------------------------------------------------------------------------------------------


class BlockSaved(NamedTuple):
    """What the backward pass needs: the inputs, the output and one number a row; no pairs."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    out: Array  # (..., N, M)
    log_sum_exp: Array  # (..., N), -inf where a query sees nothing
    key_mask: Mask | None  # (..., L)
    block: int
    causal: bool
    scale: float
    kernel: ModuleType


@takes_gpu_arrays
def block_local(
    q: Array,
    k: Array,
    v: Array,
    *,
    block: int,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    kernels: Any = reference,
) -> tuple[Array, BlockSaved]:
    """Attention within blocks of ``block`` positions, the last of which may be shorter.

    Parameters
    ----------
    block : int
    q, k, v, causal, key_mask, scale, kernels
        As in :func:`forward`.

    Returns
    -------
    out : ndarray ``(..., N, M)``
        A query that may see nothing gets 0.
    saved : BlockSaved

    Raises
    ------
    TypeError, ValueError
        Naming the argument that breaks the conventions above.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    check_sizes(block=block)
    kernel = check_kernels(kernels, "pattern_softmax")
    scale = resolve_scale(scale, q.shape[-1])
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    allowed = block_local_parts_of(q.shape[-2], k.shape[-2], block=block, causal=causal)  # (2)
    out, log_sum_exp = kernel.forward(q, k, v, key_mask, allowed, scale)  # (3)
    return out, BlockSaved(q, k, v, out, log_sum_exp, key_mask, block, causal, scale, kernel)


@takes_gpu_arrays
def block_local_backward(d_out: Array, saved: BlockSaved) -> Gradients:
    """Gradients of :func:`block_local`, equations (4) and (5)."""
    check_saved(saved, BlockSaved)
    q, k, v, out, log_sum_exp, key_mask, block, causal, scale, kernel = saved
    check_d_out(d_out, out.shape, out.dtype)
    allowed = block_local_parts_of(q.shape[-2], k.shape[-2], block=block, causal=causal)
    return Gradients(*kernel.backward(d_out, q, k, v, out, log_sum_exp, key_mask, allowed, scale))


def block_local_matrix(
    q: Array,
    k: Array,
    *,
    block: int,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The dense matrix ``P`` of (3), ``(..., N, L)``: ``out == matrix @ v``. Arguments as in :func:`block_local`."""
    check_qk(q, k, causal=causal, key_mask=key_mask)
    square = patterns.block_local(max(q.shape[-2], k.shape[-2]), block=block, causal=causal)
    return patterns.matrix(q, k, _cut_out(square, q, k, causal), key_mask=key_mask, scale=scale)


def block_local_parts_of(n: int, n_keys: int, *, block: int, causal: bool = False) -> parts.Pattern:
    """The keys of each query (2), as the kernels take them: an interval."""
    position, block = np.arange(n) + (n_keys - n if causal else 0), min(block, n + n_keys)  # no block is longer
    start = position // block * block
    return (parts.interval(start, position + 1 if causal else start + block, n_keys),)


def _cut_out(square: Mask, q: Array, k: Array, causal: bool) -> Mask:
    """The pattern of N queries and L keys: the first of each, or if causal the last queries; ``(N, L)``."""
    n, n_keys = q.shape[-2], k.shape[-2]
    return square[n_keys - n :] if causal else square[:n, :n_keys]
