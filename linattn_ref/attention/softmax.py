"""Softmax attention (Vaswani et al. 2017): the yardstick, and the form every other mechanism approximates.

    A = scale Q K^T                                          (1)
    P_ij = exp(A_ij) / sum_l exp(A_il)                       (2)
    O = P V                                                  (3)

Every query looks at every key: ``O(N L max(D, M))`` time. Three forms of the same function:

``softmax_dense.py``
    Equations (1)-(3) as printed, and the gradient derived from them, (4)-(8). ``P`` is kept for the backward pass:
    ``O(N L)`` memory.
``forward``, ``backward``, here
    Online: the keys are read tile by tile and only ``O`` and one number a row, the log-sum-exp of ``A``, are kept;
    ``P`` is recomputed in the backward pass: ``O(N)`` memory beyond the inputs. The loop is a kernel.
``softmax_cache.py``
    Token by token: the state is a key/value cache, which grows with every token.

:Time: ``O(N L max(D, M))``
:Memory: ``O(N M)``
:Causal: yes
:Exact: yes
:Gives: softmax attention itself

Two keys, of which the query is twice as similar to the first as to the second, ``exp(A) = (2, 1)``:

>>> import numpy as np
>>> from linattn_ref.attention import softmax
>>> q, k, v = np.array([[1.0]]), np.log([[2.0], [1.0]]), np.array([[3.0], [6.0]])
>>> out, saved = softmax.forward(q, k, v)
>>> print(out, np.exp(saved.log_sum_exp))
[[4.]] [3.]
>>> print(softmax.backward(np.ones((1, 1)), saved).v.round(3))  # of a sum, the gradient of its terms: P
[[0.667]
 [0.333]]

References
----------
Vaswani et al. (2017), "Attention is all you need", section 3.2.1.
Rabe and Staats (2021), "Self-attention does not need O(n^2) memory".
Katharopoulos et al. (2020), "Transformers are RNNs", supplementary C.1 (stateful softmax).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from linattn_ref.attention import softmax_dense
from linattn_ref.attention.arguments import Array, Mask, check_d_out, check_saved, resolve_scale
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.rooms import SoftmaxRoom, check_kernels, kernel_of, name_of_room
from linattn_ref.attention.softmax_bound import BoundStep, bind_step
from linattn_ref.attention.softmax_cache import State, append, check_room_for, init_state, step
from linattn_ref.attention.softmax_dense import Gradients, matrix
from linattn_ref.attention.softmax_dense import Saved as DenseSaved
from linattn_ref.attention.softmax_dense import backward as dense_backward
from linattn_ref.attention.softmax_dense import forward as dense_forward
from linattn_ref.kernels import reference
from linattn_ref.kernels.reference.buffers import check_out

__all__ = [
    "BoundStep",
    "DenseSaved",
    "Gradients",
    "Saved",
    "State",
    "append",
    "backward",
    "bind_step",
    "dense_backward",
    "dense_forward",
    "forward",
    "init_state",
    "matrix",
    "step",
]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output and one number a row."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    out: Array  # (..., N, M)
    log_sum_exp: Array  # (..., N), log sum_l exp(A_il); -inf where a query sees nothing
    key_mask: Mask | None  # (..., L)
    causal: bool
    scale: float
    kernels: Any  # the room's name
    cached: int  # how many of the L keys came from the cache
    state: State | None  # the cache after the last token, where forward was given one


def check_forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    state: State | None = None,
    out: Array | None = None,
    kernels: SoftmaxRoom = reference,
) -> None:
    softmax_dense.check_forward(q, k, v, causal=causal, key_mask=key_mask, scale=scale)
    check_kernels(kernels, "softmax")
    if state is not None:
        check_room_for(k, v, state)
        if not causal or key_mask is not None:
            raise ValueError("state: continuing from a cache needs causal=True and no key_mask")
    if out is not None:
        check_out(out, (*q.shape[:-1], v.shape[-1]), q.dtype)


@door(check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    state: State | None = None,
    out: Array | None = None,
    kernels: SoftmaxRoom = reference,
) -> tuple[Array, Saved]:
    """Softmax attention without the ``(N, L)`` matrix.

    Parameters
    ----------
    q, k, v, causal, key_mask, scale, out, kernels
        The common arguments: ``help(linattn_ref.attention)``.
    state : State, optional
        A cache to continue from (needs ``causal=True``, no ``key_mask``): ``k`` and ``v`` are appended to it and the
        queries see all of it. Gradients are those of this call's ``k`` and ``v``; the cache is a constant.
    """
    scale = resolve_scale(scale, q.shape[-1])
    cached = 0
    if state is not None:
        cached, state = state.length, append.unchecked(k, v, state)
        k, v = state.k[..., : state.length, :], state.v[..., : state.length, :]
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    buffer = {} if out is None else {"out": out}  # a room of one's own need not know of it
    out, log_sum_exp = kernels.softmax.forward(q, k, v, key_mask, causal, scale, **buffer)
    return out, Saved(q, k, v, out, log_sum_exp, key_mask, causal, scale, name_of_room(kernels), cached, state)


def check_backward(d_out: Array, saved: Saved) -> None:
    check_saved(saved, Saved)
    check_d_out(d_out, saved.out.shape, saved.out.dtype)


@door(check_backward)
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (4)-(8) with ``P`` recomputed from the row log-sum-exp."""
    q, k, v, out, log_sum_exp, key_mask, causal, scale, kernels, cached, _ = saved
    kernel = kernel_of(kernels, "softmax")
    d_q, d_k, d_v = kernel.backward(d_out, q, k, v, out, log_sum_exp, key_mask, causal, scale)
    return Gradients(d_q, d_k[..., cached:, :], d_v[..., cached:, :])
