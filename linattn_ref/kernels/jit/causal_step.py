"""One position of causal linear attention, for decoding: little to compute, so little may come before it.

A Python function around the kernel that looked at shapes and strides would take longer than the kernel. What depends on
the layout of an array is therefore decided when the kernel is compiled for it.
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array, populate_array

from linattn_ref.kernels.jit.cache import serial_kernel
from linattn_ref.kernels.jit.causal_scan import load_row, store_row
from linattn_ref.kernels.jit.vector import broadcast, fma, lanes, spread, total


@serial_kernel
def step_heads(phi_q, phi_k, v, s, z, eps, out):
    """Write ``out (..., M)`` and bring ``s (..., C, M)`` and ``z (..., C)`` up to date."""
    step_rows(rows_of(phi_q), rows_of(phi_k), v, s, z, eps, out)


@njit
def step_rows(q, k, v, s, z, eps, out):
    """The same, with the features as ``(heads, C)``."""
    rows_v, rows_out, rows_s, rows_z = rows_of(v), rows_of(out), rows_of(s), rows_of(z)  # rows_s (heads * C, M)
    share = np.full(len(q), eps, v.dtype)
    for first in range(0, q.shape[1], lanes(q)):
        _add_denominators(share, columns_from(q, first), columns_from(k, first), columns_from(rows_z, first))
    for head in range(len(q)):
        share[head] = 0 if share[head] == 0 else v.dtype.type(1) / share[head]
    for first in range(0, v.shape[-1], lanes(v)):
        some_v, some_s = columns_from(rows_v, first), columns_from(rows_s, first)
        _step_columns(q, k, some_v, some_s, columns_from(rows_out, first), share)
    _give_back(s, rows_s)
    _give_back(z, rows_z)


@njit(forceinline=True)
def _add_denominators(share, q, k, z):
    for head in range(len(q)):
        x = load_row(z, head) + load_row(k, head)
        store_row(z, head, x)
        share[head] += total(x * load_row(q, head))


@njit(forceinline=True)
def _step_columns(q, k, v, s, out, share):
    """Some columns of ``S``. The sums of the even and of the odd features do not wait for one another."""
    width = q.shape[1]
    for head in range(len(q)):
        first, u = head * width, load_row(v, head)
        even = odd = broadcast(q.dtype.type(0))
        for c in range(0, width - 1, 2):
            x = fma(spread(k, head, c), u, load_row(s, first + c))  # (1)
            y = fma(spread(k, head, c + 1), u, load_row(s, first + c + 1))
            store_row(s, first + c, x)
            store_row(s, first + c + 1, y)
            even, odd = fma(spread(q, head, c), x, even), fma(spread(q, head, c + 1), y, odd)  # (2)
        if width % 2:
            x = fma(spread(k, head, width - 1), u, load_row(s, first + width - 1))
            store_row(s, first + width - 1, x)
            even = fma(spread(q, head, width - 1), x, even)
        store_row(out, head, (even + odd) * broadcast(share[head]))


@njit(forceinline=True)
def columns_from(x, first):
    """``x[:, first:]``, no more of it than a Vector has lanes."""
    return x[:, first : min(first + lanes(x), x.shape[1])]


def rows_of(x):
    """``x`` with two axes, the last one kept: the same memory, or a copy if that has gaps."""
    raise NotImplementedError


@intrinsic
def _as_rows(typing_context, x, rows, width):
    """The memory of ``x`` as ``(rows, width)``, in no time; ``reshape`` takes as long as a fifth of the step."""
    result = types.Array(x.dtype, 2, "C")

    def generate(context, builder, signature, arguments):
        memory = make_array(x)(context, builder, arguments[0])
        size = context.get_abi_sizeof(context.get_data_type(x.dtype))
        itemsize = context.get_constant(types.intp, size)
        strides = [builder.mul(arguments[2], itemsize), itemsize]
        view = make_array(result)(context, builder)
        populate_array(view, memory.data, arguments[1:], strides, itemsize, meminfo=None)
        return view._getvalue()

    return result(x, types.intp, types.intp), generate


@overload(rows_of)
def _rows_of_layout(x):
    if x.layout == "C":
        return lambda x: _as_rows(x, x.size // x.shape[-1], x.shape[-1])
    return lambda x: np.ascontiguousarray(x).reshape(-1, x.shape[-1])


def _give_back(x, rows):
    """``x[...] = rows``, where these are a copy."""
    raise NotImplementedError


@overload(_give_back)
def _give_back_to(x, rows):
    if x.layout == "C":
        return lambda x, rows: None

    def give_back(x, rows):
        x[...] = rows.reshape(x.shape)

    return give_back
