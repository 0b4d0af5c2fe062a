"""Linear attention (Katharopoulos et al. 2020): attention as a kernel smoother, whose sums over keys are shared.

Softmax attention weighs value ``j`` for query ``i`` by the similarity ``exp(q_i . k_j / sqrt D)``. Any other that is
not negative will do; if it is an inner product of features, ``phi(q_i) . phi(k_j)``, the query comes out of the sums:

    S = sum_j phi(k_j) v_j^T                                 (1)  (C, M)
    Z = sum_j phi(k_j)                                       (2)  (C,)
    out_i = phi(q_i)^T S / (phi(q_i)^T Z + eps)              (3)

It is associativity, ``(phi(Q) phi(K)^T) V = phi(Q) (phi(K)^T V)``: ``O(N C M)`` time in place of
``O(N^2 max(C, M))``. Causal, ``j`` runs up to ``i``, and the sums become prefix sums:

    S_i = S_{i-1} + phi(k_i) v_i^T,   Z_i = Z_{i-1} + phi(k_i)                                       (4)

a recurrent network, whose one step is in ``linear_recurrent.py``.

:Time: ``O((N + L) C M)``
:Memory: ``O((N + L) C + N M)``
:Causal: yes
:Exact: no, another similarity
:Gives: attention with the similarity ``phi(q) . phi(k)``

The gradient, by hand
---------------------
Let ``G_i`` be the gradient of a loss with respect to ``out_i = n_i / d_i``, numerator over denominator. Then

    dn_i = G_i / d_i,   dd_i = -dn_i . out_i                 (5)

From ``n_i = S^T phi(q_i)`` and ``d_i = Z^T phi(q_i) + eps``,

    dphi(q_i) = S dn_i + Z dd_i                              (6)
    dS = sum_i phi(q_i) dn_i^T,   dZ = sum_i phi(q_i) dd_i   (7)

and from (1) and (2),

    dphi(k_j) = dS v_j + dZ                                  (8)
    dv_j = dS^T phi(k_j)                                     (9)

Causal, ``S`` and ``Z`` in (6) are those of row ``i``, and the sums (7) that reach key ``j`` run over ``i >= j``: prefix
sums again, from the other end. These are equations 13-15 of the paper. The kernel ``causal_product`` computes them with
one state at a time, so that what is kept between the passes is rows (:class:`Saved`), never ``S_i`` for every ``i``.

Exponential feature maps are kept in range by a scale that cancels in (3), see ``exponents.py``; ``eps`` must then be 0.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs: fast autoregressive transformers with linear attention".
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_d_out,
    check_kernels,
    check_qk,
    check_qkv,
    check_saved,
)
from linattn_ref.attention.exponents import Features, decayed, features, features_backward, join
from linattn_ref.attention.feature_maps import FeatureMap, check_feature_map, elu_plus_one
from linattn_ref.attention.gpu_arrays import takes_gpu_arrays
from linattn_ref.attention.linear_bound import BoundStep, bind_step
from linattn_ref.attention.linear_recurrent import (
    State,
    check_d_state,
    check_eps,
    combine,
    combine_gradients,
    init_state,
    state_or_empty,
    step,
)
from linattn_ref.attention.linear_sums import add_up, add_up_backward, read, read_backward
from linattn_ref.attention.masks import visible, zero_masked
from linattn_ref.kernels import reference
from linattn_ref.kernels.reference.division import divide

__all__ = [
    "BoundStep",
    "Gradients",
    "GradientsWithState",
    "Saved",
    "State",
    "add_up",
    "add_up_backward",
    "backward",
    "bind_step",
    "combine",
    "combine_gradients",
    "forward",
    "init_state",
    "matrix",
    "read",
    "read_backward",
    "step",
    "summarise",
]


class Saved(NamedTuple):
    """What the backward pass needs: ``O(N + L)`` rows, and one state a piece."""

    phi: Features  # of queries (..., N, C) and keys (..., L, C)
    v: Array  # (..., L, M), masked rows 0
    out: Array  # (..., N, M)
    denominator: Array  # (..., N)
    key_mask: Mask | None  # (..., L)
    feature_map: FeatureMap
    kernel: ModuleType
    starts: list[tuple[Array, Array]]  # S and Z before each piece of a causal pass; else those of all keys
    given: State | None  # what was continued from; of it, only the scale is used
    state: State  # after the last key


class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)


class GradientsWithState(NamedTuple):
    """The same, where ``forward`` continued from a state."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)
    state: State  # of s and z, on the scale of the state given


