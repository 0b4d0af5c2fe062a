"""Linformer's Theorem 1, "self-attention is low rank": what it states, what its proof gives, what is measured.

Let ``P (n, n)`` be a context mapping matrix with rows ``p_i``. The paper states that for each column ``v`` of the
values there is a ``P~`` of rank ``Theta(log n)`` with

    Pr(|P~ v - P v| <= eps |P v|) > 1 - o(1)                                      (1)

For one known ``v`` rank 1 is enough: ``(P v) v^T / |v|^2``. The proof's matrix does not depend on ``v``, and that is
what is looked at here: ``P~ = P R^T R``, with ``R (k, n)`` of independent ``N(0, 1/k)`` entries and ``k = 5 log(n) /
(eps^2 - eps^3)`` (natural logarithm). The proof asks the same of each entry and adds up the failures of the ``n``
rows:

    Pr(|p_i R^T R v - p_i v| <= eps |p_i v|) > 1 - 2 exp(-(eps^2 - eps^3) k / 4)  (2)
    Pr(the event in (1)) > 1 - 2 n exp(-(eps^2 - eps^3) k / 4) = 1 - 2 n^(-1/4)   (3)

Where this is loose
-------------------
(2) is not what the Johnson-Lindenstrauss lemma says: the right side of its event is ``eps |p_i| |v|``. Split each row
of ``R`` into its part along ``v`` and the rest. With ``c`` chi-squared with ``k`` degrees of freedom divided by ``k``,
and ``h`` standard normal in the space orthogonal to ``v``, independent of ``c``, exactly in distribution

    R^T R v = c v + |v| sqrt(c / k) h                                             (4)
    P~ v - P v = (c - 1) P v + |v| sqrt(c / k) P h                                (5)
    E |P~ v - P v|^2 = (|P v|^2 + |P|_F^2 |v|^2) / k                              (6)

The first term of (5) is relative to ``P v``; the second is isotropic noise sent through ``P``, which knows nothing of
``P v``. With the amplification ``a = |P|_F |v| / |P v| >= 1``:

- The event in (1) fails with probability at most ``(1 + a^2) / (k eps^2)``, by (6) and Markov's inequality. Where ``a``
  stays bounded as ``n`` grows (attention that spreads out, values with a common sign) a *constant* ``k`` is enough: a
  norm needs no logarithm. For values of mean 0, ``a`` grows as ``sqrt(n)``: (1) then needs more dimensions than ``n``,
  and with the stated ``k`` it fails almost surely.
- ``|P~ v - P v| <= eps |P|_F |v|`` fails with probability at most ``2 / (k eps^2)``, for all ``P`` and ``v``.
- The logarithm is needed for all entries at once, and there the proof is right: all ``|p_i R^T R v - p_i v|`` are at
  most ``eps |p_i| |v|`` with a probability above the right side of (3), for all ``P`` and ``v``. Its constant is
  generous: normal tails ask for a slope of about ``2 / eps^2`` against ``log(n)``, not ``5 / (eps^2 - eps^3)``.
- Softmax plays no part: all this holds for any matrix ``P``.
- The stated ``k`` is at most ``n`` only from ``n = 215`` on at ``eps = 0.5``, from ``n = 4698`` on at ``eps = 0.1``.

The errors relative to each of the four right sides are the fields of `Errors`. `attention_rows` gives ``P`` in tiles,
so that no ``n x n`` array is needed; `linattn_ref.theory.dimension_growth` measures ``k`` against ``log(n)``.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", Theorem 1 and appendix A: (1) is its equation
(5), (2) its (19), (3) its (20).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
from numpy.random import Generator

from linattn_ref.attention import softmax
from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_choice, check_sizes
from linattn_ref.op.shapes import check_array
from linattn_ref.theory import johnson_lindenstrauss as jl

__all__ = ["Action", "Errors", "action", "amplification", "attention_rows", "errors_at", "projection_errors"]
__all__ += ["stated_dimension", "stated_failure"]


@plain_numbers
def attention_rows(q: Array, k: Array, *, scale: float | None = None, tile: int = 256) -> Iterator[Array]:
    """The rows of ``P = softmax(scale Q K^T)``, ``tile`` at a time: arrays ``(tile, L)``, the last may be shorter."""
    check_sizes(tile=tile)
    for name, x in (("q", q), ("k", k)):
        if np.ndim(x) != 2:
            raise ValueError(f"{name}: expected one head, an array of two axes, got shape {np.shape(x)}")
    for start in range(0, len(q), tile):
        _, saved = softmax.forward(q[start : start + tile], k, k[:, :1], scale=scale)  # of any values, for P alone
        yield saved.p  # (tile, L)


# --- What is stated -------------------------------------------------------------------------------------------------


@plain_numbers
def stated_dimension(n: int, eps: float) -> int:
    """The proof's ``k = 5 log(n) / (eps^2 - eps^3)``, rounded up; nothing keeps it below ``n``."""
    check_sizes(n=n)
    eps = float(jl.check_eps(eps))
    return max(1, math.ceil(5 * math.log(n) / (eps**2 - eps**3)))


