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

On average ``phi(x) . phi(y)`` is ``exp(x.y)``; how far off it is with ``m`` directions, the closed forms in
``linattn_ref.theory.random_features`` say. With ``relu`` it estimates another similarity, positive as well. The rest is
linear attention:

    out_i = phi(x_i)^T S / (phi(x_i)^T Z),   S = sum_j phi(y_j) v_j^T,   Z = sum_j phi(y_j)                  (3)

:Time: ``O((N + L) m (D + M))``
:Memory: ``O((N + L) m + N M)``
:Causal: yes
:Exact: no, a random estimate
:Gives: an estimate of softmax attention

Choosing omega
--------------
``omega (m, D)`` is an argument, drawn by ``feature_maps.gaussian`` or, with less variance, by
``feature_maps.orthogonal_gaussian``. Nothing here draws in secret: the same arguments give the same output. When to
:func:`redraw` is the caller's policy: in training every so many steps, lest the network learns one draw by heart; in
evaluation never. A state holds sums of features: it is of no use with any other ``omega`` than its own.

Positive and negative denominators
----------------------------------
All features but ``trig`` are positive, and so are their denominators. Those of ``trig`` have either sign, and a
denominator is a sum of ``L`` estimates whose errors grow as ``exp(|x - y|^2/2)``, relative to what they estimate: for
queries and keys that are not short it comes out near 0 or below, and that row of the output is far outside the range of
the values. No ``eps`` mends that. ``eps`` is 0 with the exponentials, since the scale that keeps them in the range of
float32 has to cancel (see ``exponents.py``); with ``relu`` it may be given.

The gradient, by hand
---------------------
`linear.backward` gives the gradients of ``phi(x)`` and ``phi(y)``. Back through (2), with ``p = omega x``,

    dp = dphi * phi,   dx = omega^T dp - x sum(dp)           (4)

where ``omega`` is a constant, and so is the scale of the exponentials: the output does not depend on it. The other
kinds' are in ``feature_maps_favor.py``, with the code of all. By (1),

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

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention import feature_maps, linear
from linattn_ref.attention.arguments import Array, Mask, check_array
from linattn_ref.attention.door import door
from linattn_ref.attention.feature_maps import FeatureMap
from linattn_ref.attention.feature_maps_favor import KINDS, Kind
from linattn_ref.attention.feature_maps_random import check_omega
from linattn_ref.attention.linear import BoundStep, Gradients, GradientsWithState, State
from linattn_ref.attention.linear_scaled import Saved
from linattn_ref.attention.performer_checks import (
    check_bind_step,
    check_directions,
    check_forward,
    check_init_state,
    check_step,
)
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import CausalProductRoom
from linattn_ref.kernels import reference

__all__ = [
    "KINDS",
    "BoundStep",
    "Gradients",
    "GradientsWithState",
    "Kind",
    "Saved",
    "State",
    "backward",
    "bind_step",
    "feature_map",
    "forward",
    "init_state",
    "matrix",
    "redraw",
    "step",
]


@door(check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    omega: Array,
    *,
    kind: Kind = "positive",
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 0.0,
    state: State | None = None,
    out: Array | None = None,
    kernels: CausalProductRoom = reference,
) -> tuple[Array, Saved | linear.Saved]:
    """Performer attention.

    Parameters
    ----------
    q, k, v, causal, key_mask, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. The mask acts after ``phi``.
    omega : ndarray ``(m, D)``
        Directions, the same for all heads; float32 or float64, used in the dtype of ``q``.
    kind : {"positive", "trig", "hyperbolic", "relu"}
    eps : float
        Added to the denominator; must be 0 unless ``kind`` is ``"relu"``.
    state : State, optional
        The common argument; it was made with the same ``omega`` and ``kind``.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    saved : Saved, or with ``"relu"`` linear.Saved
        Rows of features, no ``N x L`` and no ``N x C x M`` array.
    """
    phi = feature_map.unchecked(omega, kind)  # (1), (2)
    return linear.forward.unchecked(
        q, k, v, feature_map=phi, causal=causal, key_mask=key_mask, eps=eps, state=state, out=out, kernels=kernels
    )  # (3)


