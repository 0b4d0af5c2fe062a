"""Performer (Choromanski et al. 2021): linear attention whose similarity is softmax's, estimated with random features.

Softmax attention's similarity is ``exp(q.k / sqrt D) = exp(x.y)`` of

    x = q / D^(1/4),   y = k / D^(1/4)                       (1)

An inner product of finitely many features can only estimate it. Directions ``omega_1 ... omega_m`` are drawn from
N(0, I) once, and each gives a feature or two (``kind``):

    trig        exp(|x|^2/2) / sqrt(m) [sin(omega x), cos(omega x)]                 C = 2m   (2)
    positive    exp(omega x - |x|^2/2) / sqrt(m)                                    C = m    (3)
    hyperbolic  exp(-|x|^2/2) / sqrt(2m) [exp(omega x), exp(-omega x)]              C = 2m   (4)
    relu        (max(omega x, 0) + 1e-3) / sqrt(m)                                  C = m    (5)

Of (2)-(4), ``phi(x) . phi(y)`` is ``exp(x.y)`` on average; how far off it is with ``m`` of them, the closed forms in
``linattn_ref.theory.random_features`` say. (5) estimates another similarity, which is positive as well. The rest is
linear attention:

    out_i = phi(x_i)^T S / (phi(x_i)^T Z),   S = sum_j phi(y_j) v_j^T,   Z = sum_j phi(y_j)                  (6)

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
The features (3)-(5) are positive, and so are all denominators. Those of (2) have either sign, and a denominator is a
sum of ``L`` estimates whose errors grow as ``exp(|x - y|^2/2)``, relative to what they estimate: for queries and keys
that are not short it comes out near 0 or below, and that row of the output is far outside the range of the values. No
``eps`` mends that. ``eps`` is 0 with the exponentials (2)-(4), since the scale that keeps them in the range of float32
has to cancel (see ``exponents.py``); with (5) it may be given.

The gradient, by hand
---------------------
``linear.backward`` gives the gradients ``dphi(x)`` and ``dphi(y)``. Back through the features, with ``p = omega x``:

    trig        dp = dsin * cos - dcos * sin,       dx = omega^T dp + x sum(dphi * phi)                      (7)
    positive    dp = dphi * phi,                    dx = omega^T dp - x sum(dphi * phi)                      (8)
    hyperbolic  dp = dphi_+ * phi_+ - dphi_- * phi_-,   dx as in (8)                                         (9)
    relu        dp = dphi * [p > 0] / sqrt(m),      dx = omega^T dp                                         (10)

where ``sin`` and ``cos`` are the halves of (2), ``+`` and ``-`` those of (4). By (1),

    dq = dx / D^(1/4),   dk = dy / D^(1/4)                                                                  (11)

``omega`` is a constant. So is the scale of the exponentials: the output does not depend on it.

References
----------
Choromanski et al. (2021), "Rethinking attention with Performers", sections 2.2-2.4: equations 4-9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention import feature_maps, linear
from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_array,
    check_dtype,
    check_leading,
    check_qk,
    check_qkv,
    check_sizes,
)
from linattn_ref.attention.feature_maps import FeatureMap
from linattn_ref.attention.feature_maps_exact import forward_of
from linattn_ref.attention.gpu_arrays import takes_gpu_arrays
from linattn_ref.attention.linear import Gradients, GradientsWithState, Saved, State
from linattn_ref.kernels import reference

__all__ = [
    "KINDS",
    "Gradients",
    "GradientsWithState",
    "Saved",
    "State",
    "backward",
    "feature_map",
    "forward",
    "init_state",
    "matrix",
    "redraw",
    "step",
]

KINDS: dict[str, Callable[[Array], FeatureMap]] = {
    "trig": feature_maps.favor_trig,  # (2), (7)
    "positive": feature_maps.favor_positive,  # (3), (8)
    "hyperbolic": feature_maps.favor_hyperbolic,  # (4), (9)
    "relu": feature_maps.favor_relu,  # (5), (10)
}


@takes_gpu_arrays
def forward(
    q: Array,
    k: Array,
    v: Array,
    omega: Array,
    *,
    kind: str = "positive",
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 0.0,
    state: State | None = None,
    kernels: Any = reference,
) -> tuple[Array, Saved]:
    """Performer attention.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``, float32 or float64
    omega : ndarray ``(m, D)``
        Directions, the same for all heads; float32 or float64, used in the dtype of ``q``.
    kind : {"positive", "trig", "hyperbolic", "relu"}
        Features (2)-(5).
    causal : bool
        Query ``i`` sees keys ``j <= i + (L - N)``; needs ``N <= L``.
    key_mask : ndarray of bool ``(..., L)``, optional
        True = may be attended. It acts after ``phi``.
    eps : float
        Added to the denominator; must be 0 unless ``kind`` is ``"relu"``.
    state : State, optional
        A state to continue from (needs ``causal=True``), made with the same ``omega`` and ``kind``. ``saved.state`` is
        the one after the last key.
    kernels : module
        ``linattn_ref.kernels.reference``, ``.jit`` or ``.cuda``. The last also takes arrays of CuPy, PyTorch or Numba
        that are on a GPU, and gives back such arrays.

    Returns
    -------
    out : ndarray ``(..., N, M)``
        0 where the denominator is 0: a query that sees nothing.
    saved : Saved
        Of linear attention: rows of features, no ``N x L`` and no ``N x C x M`` array.

    Raises
    ------
    TypeError, ValueError
        Naming the argument that breaks the conventions above.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    check_omega(omega, q.shape[-1])
    phi = feature_map(omega, kind)
    return linear.forward(
        q, k, v, feature_map=phi, causal=causal, key_mask=key_mask, eps=eps, state=state, kernels=kernels
    )  # (6)