@takes_gpu_arrays
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    feature_map: FeatureMap = elu_plus_one,
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 1e-6,
    state: State | None = None,
    kernels: Any = reference,
) -> tuple[Array, Saved]:
    """Linear attention.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``, float32 or float64
    feature_map : FeatureMap
        ``phi``, from ``linattn_ref.attention.feature_maps``.
    causal : bool
        Query ``i`` sees keys ``j <= i + (L - N)``; needs ``N <= L``.
    key_mask : ndarray of bool ``(..., L)``, optional
        True = may be attended. It acts after ``phi``.
    eps : float
        Added to the denominator; must be 0 with an exponential feature map.
    state : State, optional
        A state to continue from (needs ``causal=True``): all queries see what it has seen. ``saved.state`` is the one
        after the last key.
    kernels : module
        ``linattn_ref.kernels.reference``, ``.jit`` or ``.cuda``. The last also takes arrays of CuPy, PyTorch or Numba
        that are on a GPU, and gives back such arrays.

    Returns
    -------
    out : ndarray ``(..., N, M)``
        0 where the denominator is 0: a query that sees nothing.
    saved : Saved

    Raises
    ------
    TypeError, ValueError
        Naming the argument that breaks the conventions above.

    Notes
    -----
    Where ``feature_map.positive`` is False similarities can be negative, the denominator can come out negative or close
    to 0, and the output far outside the range of the values.
    """
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    kernel = check_kernels(kernels, "causal_product")
    eps = check_eps(eps, feature_map)
    before = state_or_empty(state, feature_map, k, v, causal)
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    phi = features(q, k, feature_map, key_mask, causal, before.log_scale, kernels)

    shared = slice(0, phi.shared)  # the keys that every query sees
    s, z = decayed(before.s, before.z, phi.decay)
    s_shared, z_shared = add_up(phi.k[..., shared, :], v[..., shared, :])
    s, z = s + s_shared, z + z_shared
    if causal:
        out, denominator, s, z, starts = _causal_forward(phi, v, s, z, eps, kernel)
    else:
        out, denominator = read(phi.q, s, z, eps)
        starts = [(s.copy(), z.copy())]  # a copy, because step would spend the state below
    last = State(s, z, phi.log_scale)
    return out, Saved(phi, v, out, denominator, key_mask, feature_map, kernel, starts, state, last)


@takes_gpu_arrays
def backward(d_out: Array, saved: Saved, *, d_state: State | None = None) -> Gradients | GradientsWithState:
    """Gradients of :func:`forward`, equations (5)-(9).

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    saved : Saved
    d_state : State, optional
        Gradient of ``saved.state``, where something continued from it: the ``grads.state`` of that. Without it,
        back-propagation is truncated here.

    Returns
    -------
    Gradients or GradientsWithState
        Of ``q``, ``k`` and ``v``, exactly 0 for masked keys and for queries that see nothing; and of ``state``, where
        ``forward`` was given one.
    """
    check_saved(saved, Saved)
    phi, shared = saved.phi, slice(0, saved.phi.shared)
    check_d_out(d_out, saved.out.shape, saved.out.dtype)
    d_s, d_z = (None, None) if d_state is None else check_d_state(d_state, saved.state)
    if phi.pieces:
        d_phi_q, d_phi_k, d_v, d_s, d_z = _causal_backward(d_out, d_s, d_z, saved)
    else:
        d_phi_q, d_s, d_z = read_backward(d_out, phi.q, saved.out, saved.denominator, *saved.starts[0], d_s, d_z)
        d_phi_k, d_v = [], []
    if phi.shared:
        d_phi_shared, d_v_shared = add_up_backward(d_s, d_z, phi.k[..., shared, :], saved.v[..., shared, :])
        d_phi_k, d_v = [d_phi_shared, *d_phi_k], [d_v_shared, *d_v]
    d_q, d_k = features_backward(d_phi_q, join(d_phi_k), phi, saved.feature_map, saved.key_mask)
    if saved.given is None:
        return Gradients(d_q, d_k, join(d_v))
    d_given = State(*decayed(d_s, d_z, phi.decay), saved.given.log_scale)
    return GradientsWithState(d_q, d_k, join(d_v), d_given)