@plain_numbers
def stated_failure(n: int, eps: float, k: int) -> float:
    """The proof's bound (3) on the failure probability, at most 1."""
    check_sizes(n=n)
    return min(1.0, n * float(jl.failure_bound(eps, k)))


# --- What is measured: the projection itself ------------------------------------------------------------------------


class Errors(NamedTuple):
    """The error of ``P~ v`` in one trial per column, by what it is compared with."""

    vector: Array  # (trials,)  |P~ v - P v| / |P v|                       the theorem as printed, (1)
    entry: Array  # (trials,)  max_i |(P~ v - P v)_i| / |p_i v|            the proof as printed, (2)
    entry_by_norms: Array  # (trials,)  max_i |(P~ v - P v)_i| / (|p_i| |v|)   what the lemma gives
    vector_by_norms: Array  # (trials,)  |P~ v - P v| / (|P|_F |v|)        what follows for the vector


@plain_numbers
def projection_errors(
    rows: Iterable[Array],
    v: Array,
    k: int,
    *,
    trials: int,
    rng: Generator,
    projection: jl.Projection = jl.gaussian_projection,
) -> Errors:
    """Draw ``R`` again and again, apply ``P R^T R`` to ``v``: the theorem taken literally.

    Parameters
    ----------
    rows : iterable of ndarray ``(tile, n)``
        The rows of ``P`` in tiles, such as `attention_rows` or ``[p]``; read once.
    v : ndarray ``(n,)``
        Not 0.
    k : int
        Rows of ``R``.
    trials : int
        Draws of ``R``, ``k n`` random numbers each.
    rng : Generator
    projection : callable
        ``gaussian_projection``, as in the paper, or ``sign_projection``.
    """
    v = _checked(v)
    check_sizes(trials=trials)
    reduced = np.empty((v.size, trials), v.dtype)
    for trial in range(trials):
        r = projection(k, v.size, rng, dtype=v.dtype)  # (k, n)
        reduced[:, trial] = r.T @ (r @ v)
    product, row_norms = _apply(rows, np.column_stack([v, reduced]))  # (N, 1 + trials), (N,)
    exact, error = product[:, 0], product[:, 1:] - product[:, :1]
    v_norm = float(np.linalg.norm(v))
    return Errors(*(_relative(error, exact, row_norms, v_norm, event) for event in Errors._fields))


