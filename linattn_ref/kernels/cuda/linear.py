"""Linear attention with ``elu + 1``, all of it on a GPU, for arrays that are there already.

`linattn_ref.attention.linear` is the text; its feature map, mask, sums and division are NumPy. Here the same equations
(1)-(9) are kernels, so that nothing goes to the host between ``q, k, v`` and the output, nor on the way back. A masked
key has the weight 0 in every sum, and is never copied.
"""

import sys
from types import ModuleType
from typing import Any, NamedTuple

from linattn_ref.kernels.cuda import causal_chunks as chunks
from linattn_ref.kernels.cuda.arrays import Call, dtype_of, on_gpu
from linattn_ref.kernels.cuda.causal_product import (
    backward_of_heads,
    forward_of_heads,
    products_of_gates,
    states_of_chunks,
)
from linattn_ref.kernels.cuda.elu_plus_one import features, multiply_by_slopes
from linattn_ref.kernels.cuda.rows import dot_rows, filled, joined_rows, ones_where, share_of, some_rows
from linattn_ref.kernels.cuda.tile import BLOCK, tiles

__all__ = ["Saved", "backward", "dtype_of", "forward", "on_gpu"]


class Saved(NamedTuple):
    """What the backward pass needs: rows, and one state. All on the GPU, with one leading axis."""

    phi_q: Any  # (heads, N, C)
    phi_k: Any  # (heads, L, C)
    v: Any  # (heads, L, M)
    weight: Any  # (heads, L), 0 for masked keys
    s: Any  # (heads, C, M), of the keys that all queries see
    z: Any  # (heads, C)
    out: Any  # (..., N, M), as the caller has it
    denominator: Any  # (heads, N)
    causal: bool
    kernel: ModuleType  # this one


def forward(q, k, v, *, feature_map, causal, key_mask, eps, state):
    """``out (..., N, M)`` and what `backward` needs; arguments as in `linattn_ref.attention.linear.forward`."""
    if feature_map.kernel != "elu_plus_one":
        raise ValueError(f"feature_map: expected elu_plus_one for arrays on a GPU, got {feature_map.name}")
    if state is not None:
        raise ValueError("state: arrays on a GPU do not continue from a state; NumPy arrays do")
    call, dtype = Call(q.shape[:-2], q=q, k=k, v=v, key_mask=key_mask), dtype_of(q)
    phi_q, phi_k, v = features(call, call.flat(q)), features(call, call.flat(k)), call.flat(v)
    n, n_keys = phi_q.shape[1], phi_k.shape[1]
    one = filled(call, (n_keys,), dtype, 1)
    weight = one if key_mask is None else ones_where(call, call.flat(key_mask, axes=1), dtype)
    shared = n_keys - n if causal else n_keys
    s, z = filled(call, (phi_k.shape[2], v.shape[2]), dtype, 0), filled(call, phi_k.shape[2:], dtype, 0)
    if shared:
        some_k, some_v, w, ones = (some_rows(call, x, 0, shared) for x in (phi_k, v, weight, one))
        _, _, s, z = states_of_chunks(call, some_k, some_v, w, products_of_gates(call, None, ones), ones, None, None)
    if causal:
        own_k, own_v, w = (some_rows(call, x, shared, n_keys) for x in (phi_k, v, weight))
        out, denominator, _, _ = forward_of_heads(call, phi_q, own_k, own_v, None, w, s, z, eps)
    else:
        out, denominator = _read(call, phi_q, s, z, eps)
    out = call.results(out)[0]
    return out, Saved(phi_q, phi_k, v, weight, s, z, out, denominator, causal, sys.modules[__name__])


def backward(d_out, saved):
    """``d_q, d_k, d_v``, shaped like ``q, k, v``."""
    phi_q, phi_k, v, weight, s, z, out, denominator, causal, _ = saved
    call = Call(out.shape[:-2], d_out=d_out, out=out)
    g, n_keys = call.flat(d_out), phi_k.shape[1]
    shared = n_keys - phi_q.shape[1] if causal else n_keys
    share, e = share_of(call, denominator), dot_rows(call, g, call.flat(out), sign=-1)  # (heads, N)
    d_phi_k, d_v = None, None
    if causal:
        own_k, own_v, w = (some_rows(call, x, shared, n_keys) for x in (phi_k, v, weight))
        rows = g, None, None, phi_q, own_k, own_v, None, w, s, z, (share, e)
        d_phi_q, d_phi_k, d_v, _, _, d_s, d_z = backward_of_heads(call, *rows)
    else:
        d_phi_q = _product(call, g, e, s, z, share, transposed=True)  # (6)
        none = products_of_gates(call, None, filled(call, share.shape[1:], dtype_of(g), 1))
        _, _, d_s, d_z = states_of_chunks(call, phi_q, g, share, none, e, None, None)  # (7)
    if shared:
        some_k, some_v, w = (some_rows(call, x, 0, shared) for x in (phi_k, v, weight))
        one, zero = (filled(call, (shared,), dtype_of(g), value) for value in (1, 0))
        d_phi_k = joined_rows(call, _product(call, some_v, one, d_s, d_z, w, transposed=True), d_phi_k)  # (8)
        d_v = joined_rows(call, _product(call, some_k, zero, d_s, None, w), d_v)  # (9)
    multiply_by_slopes(call, d_phi_q, phi_q)
    multiply_by_slopes(call, d_phi_k, phi_k)
    return call.results(d_phi_q, d_phi_k, d_v)


def _read(call, phi_q, s, z, eps):
    """(3): ``out (heads, N, M)`` and ``denominator (heads, N)`` of queries that see all of ``S`` and ``Z``."""
    n, width, dtype = phi_q.shape[1], phi_q.shape[2], dtype_of(phi_q)
    one, zero = filled(call, (n,), dtype, 1), filled(call, (n,), dtype, 0)
    column = z.reshape((call.heads, width, 1))  # Z as a state of one column, and eps in place of its Z
    denominator = _product(call, phi_q, one, column, filled(call, (1,), dtype, eps), one).reshape((call.heads, n))
    return _product(call, phi_q, zero, s, None, share_of(call, denominator)), denominator


def _product(call, a, beside, s, z, factor, *, transposed=False):
    """``factor_i (a_i S + beside_i z)``, or with ``S^T``: ``(heads, rows, columns)``."""
    _, width, value_width = s.shape
    columns = width if transposed else value_width
    z = filled(call, (columns,), dtype_of(s), 0) if z is None else z
    out = call.empty((a.shape[1], columns), dtype_of(a))
    states, z = s.reshape((call.heads, 1, width, value_width)), z.reshape((call.heads, 1, columns))
    grid = call.heads * tiles(a.shape[1]), tiles(columns)
    call.launch(chunks.read, grid, BLOCK, a, beside, states, z, factor, out, transposed)
    return out
