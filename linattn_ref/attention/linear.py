"""Linear attention (Katharopoulos et al. 2020): attention as a kernel smoother, whose sums over keys are shared.

Softmax attention weighs value ``j`` for query ``i`` by the similarity ``exp(q_i . k_j / sqrt D)``. Any other that is
not negative will do; if it is an inner product of features, ``phi(q_i) . phi(k_j)``, the query comes out of the sums:

    S = sum_j phi(k_j) v_j^T                                 (1)  (C, M)
    Z = sum_j phi(k_j)                                       (2)  (C,)
    out_i = phi(q_i)^T S / (phi(q_i)^T Z + eps)              (3)

It is associativity, ``(phi(Q) phi(K)^T) V = phi(Q) (phi(K)^T V)``: ``O(N C M)`` time in place of
``O(N^2 max(C, M))``. Causal, ``j`` runs up to ``i``, and the sums become prefix sums:

    S_i = S_{i-1} + phi(k_i) v_i^T,   Z_i = Z_{i-1} + phi(k_i)                                       (4)

a recurrent network: ``linear_by_row.py`` is its loop and that of its gradient, ``linear_recurrent.py`` a token at a
time, ``linear_state.py`` its state. For teaching, ``linear_sums.py`` has (1)-(3) and (6)-(9) as functions of their own.

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

Example
-------
One feature, and two keys of similarity 3 and 1 to the query: the values 10 and 20, weighed three to one.

>>> import numpy as np
>>> q, k, v = np.array([[0.0]]), np.array([[2.0], [0.0]]), np.array([[10.0], [20.0]])
>>> out, saved = forward(q, k, v, eps=0.0)
>>> out
array([[12.5]])
>>> backward(np.ones((1, 1)), saved).v
array([[0.75],
       [0.25]])

``eps`` biases what is well defined, where features are small. Six keys with four features of ``exp(-7)`` each, and all
values 1:

>>> small, ones = np.full((6, 4), -7.0), np.ones((6, 1))
>>> [round(float(forward(small, small, ones, eps=eps)[0][0, 0]), 3) for eps in (1e-6, 0.0)]
[0.952, 1.0]

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs: fast autoregressive transformers with linear attention".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import linear_scaled
from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.door import door
from linattn_ref.attention.feature_maps import FeatureMap, elu_plus_one, in_room, is_exponential
from linattn_ref.attention.fields import documented
from linattn_ref.attention.linear_by_row import by_row, by_row_backward
from linattn_ref.attention.linear_checks import check_backward_of, check_forward, check_matrix
from linattn_ref.attention.linear_recurrent import BoundStep, bind_step, step, summarise
from linattn_ref.attention.linear_state import State, combine, combine_gradients, init_state
from linattn_ref.attention.linear_sums import add_up, add_up_backward, read, read_backward
from linattn_ref.attention.masks import visible, zero_masked
from linattn_ref.attention.ownership import new_count
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import CausalProductRoom, name_of_room, room_of
from linattn_ref.kernels import reference
from linattn_ref.kernels.reference.buffers import into
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
    "by_row",
    "by_row_backward",
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


@documented
class Saved(NamedTuple):
    """What the backward pass needs: ``O(N + L)`` rows, two states. Of an exponential map: `linear_scaled.Saved`."""

    phi_q: Array  # (..., N, C)
    phi_k: Array  # (..., L, C), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    s: Array  # (..., C, M), S of the keys that all queries see
    z: Array  # (..., C)
    out: Array  # (..., N, M)
    denominator: Array  # (..., N)
    saved_q: Any  # what feature_map.backward needs
    saved_k: Any
    causal: bool
    key_mask: Mask | None  # (..., L)
    feature_map: FeatureMap
    kernels: Any  # the name of the room
    continued: bool  # whether from a state
    state: State  # after the last key


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)


@documented
class GradientsWithState(NamedTuple):
    """The same, where ``forward`` continued from a state."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)
    state: State  # of s and z, on the scale of the state given


@door(check_forward)
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
    out: Array | None = None,
    spend: bool = False,
    kernels: CausalProductRoom = reference,
) -> tuple[Array, Saved | linear_scaled.Saved]:
    """Linear attention, equations (1)-(4).

    Parameters
    ----------
    q, k, v, causal, key_mask, state, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. The mask acts after ``phi``, because ``phi(0)`` is not 0.
    feature_map : FeatureMap
        ``phi``, from ``linattn_ref.attention.feature_maps``. Of one that is not ``positive``, denominators can come out
        close to 0 or below, and the output far outside the range of the values.
    eps : float
        Added to the denominator; must be 0 with an exponential feature map, whose scale cancels in (3).
    spend : bool
        ``q`` and ``k`` are not needed any more: where the room has a loop for ``phi``, their memory is taken for it.
    """
    if is_exponential(feature_map):
        return linear_scaled.forward(q, k, v, feature_map, causal, key_mask, state, kernels, out)
    phi = in_room(feature_map, kernels)
    if key_mask is not None:
        k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    here = spend and phi is not feature_map
    phi_q, saved_q = phi.forward(q, out=q) if here else phi.forward(q)  # (..., N, C)
    phi_k, saved_k = phi.forward(k, out=k) if here else phi.forward(k)  # (..., L, C)
    phi_k = phi_k if key_mask is None else zero_masked(phi_k, key_mask)

    shared = k.shape[-2] - q.shape[-2] if causal else k.shape[-2]  # so many keys are seen by all queries
    s = phi_k[..., :shared, :].swapaxes(-1, -2) @ v[..., :shared, :]  # (1)  (..., C, M)
    z = phi_k[..., :shared, :].sum(axis=-2)  # (2)  (..., C)
    if state is not None:
        s, z = s + state.s, z + state.z
    if causal:  # from S and Z of those keys on; row by row, this is what by_row does
        rows = {"phi_q": phi_q, "phi_k": phi_k[..., shared:, :], "v": v[..., shared:, :]}
        buffer = {} if out is None else {"out": out}  # a room of one's own need not know of it
        out, denominator, s_last, z_last = kernels.causal_product.normalised_forward(
            **rows, gate=None, weight=None, s=s, z=z, eps=eps, **buffer
        )  # (4), (3)
    else:
        denominator = (phi_q @ z[..., None])[..., 0] + eps  # (..., N)
        out = into(out, divide(phi_q @ s, denominator))  # (3)  (..., N, M)
        s_last, z_last = s.copy(), z.copy()  # copies, because a step spends them
    last = State(s_last, z_last, steps=new_count())
    kept = phi_q, phi_k, v, s, z, out, denominator, saved_q, saved_k, causal, key_mask
    return out, Saved(*kept, feature_map, name_of_room(kernels), state is not None, last)