def _apply(rows: Iterable[Array], columns: Array) -> tuple[Array, Array]:
    """``P @ columns`` and the norms of the rows of ``P``, tile by tile."""
    products, norms = [], []
    for tile in rows:
        check_array("rows", tile, dtype=columns.dtype)
        if tile.ndim != 2 or tile.shape[1] != len(columns):
            raise ValueError(f"rows: expected tiles (tile, n) with n = {len(columns)} as in v, got shape {tile.shape}")
        products.append(tile @ columns)
        norms.append(np.linalg.norm(tile, axis=1))
    if not products:
        raise ValueError("rows: expected at least one tile, got none (a generator can be read only once)")
    return np.concatenate(products), np.concatenate(norms)


def _relative(error: Array, exact: Array, row_norms: Array, v_norm: float, event: str) -> Array:
    """One field of `Errors` from ``error (N, trials)``, ``exact = P v (N,)`` and the norms."""
    if event == "vector":
        return _ratio(np.linalg.norm(error, axis=0), np.linalg.norm(exact))
    if event == "entry":
        return np.max(_ratio(np.abs(error), np.abs(exact[:, None])), axis=0)
    if event == "entry_by_norms":
        return np.max(_ratio(np.abs(error), row_norms[:, None]), axis=0) / v_norm
    return np.linalg.norm(error, axis=0) / (np.linalg.norm(row_norms) * v_norm)


def _ratio(error: Array, size: Array | np.floating[Any]) -> Array:
    """``error / size``: 0 where there is no error, infinite where the exact value is 0 and the estimate is not."""
    with np.errstate(divide="ignore"):
        return np.divide(error, size, out=np.zeros_like(error), where=error != 0)


# --- What is measured: every k from one pass over P, by (4) and (5) -------------------------------------------------


class Action(NamedTuple):
    """All of ``P`` and ``v`` that (5) needs, for any ``k``; ``v`` times a power of 2, as `of_size_1` gives it."""

    exact: Array  # (N,)  P v
    noise: Array  # (N, trials)  P h
    row_norms: Array  # (N,)  |p_i|
    v_norm: float
    uniform: Array  # (trials,)  where in its distribution c is; the same for every k, so that errors shrink smoothly


@plain_numbers
def action(rows: Iterable[Array], v: Array, *, trials: int, rng: Generator) -> Action:
    """One pass over the rows of ``P``: ``n`` random numbers per trial instead of ``k n``, and no ``k`` fixed yet.

    Parameters
    ----------
    rows, v, trials, rng
        As in `projection_errors`.
    """
    v = _checked(v)
    check_sizes(trials=trials)
    v_norm = float(np.linalg.norm(v))
    h = rng.standard_normal((v.size, trials), v.dtype)
    h -= np.outer(v, v @ h) / v.dtype.type(v_norm**2)  # orthogonal to v
    product, row_norms = _apply(rows, np.column_stack([v, h]))
    return Action(product[:, 0], product[:, 1:], row_norms, v_norm, rng.uniform(size=trials))


@plain_numbers
def errors_at(acted: Action, k: int, event: str) -> Array:
    """The errors ``(trials,)`` called ``event`` in `Errors` at reduced dimension ``k``, by (5).

    They have the distribution of those of `projection_errors`. ``k`` may exceed ``n``, to show how many it would take.
    """
    check_sizes(k=k)
    check_choice("event", event, Errors._fields)
    dtype = acted.exact.dtype
    c = scipy.stats.chi2.ppf(acted.uniform, k) / k  # (trials,)
    along, across = (c - 1).astype(dtype), (acted.v_norm * np.sqrt(c / k)).astype(dtype)
    error = np.outer(acted.exact, along)  # (N, trials)
    error += acted.noise * across  # (5)
    return _relative(error, acted.exact, acted.row_norms, acted.v_norm, event)


def amplification(acted: Action) -> float:
    """``a = |P|_F |v| / |P v| >= 1``: what ``eps`` must be divided by for (1) to follow from the lemma."""
    return float(np.linalg.norm(acted.row_norms) * acted.v_norm / np.linalg.norm(acted.exact))


def _checked(v: Array) -> Array:
    jl.check_not_zero("v", v)
    return jl.of_size_1(v)