@takes_gpu_arrays
def backward(d_out: Array, saved: Saved, *, d_state: State | None = None) -> Gradients | GradientsWithState:
    """Gradients of :func:`forward`: those of linear attention, whose last step is back through ``feature_map``.

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    saved : Saved
    d_state : State, optional
        Gradient of ``saved.state``, where something continued from it.

    Returns
    -------
    Gradients or GradientsWithState
        Of ``q``, ``k`` and ``v``, exactly 0 for masked keys and for queries that see nothing; and of ``state``, where
        ``forward`` was given one.
    """
    return linear.backward(d_out, saved, d_state=d_state)


def feature_map(omega: Array, kind: str = "positive") -> FeatureMap:
    """The features (2)-(5) of ``q / D^(1/4)`` as a map of ``q``: what makes linear attention a Performer.

    Parameters
    ----------
    omega : ndarray ``(m, D)``
    kind : {"positive", "trig", "hyperbolic", "relu"}
    """
    if not (isinstance(kind, str) and kind in KINDS):
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    phi = KINDS[kind](omega)
    scale = omega.shape[-1] ** -0.25  # a Python float: float32 stays float32
    name = f"performer {kind}"
    if phi.split is None:
        return phi._replace(
            name=name,
            forward=lambda x: phi.forward(scale * x),  # (1)
            backward=lambda d_phi, saved: scale * phi.backward(d_phi, saved),  # (11)
        )
    split = phi.split

    def split_scaled(x: Array) -> tuple[Array, Array | None]:
        return split(scale * x)  # (1)

    def backward_scaled(d_phi: Array, saved: tuple[Array, Array]) -> Array:
        x, features = saved
        return scale * phi.backward(d_phi, (scale * x, features))  # (11)

    return phi._replace(name=name, forward=forward_of(split_scaled), backward=backward_scaled, split=split_scaled)


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


@takes_gpu_arrays
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    omega: Array,
    *,
    kind: str = "positive",
    dtype: DTypeLike = np.float64,
    like: Array | None = None,
) -> State:
    """The state before the first key: ``s (..., C, M)``, ``z (..., C)`` and the scale of the exponentials.

    Parameters
    ----------
    leading : tuple of int
    key_width, value_width : int
        ``D`` and ``M``.
    omega, kind
        As in :func:`forward`.
    dtype
        float32 or float64.
    like : array, optional
        One on a GPU, for a state that is there too.
    """
    check_leading(leading)
    check_sizes(key_width=key_width, value_width=value_width)
    check_dtype(dtype)
    check_omega(omega, int(key_width))
    phi = feature_map(omega, kind)
    return linear.init_state(leading, key_width, value_width, feature_map=phi, dtype=dtype, like=like)


@takes_gpu_arrays
def step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    omega: Array,
    *,
    kind: str = "positive",
    eps: float = 0.0,
    kernels: Any = reference,
) -> tuple[Array, State]:
    """One token of the recurrent form: ``O(m (D + M))``, whatever came before.

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
    state : State
        From :func:`init_state`, ``step`` or :func:`forward`. It is spent: its buffers are reused.
    omega, kind, eps, kernels
        As in :func:`forward`.

    Returns
    -------
    out_t : ndarray ``(..., M)``
    state : State
    """
    check_array("q_t", q_t, ndim=1)
    check_omega(omega, q_t.shape[-1])
    return linear.step(q_t, k_t, v_t, state, feature_map=feature_map(omega, kind), eps=eps, kernels=kernels)


def matrix(
    q: Array,
    k: Array,
    omega: Array,
    *,
    kind: str = "positive",
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 0.0,
) -> Array:
    """The context mapping matrix ``(..., N, L)`` that :func:`forward` applies without forming it.

    Arguments as in :func:`forward`. On average over ``omega`` numerators and denominators are softmax's; their ratio
    is so only as ``m`` grows.
    """
    check_qk(q, k, causal=causal, key_mask=key_mask)
    check_omega(omega, q.shape[-1])
    return linear.matrix(q, k, feature_map=feature_map(omega, kind), causal=causal, key_mask=key_mask, eps=eps)


# --- Checks ---------------------------------------------------------------------------------------------------------


def check_omega(omega: Array, width: int | None = None) -> None:
    """``omega`` is ``(m, D)``, with ``D = width`` if that is given."""
    check_array("omega", omega)
    if omega.ndim != 2:
        raise ValueError(f"omega: expected shape (m, D), got {omega.shape}")
    if width is not None and omega.shape[-1] != width:
        raise ValueError(f"omega: expected one column an entry of q, D = {width}, got shape {omega.shape}")
