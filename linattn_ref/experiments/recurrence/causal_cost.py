"""What the causal product of linear attention costs in four forms, forward and backward together; nothing is timed.

``masked``
    The ``(N, N)`` matrix with zeros above its diagonal: ``out = (mask * phi_q phi_k^T) v``.
``naive``
    The prefix sums as automatic differentiation has them: every ``S_i`` is an array of its own, kept for the backward
    pass. It stands below.
``rows``
    Algorithm 1, one state at a time.
``chunks``
    ``T`` rows at a time, by products of matrices, as the page `chunked_linear` has it.

A multiply-add is one of a matrix product, or the product and the sum of a rank-1 update ``S + phi(k_i) v_i^T``, or two
entries of any other arithmetic. In numbers, with ``N`` rows (the last column is approximate):

=======  ======================================================  =========  ============================================
form     multiply-adds                                           kept       in use at once
=======  ======================================================  =========  ============================================
masked   ``3 N^2 (C + M) + N^2``                                 ``N^2``    ``2 N^2 + max(N (2 C + 2 M), N M + mask)``
naive    ``6 N C M``                                             ``N C M``  ``N (2 C + 2 M) + N C M + 3 C M``
rows     ``7 N C M``                                             0          ``N (2 C + 2 M) + 5 C M``
chunks   ``N (4 T (C + M) + 7 C M + C + M) + 3 N C M / (2 T)``   0          ``N (2 C + 2 M) + 2 C M + max(2 T^2 + mask,
                                                                            3 T C, 3 T M)``
=======  ======================================================  =========  ============================================

Kept is what goes from one pass to the other beyond the inputs. The term ``N (2 C + 2 M)`` is the output and three
gradients, which every form has to make. A mask has a byte for each entry of its matrix. In the naive form, ``3 C M``
are a state, its update and the next state. In the form by rows, ``5 C M`` are two states, an update of one, and NumPy's
two buffers for making that, of at most 8,192 numbers each. The multiply-adds of chunks are exact where ``T`` divides
``N``. The numbers at the lines are those of chapter 7.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.experiments.measuring.counting import by_formula, costs, count
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, Ints, NDArray, Results, labels, style

__all__ = ["FORMS", "Gradients", "chunks_backward", "chunks_forward", "compute", "draw", "multiply_adds"]
__all__ += ["naive_backward", "naive_forward", "rows_backward", "rows_forward"]

LENGTHS = (128, 256, 512, 1024, 2048)
QUICK = {"lengths": LENGTHS[:2]}
CHUNK = 64  # T

Kept = tuple[Array, ...]


class Gradients(NamedTuple):
    phi_q: Array  # (N, C)
    phi_k: Array  # (N, C)
    v: Array  # (N, M)


# --- Two forms to compare with --------------------------------------------------------------------------------------


def masked_forward(phi_q: Array, phi_k: Array, v: Array) -> tuple[Array, Kept]:
    """With the matrix: ``phi_q, phi_k (N, C)``, ``v (N, M)`` give ``out (N, M)``."""
    mask = np.tri(len(v), dtype=np.bool_)  # (N, N), True where j <= i
    similarity = phi_q @ phi_k.T  # (N, N)
    similarity *= mask
    return similarity @ v, (phi_q, phi_k, v, similarity)


def masked_backward(d_out: Array, saved: Kept) -> Gradients:
    phi_q, phi_k, v, similarity = saved
    d_similarity = d_out @ v.T  # (N, N)
    d_similarity *= np.tri(len(v), dtype=np.bool_)
    return Gradients(d_similarity @ phi_k, d_similarity.T @ phi_q, similarity.T @ d_out)


def naive_forward(phi_q: Array, phi_k: Array, v: Array) -> tuple[Array, Any]:
    """The recurrence as automatic differentiation records it: ``S_i`` is a new array, and the tape keeps it."""
    s = np.zeros((phi_k.shape[1], v.shape[1]), v.dtype)  # (C, M)
    rows, tape = [], []
    for i in range(len(v)):
        s = s + phi_k[i, :, None] * v[i, None, :]
        tape.append(s)
        rows.append(phi_q[i] @ s)  # (M,)
    return np.stack(rows), (phi_q, phi_k, v, tape)


def naive_backward(d_out: Array, saved: Any) -> Gradients:
    """The tape read from its end, each operation of :func:`naive_forward` with its own derivative."""
    phi_q, phi_k, v, tape = saved
    d_phi_q, d_phi_k, d_v = (np.empty(x.shape, x.dtype) for x in (phi_q, phi_k, v))
    d_s = np.zeros(tape[0].shape, v.dtype)  # (C, M)
    for i in reversed(range(len(v))):
        d_phi_q[i] = tape[i] @ d_out[i]  # from out_i = phi_q_i^T S_i
        d_s = d_s + phi_q[i, :, None] * d_out[i, None, :]
        d_phi_k[i] = d_s @ v[i]  # from S_i = S_{i-1} + phi_k_i v_i^T
        d_v[i] = phi_k[i] @ d_s
    return Gradients(d_phi_q, d_phi_k, d_v)


# --- Two forms that keep no state -----------------------------------------------------------------------------------


def rows_forward(phi_q: Array, phi_k: Array, v: Array) -> tuple[Array, Kept]:
    """Algorithm 1."""
    s, out = nothing(phi_k, v), np.empty_like(v)
    for i in range(len(v)):
        s += phi_k[i, :, None] * v[i, None, :]  # (4)
        out[i] = phi_q[i] @ s  # (3)
    return out, (phi_q, phi_k, v)


def rows_backward(d_out: Array, saved: Kept) -> Gradients:
    phi_q, phi_k, v = saved
    d_phi_q, d_phi_k, d_v = (np.empty_like(x) for x in saved)
    s, a = nothing(phi_k, v), nothing(phi_k, v)
    for i in range(len(v)):
        s += phi_k[i, :, None] * v[i, None, :]  # (4)
        d_phi_q[i] = s @ d_out[i]  # (6)
    for i in reversed(range(len(v))):
        a += phi_q[i, :, None] * d_out[i, None, :]  # (7)
        d_phi_k[i] = a @ v[i]  # (8)
        d_v[i] = phi_k[i] @ a  # (9)
    return Gradients(d_phi_q, d_phi_k, d_v)


def chunks_forward(phi_q: Array, phi_k: Array, v: Array) -> tuple[Array, Kept]:
    """``CHUNK`` rows at a time; any leading axes."""
    s, out = nothing(phi_k, v), np.empty_like(v)
    for rows in chunks(v):
        out[rows] = np.tril(phi_q[rows] @ phi_k[rows].mT) @ v[rows] + phi_q[rows] @ s  # (10)
        s += phi_k[rows].mT @ v[rows]  # (11)
    return out, (phi_q, phi_k, v)


def chunks_backward(d_out: Array, saved: Kept) -> Gradients:
    phi_q, phi_k, v = saved
    d_phi_q, d_phi_k, d_v = (np.empty_like(x) for x in saved)
    s, a = nothing(phi_k, v), nothing(phi_k, v)
    for rows in chunks(v):
        d_phi_q[rows] = np.tril(d_out[rows] @ v[rows].mT) @ phi_k[rows] + d_out[rows] @ s.mT
        s += phi_k[rows].mT @ v[rows]  # (11)
    for rows in reversed(chunks(v)):
        d_phi_k[rows] = np.tril(d_out[rows] @ v[rows].mT).mT @ phi_q[rows] + v[rows] @ a.mT
        d_v[rows] = np.tril(phi_q[rows] @ phi_k[rows].mT).mT @ d_out[rows] + phi_k[rows] @ a
        a += phi_q[rows].mT @ d_out[rows]
    return Gradients(d_phi_q, d_phi_k, d_v)


def nothing(phi_k: Array, v: Array) -> Array:
    """The state before the first row."""
    return np.zeros((*v.shape[:-2], phi_k.shape[-1], v.shape[-1]), v.dtype)


def chunks(v: Array) -> list[Any]:
    """The rows of one chunk after the other."""
    return [np.s_[..., start : start + CHUNK, :] for start in range(0, v.shape[-2], CHUNK)]


FORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "masked": (masked_forward, masked_backward),
    "naive": (naive_forward, naive_backward),
    "rows": (rows_forward, rows_backward),
    "chunks": (chunks_forward, chunks_backward),
}


# --- What they cost -------------------------------------------------------------------------------------------------


def compute(
    lengths: Ints = LENGTHS, *, rng: Generator, feature_width: int = 64, value_width: int = 64, dtype: Any = np.float32
) -> Results:
    """Count and measure all four forms at every length.

    Parameters
    ----------
    lengths : sequence of int
        ``N``. The longest takes about ``N C M`` numbers of memory in the naive form.
    rng : numpy.random.Generator
        Draws the inputs, on whose values nothing depends.
    feature_width, value_width : int
        ``C`` and ``M``.
    dtype : float32 or float64
    """
    c, m = feature_width, value_width
    inputs = [[rng.standard_normal((n, w)).astype(dtype) for w in (c, c, m, m)] for n in lengths]  # and d_out
    n, size = np.array(lengths), np.dtype(dtype).itemsize
    return Results(
        lengths=n,  # (T,), N
        feature_width=c,
        value_width=m,
        dtype=np.dtype(dtype).name,
        **{
            name: costs(*pair, inputs, formulas(name, n, c, m, size), multiply_adds=multiply_adds)
            for name, pair in FORMS.items()
        },
    )


def formulas(form: str, n: NDArray[np.int64], c: int, m: int, size: int) -> tuple[NDArray[Any], ...]:
    """A row of the table above: multiply-adds, numbers kept, numbers in use at once; ``size`` bytes per number."""
    made, t = n * (2 * c + 2 * m), CHUNK  # the output and three gradients
    in_chunks = n * (4 * t * (c + m) + 7 * c * m + c + m) + 3 * n * c * m // (2 * t)
    return {
        "masked": (3 * n * n * (c + m) + n * n, n * n, 2 * n * n + np.maximum(made, n * m + n * n // size)),
        "naive": (6 * n * c * m, n * c * m, made + n * c * m + 3 * c * m),
        "rows": (7 * n * c * m, 0 * n, made + 5 * c * m),
        "chunks": (in_chunks, 0 * n, made + 2 * c * m + max(2 * t**2 + t**2 // size, 3 * t * c, 3 * t * m)),
    }[form]


def multiply_adds(function: Callable[..., Any], *arrays: Array) -> float:
    """Of matrix products, and half of the entries that other arithmetic goes over."""
    counts = count(function, *arrays)
    return counts.multiply_adds + counts.elementwise / 2


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """The causal product of linear attention, one head, forward and backward: a mask costs the square of the length
    in time and memory; prefix sums are linear, but automatic differentiation keeps every one of them. Algorithm 1
    keeps none, for a sixth more arithmetic. Points are counted or measured, lines are the formulas.
    """
    figure, axes = style.figure(1, 2, height=0.42)
    looks = {
        "masked matrix\n": (results.masked, style.VERMILLION, "o"),
        "every S kept\n": (results.naive, style.ORANGE, "v"),
        "Algorithm 1\n": (results.rows, style.BLUE, "s"),
        f"chunks of {CHUNK}\n": (results.chunks, style.GREEN, "D"),
    }
    by_formula(axes, results.lengths, looks, {"multiply_adds": 1e6, "peak": 2**20})
    for axis, title in zip(axes, ("multiply-adds (millions)", "most in use at once (MiB)"), strict=True):
        axis.set(ylabel=title, xlabel="length N (tokens)")
        labels.ticks(axis, results.lengths)
        labels.at_ends(axis)
    return figure