def backward(
    d_out: Array, saved: Saved | linear.Saved, *, d_state: State | None = None
) -> Gradients | GradientsWithState:
    """Gradients of :func:`forward`, (4) and (5): those of linear attention, whose last step is back through ``phi``.

    Parameters
    ----------
    d_out, saved, d_state
        As in `linear.backward`; so are the results.
    """
    return linear.backward(d_out, saved, d_state=d_state)


@door(check_directions)
def feature_map(omega: Array, kind: Kind = "positive") -> FeatureMap:
    """The features of ``q / D^(1/4)`` as a map of ``q``: what makes linear attention a Performer.

    Parameters
    ----------
    omega : ndarray ``(m, D)``
    kind : {"positive", "trig", "hyperbolic", "relu"}
    """
    scale = omega.shape[-1] ** -0.25  # (1); a Python float: float32 stays float32
    return KINDS[kind](omega, scale)


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
    m, width = omega.shape
    if orthogonal:
        return feature_maps.orthogonal_gaussian(m, width, rng, regular, dtype=omega.dtype)
    return feature_maps.gaussian(m, width, rng, dtype=omega.dtype)


# --- The recurrent form and the matrix ------------------------------------------------------------------------------


@door(check_init_state)
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    omega: Array,
    *,
    kind: Kind = "positive",
    dtype: DTypeLike = np.float64,
    like: Array | None = None,
) -> State:
    """The state before the first key: ``s (..., C, M)``, ``z (..., C)`` and the scale of the exponentials.

    Parameters
    ----------
    leading, key_width, value_width, dtype, like
        As in `linear.init_state`.
    omega, kind
        As in :func:`forward`.
    """
    phi = feature_map.unchecked(omega, kind)
    return linear.init_state.unchecked(leading, key_width, value_width, feature_map=phi, dtype=dtype, like=like)


@door(check_step)
def step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    omega: Array,
    *,
    kind: Kind = "positive",
    eps: float = 0.0,
    kernels: CausalProductRoom = reference,
) -> tuple[Array, State]:
    """One token of the recurrent form: ``O(m (D + M))``, whatever came before.

    Parameters
    ----------
    q_t, k_t, v_t, state
        As in `linear.step`; so are the results.
    omega, kind, eps, kernels
        As in :func:`forward`.
    """
    phi = feature_map.unchecked(omega, kind)
    return linear.step.unchecked(q_t, k_t, v_t, state, feature_map=phi, eps=eps, kernels=kernels)


@door(check_bind_step)
def bind_step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    omega: Array,
    *,
    kind: Kind = "positive",
    eps: float = 0.0,
    kernels: CausalProductRoom = reference,
) -> BoundStep:
    """:func:`step` for a loop that decodes into the same arrays again and again, as `linear.bind_step`.

    Parameters
    ----------
    q_t, k_t, v_t, state
        As in `linear.bind_step`; so is the result.
    omega, kind, eps, kernels
        As in :func:`forward`.
    """
    phi = feature_map.unchecked(omega, kind)
    return linear.bind_step.unchecked(q_t, k_t, v_t, state, feature_map=phi, eps=eps, kernels=kernels)


@plain_numbers
def matrix(
    q: Array,
    k: Array,
    omega: Array,
    *,
    kind: Kind = "positive",
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 0.0,
) -> Array:
    """The context mapping matrix ``(..., N, L)`` that :func:`forward` applies without forming it.

    Arguments as in :func:`forward`. On average over ``omega`` numerators and denominators are softmax's; their ratio
    is so only as ``m`` grows.
    """
    check_array("q", q)
    check_directions(omega, kind, q.shape[-1])
    return linear.matrix(q, k, feature_map=feature_map(omega, kind), causal=causal, key_mask=key_mask, eps=eps)
