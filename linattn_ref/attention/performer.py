"""Performer (Choromanski et al. 2021): linear attention whose similarity is softmax's, estimated with random features.

Softmax attention's similarity is ``exp(q.k / sqrt D) = exp(x.y)`` of

    x = q / D^(1/4),   y = k / D^(1/4)                       (1)

An inner product of finitely many features can only estimate it. Directions ``omega_1 ... omega_m`` are drawn from
N(0, I) once, and each gives a feature or two:

    phi(x) = exp(omega x - |x|^2/2) / sqrt(m)                (2)

is the ``kind`` "positive", and there are three others:

    trig        exp(|x|^2/2) / sqrt(m) [sin(omega x), cos(omega x)]                 C = 2m
    hyperbolic  exp(-|x|^2/2) / sqrt(2m) [exp(omega x), exp(-omega x)]              C = 2m
    relu        (max(omega x, 0) + 1e-3) / sqrt(m)                                  C = m

On average ``phi(x) . phi(y)`` is ``exp(x.y)``. The error with ``m`` directions has a closed form, which is in
``linattn_ref.theory.random_features``. With ``relu`` the product estimates another similarity, which is positive too.
The rest is linear attention:

    out_i = phi(x_i)^T S / (phi(x_i)^T Z),   S = sum_j phi(y_j) v_j^T,   Z = sum_j phi(y_j)                  (3)

:Time: ``O((N + L) m (D + M))``
:Memory: ``O((N + L) m + N M)``
:Causal: yes
:Exact: no, a random estimate
:Gives: an estimate of softmax attention

Choosing omega
--------------
``omega (m, D)`` is an argument, drawn by ``feature_maps.gaussian`` or, with less variance, by
``feature_maps.orthogonal_gaussian``. Nothing here draws in secret: the same arguments give the same output. The
caller decides when to :func:`redraw`. In training it is done every so many steps, so that the network does not learn
one draw by heart; in evaluation never. A state holds sums of features, and is useless with another ``omega``.

Positive and negative denominators
----------------------------------
All features but ``trig`` are positive, and so are their denominators. Those of ``trig`` have either sign, and a
denominator is a sum of ``L`` estimates whose errors grow as ``exp(|x - y|^2/2)``, relative to what they estimate. With
vectors of large norm it can come out near 0 or below, and then that row of the output is far outside the range of the
values. No ``eps`` repairs that. ``eps`` is 0 with the exponentials, since the scale that keeps them in the range of
float32 has to cancel (``exponential.py``); with ``relu`` it may be given.

The gradient, by hand
---------------------
`linear.backward` returns the gradients of ``phi(x)`` and ``phi(y)``. Back through (2), with ``p = omega x``,

    dp = dphi * phi,   dx = omega^T dp - x sum(dp)           (4)

where ``omega`` is a constant, and so is the scale of the exponentials: the output does not depend on it. The gradients
of the other kinds are in ``feature_maps_favor.py``, with the code of all. By (1),

    dq = dx / D^(1/4),   dk = dy / D^(1/4)                   (5)

Example
-------
Few directions give a rough estimate, many a good one.

>>> from linattn_ref.attention import softmax
>>> rng = np.random.default_rng(0)
>>> q, k, v = rng.standard_normal((3, 10, 4))
>>> exact, _ = softmax.forward(q, k, v)
>>> for m in (10, 10_000):
...     out, saved = forward(q, k, v, feature_maps.orthogonal_gaussian(m, 4, rng))
...     print(f"{m:5}  {abs(out - exact).max():.2f}")
   10  0.51
10000  0.10

References
----------
Choromanski et al. (2021), "Rethinking attention with Performers", sections 2.2 to 2.4, equations 4 to 7; for
``relu`` section 4.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linattn_ref.attention import exponential, linear
from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.features.feature_maps import FeatureMap
from linattn_ref.attention.features.feature_maps_favor import KINDS, Kind
from linattn_ref.attention.features.feature_maps_random import check_omega
from linattn_ref.attention.linear import Gradients, State
from linattn_ref.attention.parts.recurrent import matrix_of
from linattn_ref.op import Array, Bool, Constant, Float, op
from linattn_ref.op.options import check_choice, check_flags

__all__ = ["KINDS", "Gradients", "Kind", "State", "backward", "feature_map", "forward", "init_state", "matrix"]
__all__ += ["redraw", "step"]


def look(omega: Any, kind: Any = "positive", **others: Any) -> None:
    """``kind`` is one of four, ``eps`` is 0 for all but one, and ``state`` is of the same features."""
    feature_maps.check_linear(feature_map(omega, kind), **others)


@op(look=look, values=check_omega)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    omega: Constant[Array, "m D"],
    *,
    kind: Kind = "positive",
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    eps: float = 0.0,
    state: State | None = None,
) -> tuple[Array, linear.Saved | exponential.Saved]:
    """Equations (1)-(3), from ``state`` on; ``omega`` is the same for all heads."""
    phi = feature_map(omega, kind)  # (1), (2)
    return linear.forward(q, k, v, feature_map=phi, causal=causal, key_mask=key_mask, eps=eps, state=state)  # (3)


backward = linear.backward  # (4), (5): its last step, back through ``phi``


def feature_map(omega: Array, kind: Kind = "positive") -> FeatureMap:
    """The features of ``q / D^(1/4)`` as a map of ``q``: what makes linear attention a Performer."""
    check_choice("kind", kind, KINDS)
    return KINDS[kind](omega, omega.shape[-1] ** -0.25)  # (1), (2)


def redraw(omega: Array, rng: np.random.Generator, *, orthogonal: bool = True, regular: bool = False) -> Array:
    """New directions in the shape and dtype of ``omega``, which stays as it is.

    Parameters
    ----------
    omega : ndarray ``(m, D)``
    rng : numpy.random.Generator
    orthogonal : bool
        In blocks of ``D``; independent otherwise.
    regular : bool
        Orthogonal ones of length ``sqrt(D)``.
    """
    check_omega(omega)
    check_flags(orthogonal=orthogonal, regular=regular)
    m, width = omega.shape
    if orthogonal:
        return feature_maps.orthogonal_gaussian(m, width, rng, regular, dtype=omega.dtype)
    return feature_maps.gaussian(m, width, rng, dtype=omega.dtype)


# --- Token by token, and as a matrix --------------------------------------------------------------------------------


@op(look=look, values=check_omega)
def step(
    q_t: Float[Array, "... D"],
    k_t: Float[Array, "... D"],
    v_t: Float[Array, "... M"],
    state: State,
    omega: Constant[Array, "m D"],
    *,
    kind: Kind = "positive",
    eps: float = 0.0,
) -> tuple[Array, State]:
    """The output for one token, ``(..., M)``, and the state after it: ``O(m (D + M))``, whatever came before."""
    return linear.step(q_t, k_t, v_t, state, feature_map=feature_map(omega, kind), eps=eps)


@op(look=look, values=check_omega)
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    omega: Constant[Array, "m D"],
    *,
    kind: Kind = "positive",
    dtype: Any = np.float64,
) -> State:
    """The state before any key, for arrays with the ``leading`` axes."""
    return linear.init_state(leading, key_width, value_width, feature_map=feature_map(omega, kind), dtype=dtype)


matrix = matrix_of(forward)
