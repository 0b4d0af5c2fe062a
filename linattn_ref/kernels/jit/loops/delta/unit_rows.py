"""Rows before and after the delta rule, (1) and (3)-(6) of `linattn_ref.attention.delta`, each once over the memory.

A task is ``ROWS`` rows, and a row's result depends on nothing else.
"""

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.delta.delta_step import EPS
from linattn_ref.kernels.jit.loops.inner import fast
from linattn_ref.kernels.jit.loops.layers.layer_norm import ROWS
from linattn_ref.kernels.jit.loops.rows import as_rows, without_gaps

__all__ = ["backward", "forward", "unit"]


def unit(x):
    """``n(x)``, rows of unit length (1)."""
    rows = as_rows(x)
    out = np.empty_like(rows)
    _unit(_tasks(rows), rows, out)
    return out.reshape(x.shape)


def forward(q, k, v, beta, normalise, scale):
    """What the rule is given, ``scale n(q), n(k), beta n(k), beta v``; ``beta (..., N, 1)``."""
    q_, k_, v_ = as_rows(q), as_rows(k), as_rows(v)
    out = [np.empty_like(x) for x in (q_, k_, k_, v_)]
    _forward(_tasks(q_), q_, k_, v_, without_gaps(beta).ravel(), normalise, float(scale), *out)
    return tuple(x.reshape(like.shape) for x, like in zip(out, (q, k, k, v), strict=True))


def backward(d_q, d_k, d_value, d_e, q, k, v, beta, normalise, scale):
    """Gradients of ``q``, ``k``, ``v``, written over those of what the rule was given, the first three; and of beta."""
    given, inputs = [as_rows(x) for x in (d_q, d_k, d_value, d_e)], [as_rows(x) for x in (q, k, v)]
    beta_, d_beta = without_gaps(beta).ravel(), np.empty(beta.shape[:-1], beta.dtype)
    _backward(_tasks(given[0]), *given, *inputs, beta_, normalise, float(scale), d_beta.ravel())
    return *(x.reshape(like.shape) for x, like in zip(given, (q, k, v), strict=False)), d_beta


def _tasks(x):
    return -(-len(x) // ROWS)


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel(x="rows C", out="rows C")
def _unit(task, x, out):
    for i in range(task * ROWS, min((task + 1) * ROWS, len(x))):
        scale_to(x[i], 1 / length(x[i]), out[i])


@kernel(q="rows C", k="rows C", v="rows M", beta="rows", unit_q="rows C", unit_k="rows C", e="rows C", value="rows M")
def _forward(task, q, k, v, beta, normalise, scale, unit_q, unit_k, e, value):
    for i in range(task * ROWS, min((task + 1) * ROWS, len(q))):
        scale_to(q[i], scale / length(q[i]) if normalise else scale, unit_q[i])
        scale_to(k[i], 1 / length(k[i]) if normalise else 1.0, unit_k[i])  # (1)
        scale_to(unit_k[i], beta[i], e[i])
        scale_to(v[i], beta[i], value[i])


@kernel(
    **dict.fromkeys(("d_q", "d_k", "d_e", "q", "k"), "rows C"),
    **dict.fromkeys(("d_value", "v"), "rows M"),
    **dict.fromkeys(("beta", "d_beta"), "rows"),
)
def _backward(task, d_q, d_k, d_value, d_e, q, k, v, beta, normalise, scale, d_beta):
    for i in range(task * ROWS, min((task + 1) * ROWS, len(q))):
        inverse = 1 / length(k[i]) if normalise else k.dtype.type(1)
        d_beta[i] = product(v[i], d_value[i]) + along(k[i], inverse, d_e[i])  # (4)
        scale_to(d_value[i], beta[i], d_value[i])  # (3)
        scale_to(d_q[i], scale, d_q[i])  # (5)
        add(d_k[i], beta[i], d_e[i])  # (5)
        if normalise:
            unit_backward(d_q[i], q[i], 1 / length(q[i]))  # (6)
            unit_backward(d_k[i], k[i], inverse)  # (6)


@fast
def product(x, y):
    total = x.dtype.type(0)
    for j in range(x.size):
        total += x[j] * y[j]
    return total


@fast
def length(x):
    return np.sqrt(product(x, x) + x.dtype.type(EPS))


@fast
def scale_to(x, factor, out):
    factor = x.dtype.type(factor)
    for j in range(x.size):
        out[j] = x[j] * factor


@fast
def add(x, factor, y):
    for j in range(x.size):
        x[j] += factor * y[j]


@fast
def along(x, inverse, d_y):
    """``y . d_y`` for ``y = x inverse``, whose terms have the size of ``d_y`` however long ``x`` is."""
    total = x.dtype.type(0)
    for j in range(x.size):
        total += x[j] * inverse * d_y[j]
    return total


@fast
def unit_backward(d_y, x, inverse):
    """``(d_y - y (y . d_y)) inverse``, to ``d_y``; ``y = x inverse``."""
    share = along(x, inverse, d_y)
    for j in range(x.size):
        d_y[j] = (d_y[j] - share * (x[j] * inverse)) * inverse
