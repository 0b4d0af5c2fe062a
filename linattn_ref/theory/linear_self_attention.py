"""Linformer's Theorem 2, "linear self-attention": what it states, what its proof's construction does when measured.

With ``A = scale Q K^T (N, n)``, a row ``w`` of it, ``P = softmax(A)`` and values ``V (n, d)``, the paper states: for
``k = min(Theta(9 d log(d) / eps^2), 5 Theta(log(n) / eps^2))`` there are ``E, F (k, n)`` such that

    Pr(|softmax(w E^T) F V - softmax(w) V| <= eps |softmax(w)| |V|) > 1 - o(1)     (1)

Its proof takes ``E = delta R`` and ``F = exp(-delta) R`` with ``R (k, n)`` of independent ``N(0, 1/k)`` entries and
"``delta = 1/2^n``" (further down "``delta = theta(1/n)``"), leaves the normalisation of softmax out, and goes

    |exp(x E^T) F y - exp(x) y| <= |exp(x E^T) F y - exp(x) R^T R y| + |exp(x) R^T R y - exp(x) y|     (2)

The second term is Johnson-Lindenstrauss. The first is said to vanish with ``delta``, the exponential being Lipschitz:

    |exp(x E^T) - exp(x) R^T| = o(|exp(x)|)                                        (3)

What is wrong with the proof
----------------------------
(3) does not hold. As ``delta -> 0``, ``exp(delta x R^T)`` tends to a vector of ``k`` ones whatever ``x`` is, so that

    E |exp(x E^T) - exp(x) R^T|^2 -> k + |exp(x)|^2                                (4)

never below ``|exp(x)|^2``. (The paper's equation (23) has ``exp(delta x) R`` instead of ``exp(x) R``: another
quantity, with the limit ``sqrt((k + n) / |exp(x)|^2)`` relative to ``|exp(x)|``.) Nor does another ``delta`` help. For
a row ``r`` of ``R``, ``E exp(t r) r = (t / k) exp(|t|^2 / 2k)``, so

    E[exp(x E^T) F y] = delta exp(-delta) exp(delta^2 |x|^2 / 2k) x y              (5)

for every ``delta``: the construction estimates a multiple of ``x y``, the scores times the values, not ``exp(x) y``. An
exponential of each entry does not commute with a projection.

What that means for the statement
---------------------------------
As ``delta -> 0`` every query gets the same output, the mean of the rows of ``R V``, which is noise of size ``|V| / k``.
With ``p = softmax(w)``, the error in units of ``|p| |V|`` then has the mean square

    (|p V| / (|p| |V|))^2 + (1 / (k |p|))^2                                        (6)

The first term is the error of answering 0. It is at most 1 and does not depend on ``k``. Where it is below ``eps``
(values of mean 0, long sequences), (1) holds once the noise is small, because its right side is so large that the
answer 0 would do. Where it is not (values with a common part), (1) fails however large ``k`` is. What does keep (1) is
Theorem 1's ``P R^T R V``, with an error of ``O(1/sqrt(k))``, but that needs ``P``. None of this speaks of *trained*
``E`` and ``F``.

In floating point the paper's ``delta`` is 0 in effect: ``exp(z / 2^n)`` with ``z < 0``, as softmax has it, rounds to
exactly 1 from ``n = 25 + log2(|z|)`` on in float32, ``54 + log2(|z|)`` in float64, and ``2^-n`` itself is 0 from
``n = 150`` and ``n = 1075`` on. The weights of all queries are then equal to the last bit.

The step to a ``k`` free of ``n`` (``9 d log d``) writes every row as a combination of ``2d`` of them. It picks those
after ``R`` is drawn, and ends in ``Theta(d) eps |exp(A_s)| |V|``, with the norm of the ``2d`` rows, not that of the row
in question; and it starts from (2).

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", Theorem 2 and appendix B: (1) is its equation
(8), (2) its (22), (3) its step (b). ``|V|`` is the Frobenius norm here, the largest of the usual ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.special
from numpy.random import Generator
from numpy.typing import DTypeLike

from linattn_ref.attention import linformer, softmax
from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_sizes
from linattn_ref.op.shapes import check_array
from linattn_ref.theory.johnson_lindenstrauss import check_eps, check_vector, gaussian_projection

__all__ = ["Errors", "Projections", "StepB", "attention_errors", "projections", "query_dependence", "stated_dimension"]
__all__ += ["step_b", "unnormalised_mean"]


@plain_numbers
def stated_dimension(n: int, d: int, eps: float) -> int:
    """``min(9 d log(d) / eps^2, 5 log(n) / eps^2)``, rounded up: the theorem's ``k`` with 1 for what Theta hides."""
    check_sizes(n=n, d=d)
    eps = float(check_eps(eps))
    free_of_n = 9 * d * math.log(d) if d > 1 else math.inf  # log(1) = 0 states nothing
    return max(1, math.ceil(min(free_of_n, 5 * math.log(n)) / eps**2))


