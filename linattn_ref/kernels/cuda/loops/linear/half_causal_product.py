"""The causal product for bfloat16 and float16, on tensor cores: `causal_product` by `half_causal_chunks`.

Same arguments and results, except that states, their gradients and denominators are float32, given and returned. The
three gradients are those of the table in `causal_product`. Tensor cores also multiply by the zeros above the diagonal,
so NaN and infinity reach all rows of their chunk of ``EDGE``; in float32 they do not.

A float16 is at most 65 504. States are rounded to 16 bits where a chunk reads them, so that float16 overflows to
``inf`` where a sum over all tokens is larger; bfloat16 does not. The gradients take
``1 / denominator``, which is ``inf`` where bfloat16 features make that smaller than 2.9e-39.

The GPU has to be of compute capability 8.0 or later.
"""

import numpy as np

from linattn_ref.kernels.cuda.loops.arrays import Call
from linattn_ref.kernels.cuda.loops.half_rows import dot_rows
from linattn_ref.kernels.cuda.loops.half_tiles import WARP_BLOCK, edges
from linattn_ref.kernels.cuda.loops.half_words import check_float32, check_formats, empty_words, launch, results, words
from linattn_ref.kernels.cuda.loops.linear import half_causal_chunks as chunks
from linattn_ref.kernels.cuda.loops.linear.causal_states import scanned
from linattn_ref.kernels.cuda.loops.rows import divided_rows


def forward(phi_q, phi_k, v, state):
    """``out (..., N, M)`` of the inputs' dtype, and the state ``(..., C, M)``, float32."""
    out, _, s, _ = normalised_forward(phi_q, phi_k, v, state, None, None)
    return out, s


def normalised_forward(phi_q, phi_k, v, s, z, eps):
    """``out``, and in float32 ``denominator (..., N)``, ``s (..., C, M)`` and ``z (..., C)``."""
    numbers, m, like = check_formats(phi_q=phi_q, phi_k=phi_k, v=v), v.shape[-1], v
    check_float32(s=s, z=z)
    call, c = Call(v.shape[:-2], phi_q=phi_q, phi_k=phi_k, v=v, s=s, z=z), phi_k.shape[-1]
    phi_q, phi_k, v = words(call, phi_q), words(call, phi_k), words(call, v)
    out, *rest = forward_of_heads(call, numbers, (c, m), phi_q, phi_k, v, s, z, eps)
    return results(call, out, m, like), *call.results(*rest)


def backward(d_out, d_state, phi_q, phi_k, v, state):
    """``d_phi_q, d_phi_k, d_v`` of the inputs' dtype, and ``d_state``, float32."""
    return normalised_backward(d_out, d_state, None, phi_q, phi_k, v, state, None, None, None)[:-1]


def normalised_backward(d_out, d_s, d_z, phi_q, phi_k, v, s, z, out, denominator):
    """``d_phi_q, d_phi_k, d_v`` of the inputs' dtype, and ``d_s, d_z``, float32."""
    inputs = phi_q, phi_k, v
    numbers = check_formats(phi_q=phi_q, phi_k=phi_k, v=v, out=out, d_out=d_out)
    check_float32(s=s, z=z, d_s=d_s, d_z=d_z, denominator=denominator)
    arrays = {"phi_q": phi_q, "phi_k": phi_k, "v": v, "s": s, "z": z}
    call = Call(v.shape[:-2], d_out=d_out, d_s=d_s, d_z=d_z, out=out, denominator=denominator, **arrays)
    ones, g = None, words(call, d_out)
    if denominator is not None:
        denominator = call.flat(denominator, axes=1)
        share = divided_rows(call, call.full((*denominator.shape[1:], 1), np.float32, 1), denominator)
        ones = share.reshape(denominator.shape), dot_rows(call, numbers, g, words(call, out), sign=-1)
    widths, rows = (phi_k.shape[-1], v.shape[-1]), (words(call, x) for x in inputs)
    *gradients, d_s, d_z = backward_of_heads(call, numbers, widths, g, d_s, d_z, *rows, s, z, ones)
    gradients = (results(call, d, x.shape[-1], x) for d, x in zip(gradients, inputs, strict=True))
    return *gradients, *call.results(d_s, d_z)


# --- Words in, words out --------------------------------------------------------------------------------------------


def forward_of_heads(call, numbers, widths, phi_q, phi_k, v, s, z, eps):
    """``out`` in words, ``denominator, s, z``; there is a denominator if ``eps`` is not None. ``widths`` is C and M."""
    n, normalised = v.shape[1], eps is not None
    one = call.full((n,), np.float32, 1)
    states, z_states, s, z = states_of_chunks(call, numbers, widths, phi_k, v, None, one, s, z)
    out, denominator = empty_words(call, n, widths[1]), call.empty((n,), np.float32)
    rest = states, z_states, np.float32(eps or 0), out, denominator, normalised
    launch(call, numbers, chunks.forward, (call.heads * edges(n), edges(widths[1])), WARP_BLOCK, phi_q, phi_k, v, *rest)
    return out, denominator, s, z


def backward_of_heads(call, numbers, widths, g, d_s, d_z, phi_q, phi_k, v, s, z, ones):
    """``d_phi_q, d_phi_k, d_v`` in words, ``d_s, d_z``; ``ones`` is ``1 / denominator`` and ``e``, or None."""
    c, m = widths
    n = v.shape[1]
    one, zero = call.full((n,), np.float32, 1), call.full((n,), np.float32, 0)
    share, e, v_beside = (one, zero, zero) if ones is None else (*ones, one)
    states, z_states, _, _ = states_of_chunks(call, numbers, widths, phi_k, v, None, v_beside, s, z)
    later, z_later, d_s, d_z = states_of_chunks(
        call, numbers, widths, phi_q, g, None if ones is None else share, e, d_s, d_z, backwards=True
    )

    def product(width, a, b, u, *rest):
        out = empty_words(call, n, width)
        *vectors, states, z, backwards, transposed = rest
        grid = call.heads * edges(n), edges(width)
        arrays = a, b, u, *vectors, states, z, out, backwards, transposed
        launch(call, numbers, chunks.gradient, grid, WARP_BLOCK, *arrays)
        return out

    d_phi_q = product(c, g, v, phi_k, e, v_beside, one, share, states, z_states, False, True)  # (4)
    d_phi_k = product(c, v, g, phi_q, v_beside, e, share, one, later, z_later, True, True)  # (5)
    no_z = zero.reshape((*zero.shape, 1))  # its numbers times 0 might be NaN
    d_v = product(m, phi_k, phi_q, g, zero, zero, share, one, later, no_z, True, False)  # (6)
    return d_phi_q, d_phi_k, d_v, d_s, d_z


def states_of_chunks(call, numbers, widths, b, u, weight, beside, s, z, *, backwards=False):
    """The states before each chunk ``(heads, chunks, C, M)`` and ``(heads, chunks, C)``, and those after the last."""
    count, (c, m) = edges(b.shape[1]), widths
    states, z_states = call.empty((count, c, m), np.float32), call.empty((count, c), np.float32)
    weighted, one = weight is not None, call.full(b.shape[1:2], np.float32, 1)
    grid = call.heads * count, edges(c), edges(m)
    rest = weight if weighted else one, beside, states, z_states, weighted
    launch(call, numbers, chunks.sums, grid, WARP_BLOCK, b, u, *rest)
    return states, z_states, *scanned(call, states, z_states, s, z, backwards)