# --- Causal, piece by piece -----------------------------------------------------------------------------------------


def _causal_forward(
    phi: Features, v: Array, s: Array, z: Array, eps: float, kernel: ModuleType
) -> tuple[Array, Array, Array, Array, list[tuple[Array, Array]]]:
    """(4) and (3), piece by piece: ``S`` and ``Z`` of the keys before go in, those of all keys come out."""
    outs, denominators, starts = [], [], []
    for queries, keys, decay in phi.pieces:
        s, z = decayed(s, z, decay)
        starts.append((s, z))
        q, k, u = phi.q[..., queries, :], phi.k[..., keys, :], v[..., keys, :]
        out, denominator, s, z = kernel.normalised_forward(q, k, u, None, None, s, z, eps)
        outs.append(out)
        denominators.append(denominator)
    return join(outs), join(denominators, axis=-1), s, z, starts


def _causal_backward(
    d_out: Array, d_s: Any, d_z: Any, saved: Saved
) -> tuple[Array, list[Array], list[Array], Any, Any]:
    """(5)-(9), from the last piece to the first; the gradients of ``S`` and ``Z`` go in and come out likewise."""
    phi, parts = saved.phi, []
    for (queries, keys, decay), (s, z) in zip(reversed(phi.pieces), reversed(saved.starts), strict=True):
        q, k, u = phi.q[..., queries, :], phi.k[..., keys, :], saved.v[..., keys, :]
        g, out, denominator = d_out[..., queries, :], saved.out[..., queries, :], saved.denominator[..., queries]
        d_q, d_k, d_u, _, _, d_s, d_z = saved.kernel.normalised_backward(
            g, d_s, d_z, q, k, u, None, None, s, z, out, denominator
        )
        d_s, d_z = decayed(d_s, d_z, decay)
        parts.append((d_q, d_k, d_u))
    d_phi_q, d_phi_k, d_v = (list(part) for part in zip(*reversed(parts), strict=True))
    return join(d_phi_q), d_phi_k, d_v, d_s, d_z


@takes_gpu_arrays
def summarise(k: Array, v: Array, *, feature_map: FeatureMap = elu_plus_one, key_mask: Mask | None = None) -> State:
    """The state after some keys, equations (1) and (2): what a machine has to say about its piece of a sequence.

    Parameters
    ----------
    k, v : ndarray, ``(..., L, D)``, ``(..., L, M)``
    feature_map, key_mask
        As in :func:`forward`.
    """
    check_qkv(k, k, v, key_mask=key_mask)
    check_feature_map(feature_map)
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    phi = features(k[..., :1, :], k, feature_map, key_mask)  # some query; what becomes of it is not used
    return State(*add_up(phi.k, v), phi.log_scale)


# --- The matrix -----------------------------------------------------------------------------------------------------


def matrix(
    q: Array,
    k: Array,
    *,
    feature_map: FeatureMap = elu_plus_one,
    causal: bool = False,
    key_mask: Mask | None = None,
    eps: float = 1e-6,
) -> Array:
    """The context mapping matrix ``(..., N, L)`` that :func:`forward` applies without forming it.

    ``P_ij = phi(q_i) . phi(k_j) / (sum_l phi(q_i) . phi(k_l) + eps)``, ``j`` and ``l`` keys that query ``i`` may see;
    arguments as in :func:`forward`. With an exponential map every query has a scale of its own here: ``O(N L C)``
    exponentials.
    """
    check_qk(q, k, causal=causal, key_mask=key_mask)
    eps = check_eps(eps, feature_map)
    k = zero_masked(k, key_mask)
    shape = (*q.shape[:-1], k.shape[-2])
    allowed = np.broadcast_to(visible(q.shape[-2], k.shape[-2], causal=causal, key_mask=key_mask), shape)
    if feature_map.split is None:
        phi_q, phi_k = feature_map.forward(q)[0], feature_map.forward(k)[0]
        similarity = np.where(allowed, phi_q @ phi_k.swapaxes(-1, -2), q.dtype.type(0))  # (..., N, L)
    else:
        similarity = np.empty(shape, q.dtype)
        for i in range(q.shape[-2]):
            phi = features(q[..., i : i + 1, :], k, feature_map, allowed[..., i, :])
            similarity[..., i, :] = (phi.q @ phi.k.swapaxes(-1, -2))[..., 0, :]
    return divide(similarity, similarity.sum(axis=-1) + eps)