def _check_backward(d_out: Any, saved: Any, *, d_state: Any = None) -> None:
    check_backward_of(d_out, saved, linear_scaled.Saved if isinstance(saved, linear_scaled.Saved) else Saved, d_state)


@door(_check_backward)
def backward(
    d_out: Array, saved: Saved | linear_scaled.Saved, *, d_state: State | None = None
) -> Gradients | GradientsWithState:
    """Gradients of :func:`forward`, equations (5)-(9).

    Exactly 0 for masked keys and for queries that see nothing.

    Parameters
    ----------
    d_out, saved
        The common arguments: ``help(linattn_ref.attention)``.
    d_state : State, optional
        Gradient of ``saved.state``, where something continued from it: the ``grads.state`` of that. Without it,
        back-propagation is truncated here.
    """
    if isinstance(saved, linear_scaled.Saved):
        return _named(*linear_scaled.backward(d_out, saved, d_state))
    phi_q, phi_k, v, s, z, out, denominator, *_ = saved
    room, shared = room_of(saved.kernels), phi_k.shape[-2] - saved.causal * phi_q.shape[-2]
    d_s, d_z = (None, None) if d_state is None else (d_state.s, d_state.z)
    d_phi_k: Any = None
    d_v: Any = None
    if saved.causal:  # row by row, this is what by_row_backward does
        rows = {"phi_q": phi_q, "phi_k": phi_k[..., shared:, :], "v": v[..., shared:, :], "gate": None, "weight": None}
        given = {"d_out": d_out, "d_s": d_s, "d_z": d_z, "s": s, "z": z, "out": out, "denominator": denominator}
        d_phi_q, d_phi_k, d_v, _, _, d_s, d_z = room.causal_product.normalised_backward(**rows, **given)  # (5)-(9)
    else:
        d_n = divide(d_out, denominator)  # (5)  (..., N, M)
        d_d = -(d_n * out).sum(axis=-1, keepdims=True)  # (5)  (..., N, 1)
        d_phi_q = d_n @ s.swapaxes(-1, -2)  # (6)  (..., N, C)
        d_phi_q += d_d * z[..., None, :]  # (6)
        own_s, own_z = phi_q.swapaxes(-1, -2) @ d_n, (phi_q.swapaxes(-1, -2) @ d_d)[..., 0]  # (7)
        d_s, d_z = (own_s, own_z) if d_s is None else (own_s + d_s, own_z + d_z)
        del d_n  # its memory is at once used again
    if shared:
        d_phi_shared = v[..., :shared, :] @ d_s.swapaxes(-1, -2)  # (8)
        d_phi_shared += d_z[..., None, :]  # (8)
        d_v_shared = phi_k[..., :shared, :] @ d_s  # (9)
        d_phi_k, d_v = _before(d_phi_shared, d_phi_k), _before(d_v_shared, d_v)
    phi = in_room(saved.feature_map, room)
    d_q = phi.backward(d_phi_q, saved.saved_q)  # (..., N, D)
    d_k = phi.backward(zero_masked(d_phi_k, saved.key_mask), saved.saved_k)  # (..., L, D)
    return _named(d_q, d_k, d_v, State(d_s, d_z) if saved.continued else None)


def _before(first: Array, rest: Array | None) -> Array:
    return first if rest is None else np.concatenate([first, rest], axis=-2)


def _named(d_q: Array, d_k: Array, d_v: Array, d_state: State | None) -> Gradients | GradientsWithState:
    return Gradients(d_q, d_k, d_v) if d_state is None else GradientsWithState(d_q, d_k, d_v, d_state)


# --- The matrix -------------------------------------------------------------------------------------------------------


@plain_numbers
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
    check_matrix(q, k, feature_map=feature_map, causal=causal, key_mask=key_mask, eps=eps)
    k = zero_masked(k, key_mask)
    allowed = visible(q.shape[-2], k.shape[-2], causal=causal, key_mask=key_mask)
    allowed = np.broadcast_to(allowed, (*q.shape[:-1], k.shape[-2]))  # (..., N, L)
    if is_exponential(feature_map):
        similarity = linear_scaled.similarities(q, k, feature_map, allowed)
    else:
        phi_q, phi_k = feature_map.forward(q)[0], feature_map.forward(k)[0]
        similarity = np.where(allowed, phi_q @ phi_k.swapaxes(-1, -2), q.dtype.type(0))  # (..., N, L)
    return divide(similarity, similarity.sum(axis=-1) + eps)