class Projections(NamedTuple):
    """The proof's matrices."""

    e: Array  # (k, n)  delta R
    f: Array  # (k, n)  exp(-delta) R
    r: Array  # (k, n)


@plain_numbers
def projections(k: int, n: int, delta: float, rng: Generator, *, dtype: DTypeLike = np.float64) -> Projections:
    """``E = delta R`` and ``F = exp(-delta) R`` for a fresh ``R``; ``delta >= 0``, the paper's is ``2.0**-n``."""
    _check_delta(delta)
    r = gaussian_projection(k, n, rng, dtype=dtype)
    return Projections(r * r.dtype.type(delta), r * r.dtype.type(math.exp(-delta)), r)


# --- The statement, measured ----------------------------------------------------------------------------------------


class Errors(NamedTuple):
    """``|output - softmax(w) V|`` of each row in units of ``|softmax(w)| |V|``: (1) holds where that is ``<= eps``."""

    linformer: Array  # (trials, N)  softmax(w E^T) F V, the theorem
    unnormalised: Array  # (trials, N)  exp(w E^T) F V against exp(w) V, in units of |exp(w)| |V|: its proof
    low_rank: Array  # (trials, N)  softmax(w) R^T R V, Theorem 1, with the same R
    zero: Array  # (N,)  the answer 0, which looks at nothing
    uniform: Array  # (N,)  the mean of V, which looks at no query
    limit: Array  # (N,)  root mean square of `linformer` as delta -> 0, by (6)


@plain_numbers
def attention_errors(
    q: Array, k: Array, v: Array, reduced: int, delta: float, *, trials: int, rng: Generator, scale: float | None = None
) -> Errors:
    """Draw ``R`` again and again and compare the theorem's outputs with softmax attention.

    Parameters
    ----------
    q, k, v : ndarray, ``(N, D)``, ``(n, D)``, ``(n, M)``
        One head; ``v`` not 0. Where ``exp`` of the mixed scores, over the sum of ``exp`` of the scores, overflows (a
        large ``delta``), the unnormalised error is infinite.
    reduced : int
        Rows of ``E`` and ``F``, the theorem's ``k``, at most ``n``.
    delta : float
        At least 0.
    trials : int
        Draws of ``R``.
    rng : Generator
    scale : float, optional
        ``1/sqrt(D)`` unless given.
    """
    softmax.forward.check(q, k, v, scale=scale)
    if q.ndim != 2:
        raise ValueError(f"q: expected one head (N, D), got shape {q.shape}")
    if not np.any(v):
        raise ValueError("v: expected values that are not all 0")
    check_sizes(trials=trials)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores, v_norm = scale * (q @ k.T), np.linalg.norm(v)
    p, log_sum = softmax.softmax(scores), scipy.special.logsumexp(scores, axis=1, keepdims=True)  # (N, n), (N, 1)
    exact, unit = p @ v, np.linalg.norm(p, axis=1) * v_norm  # (N, M), (N,): what (1) measures errors in
    theorem, proof, low_rank = (np.empty((trials, len(q)), q.dtype) for _ in range(3))
    for trial in range(trials):
        e, f, r = projections(reduced, len(k), delta, rng, dtype=q.dtype)
        out, _ = linformer.forward(q, k, v, e, f, scale=scale)  # (N, M)
        theorem[trial] = np.linalg.norm(out - exact, axis=1) / unit
        low_rank[trial] = np.linalg.norm(p @ (r.T @ (r @ v)) - exact, axis=1) / unit
        with np.errstate(over="ignore", invalid="ignore"):
            out_sum = np.exp(scale * (q @ (e @ k).T) - log_sum) @ (f @ v)  # (N, M), over the sum of exp(w)
            proof[trial] = np.linalg.norm(out_sum - exact, axis=1) / unit
    proof[np.isnan(proof)] = np.inf  # an infinite weight times a value, and its opposite
    zero = np.linalg.norm(exact, axis=1) / unit
    uniform = np.linalg.norm(v.mean(axis=0) - exact, axis=1) / unit
    limit = np.hypot(zero, 1 / (reduced * np.linalg.norm(p, axis=1)))  # (6)
    return Errors(theorem, proof, low_rank, zero, uniform, limit)


@plain_numbers
def query_dependence(
    q: Array, k: Array, reduced: int, delta: float, *, rng: Generator, scale: float | None = None
) -> float:
    """How far the construction's weights are from ``1/k``: the largest ``|k softmax(w E^T)_r - 1|`` over all rows.

    ``1/k`` is rounded as the weights are. Where it is exactly 0, as for the paper's ``delta``, no output depends on its
    query.
    """
    check_array("q", q)
    check_array("k", k)
    e, _, _ = projections(reduced, len(k), delta, rng, dtype=q.dtype)
    weights = linformer.matrix(q, k, e, scale=scale)  # (N, reduced)
    return float(np.max(np.abs(weights / weights.dtype.type(1 / reduced) - 1)))


# --- The proof's steps, measured ------------------------------------------------------------------------------------


@plain_numbers
def unnormalised_mean(x: Array, y: Array, delta: float, k: int) -> float:
    """The expectation (5) of ``exp(x E^T) F y``, for ``x, y (n,)``."""
    _check_delta(delta)
    check_sizes(k=k)
    check_vector("x", x)
    check_array("y", y, ndim=1, dtype=x.dtype)
    if y.shape != x.shape:
        raise ValueError(f"y: expected shape {x.shape} like x, got {y.shape}")
    growth = math.exp(delta**2 * float(x @ x) / (2 * k))
    return delta * math.exp(-delta) * growth * float(x @ y)  # (5)


class StepB(NamedTuple):
    """Step (b) of the proof: what must vanish relative to ``|exp(x)|``. Stated: ``o(1)``."""

    needed: Array  # (trials,)  |exp(x E^T) - exp(x) R^T| / |exp(x)|, (3)
    printed: Array  # (trials,)  |exp(delta x R^T) - exp(delta x) R^T| / |exp(x)|, the paper's equation (23)
    needed_limit: float  # root mean square as delta -> 0, by (4)
    printed_limit: float


@plain_numbers
def step_b(x: Array, delta: float, k: int, *, trials: int, rng: Generator) -> StepB:
    """Measure (3), for a row of scores ``x (n,)``."""
    check_vector("x", x)
    check_sizes(trials=trials)
    if not np.isfinite(x).all():
        raise ValueError("x: expected finite scores")
    needed, printed = np.empty((2, trials), x.dtype)
    largest = x.max()  # subtracted from all exponents, it cancels
    size = np.linalg.norm(np.exp(x - largest))
    for trial in range(trials):
        e, _, r = projections(k, x.size, delta, rng, dtype=x.dtype)
        mixed = np.exp(e @ x - largest)
        needed[trial] = np.linalg.norm(mixed - r @ np.exp(x - largest)) / size
        printed[trial] = np.linalg.norm(mixed - r @ np.exp(x.dtype.type(delta) * x - largest)) / size
    one = float(np.exp(-largest) / size)  # 1 / |exp(x)|
    return StepB(needed, printed, math.hypot(1, math.sqrt(k) * one), math.sqrt(k + x.size) * one)


def _check_delta(delta: float) -> None:
    if not (math.isfinite(delta) and delta >= 0):
        raise ValueError(f"delta: expected a finite number of at least 0, got {delta!r}")
