"""Linear attention with an exponential feature map: the equations of ``linear.py``, on a scale that cancels.

Queries and keys are in range on the scale that ``exponents.py`` chooses. Where it has to rise within a causal pass, the
sums before are brought to the new one, equation (3) there, and the rows between two rises are a piece, an ordinary
causal product. The gradients go back through the same factors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.exponents import (
    RISE,
    Features,
    decayed,
    features_backward,
    finite,
    join,
    risen,
    scaled_features,
)
from linattn_ref.attention.feature_maps import ExponentialMap, in_room
from linattn_ref.attention.fields import documented
from linattn_ref.attention.linear_state import State, gradient_on_scale, spend
from linattn_ref.attention.linear_sums import add_up, add_up_backward, read, read_backward
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.ownership import Count, new_count
from linattn_ref.attention.rooms import CausalProductRoom, kernel_of, name_of_room
from linattn_ref.kernels.reference import exponential_features
from linattn_ref.kernels.reference.buffers import into
from linattn_ref.kernels.turns import take_turn

__all__ = ["Saved", "backward", "forward", "similarities", "step", "summarise"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs with an exponential map: ``O(N + L)`` rows, and one state a piece."""

    phi: Features  # of queries (..., N, C) and keys (..., L, C), each piece on its scale
    v: Array  # (..., L, M), masked rows 0
    out: Array  # (..., N, M)
    denominator: Array  # (..., N)
    starts: tuple[tuple[Array, Array], ...]  # S and Z before each piece of a causal pass; else those of all keys
    kernels: Any  # the name of the room
    continued: bool  # whether from a state
    given_scale: Array | None  # (..., 1 or C), of that state
    state: State  # after the last key


def forward(
    q: Array,
    k: Array,
    v: Array,
    feature_map: ExponentialMap,
    causal: bool,
    key_mask: Mask | None,
    state: State | None,
    kernels: CausalProductRoom,
    out: Array | None = None,
) -> tuple[Array, Saved]:
    """`linear.forward` with such a map; ``eps`` is 0."""
    given_scale = None if state is None or state.log_scale is None else state.log_scale.copy()
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    if not causal and hasattr(feature_map, "product"):
        phi, s, z, result, denominator = _over_all_keys(q, k, v, feature_map, key_mask, kernels)
        out = into(out, result)
        last = State(s.copy(), z.copy(), phi.log_scale, new_count())
        rows, room = (phi, v, out, denominator), name_of_room(kernels)
        return out, Saved(*rows, ((s, z),), room, False, None, last)
    phi = scaled_features(q, k, feature_map, key_mask, causal, given_scale, kernels)
    s, z = add_up(phi.k[..., : phi.shared, :], v[..., : phi.shared, :])  # of the keys that every query sees
    if state is not None:
        s_before, z_before = decayed(state.s, state.z, phi.decay)
        s, z = s_before + s, z_before + z
    if causal:
        out, denominator, s, z, starts = _causal(phi, v, s, z, kernels, out)
    else:
        result, denominator = read(phi.q, s, z, 0.0)
        out = into(out, result)
        starts = ((s.copy(), z.copy()),)  # a copy, because a step may spend the state below
    kept = phi, v, out, denominator, starts, name_of_room(kernels), state is not None
    return out, Saved(*kept, given_scale, State(s, z, phi.log_scale, new_count()))


def _over_all_keys(
    q: Array, k: Array, v: Array, feature_map: Any, key_mask: Mask | None, kernels: CausalProductRoom
) -> tuple[Features, Array, Array, Array, Array]:
    """The same where exponents are products and all queries see all keys: a kernel does it all at once."""
    (x_q, directions), (x_k, _) = feature_map.product(q), feature_map.product(k)
    if key_mask is not None:
        seen = np.where(key_mask, x_k[..., -1], x_k.dtype.type(-np.inf))  # beside it in ``directions`` are ones
        x_k = np.concatenate([x_k[..., :-1], seen[..., None]], axis=-1)
    kernel = getattr(kernels, "exponential_features", exponential_features)
    phi_q, phi_k, r, *sums_and_output = kernel.over_all_keys(x_q, x_k, directions, v)
    saved = (q, phi_q), (k, phi_k), feature_map, key_mask
    return Features(phi_q, phi_k, None, k.shape[-2], (), r, *saved), *sums_and_output


def backward(d_out: Array, saved: Saved, d_state: State | None) -> tuple[Array, Array, Array, State | None]:
    """Gradients of ``q``, ``k``, ``v`` and, if there was one, of the state that :func:`forward` continued from."""
    phi, shared = saved.phi, slice(0, saved.phi.shared)
    d_s, d_z = (None, None) if d_state is None else gradient_on_scale(d_state, saved.state.log_scale)
    if phi.pieces:
        d_phi_q, d_phi_k, d_v, d_s, d_z = _causal_backward(d_out, d_s, d_z, saved)
    else:
        d_phi_q, d_s, d_z = read_backward(d_out, phi.q, saved.out, saved.denominator, *saved.starts[0], d_s, d_z)
        d_phi_k, d_v = [], []
    if phi.shared:
        d_phi_shared, d_v_shared = add_up_backward(d_s, d_z, phi.k[..., shared, :], saved.v[..., shared, :])
        d_phi_k, d_v = [d_phi_shared, *d_phi_k], [d_v_shared, *d_v]
    d_given = State(*decayed(d_s, d_z, phi.decay), saved.given_scale) if saved.continued else None
    d_q, d_k = features_backward(d_phi_q, join(d_phi_k), phi)
    return d_q, d_k, join(d_v), d_given


# --- Causal, piece by piece -----------------------------------------------------------------------------------------


def _causal(
    phi: Features, v: Array, s: Array, z: Array, kernels: CausalProductRoom, out: Array | None
) -> tuple[Array, Array, Array, Array, tuple[tuple[Array, Array], ...]]:
    """``S`` and ``Z`` of the keys before go in, those of all keys come out."""
    results, denominators, starts = [], [], []
    for queries, keys, decay in phi.pieces:
        s, z = decayed(s, z, decay)
        starts.append((s, z))
        rows = {"phi_q": phi.q[..., queries, :], "phi_k": phi.k[..., keys, :], "v": v[..., keys, :]}
        buffer = {} if out is None else {"out": out[..., queries, :]}
        result, denominator, s, z = kernels.causal_product.normalised_forward(
            **rows, gate=None, weight=None, s=s, z=z, eps=0.0, **buffer
        )
        results.append(result)
        denominators.append(denominator)
    return join(results) if out is None else out, join(denominators, axis=-1), s, z, tuple(starts)


def _causal_backward(
    d_out: Array, d_s: Any, d_z: Any, saved: Saved
) -> tuple[Array, list[Array], list[Array], Any, Any]:
    """From the last piece to the first; the gradients of ``S`` and ``Z`` go in and come out likewise."""
    phi, kernel, parts = saved.phi, kernel_of(saved.kernels, "causal_product"), []
    for (queries, keys, decay), (s, z) in zip(reversed(phi.pieces), reversed(saved.starts), strict=True):
        d_q, d_k, d_v, _, _, d_s, d_z = kernel.normalised_backward(
            d_out=d_out[..., queries, :],
            d_s=d_s,
            d_z=d_z,
            phi_q=phi.q[..., queries, :],
            phi_k=phi.k[..., keys, :],
            v=saved.v[..., keys, :],
            gate=None,
            weight=None,
            s=s,
            z=z,
            out=saved.out[..., queries, :],
            denominator=saved.denominator[..., queries],
        )
        d_s, d_z = decayed(d_s, d_z, decay)
        parts.append((d_q, d_k, d_v))
    d_phi_q, d_phi_k, d_vs = (list(part) for part in zip(*reversed(parts), strict=True))
    return join(d_phi_q), d_phi_k, d_vs, d_s, d_z


# --- The recurrent form, a summary, the matrix ----------------------------------------------------------------------


def step(
    q_t: Array, k_t: Array, v_t: Array, state: State, *, feature_map: ExponentialMap, kernels: CausalProductRoom
) -> tuple[Array, State]:
    """`linear.step` with such a map."""
    state = spend(state)
    arrays, phi = (q_t, k_t, v_t, state.s, state.z, state.log_scale), in_room(feature_map, kernels, "step")
    if phi is not feature_map:  # a kernel for all at once
        out_t, log_scale = phi.step(*arrays, RISE, feature_map)
    else:
        out_t, log_scale = step_in_place(*arrays, feature_map, kernels.causal_product.step)
    return out_t, State(state.s, state.z, log_scale, state.steps, state.taken)


def bind_step(
    q_t: Array, k_t: Array, v_t: Array, state: State, *, feature_map: ExponentialMap, kernels: CausalProductRoom
) -> tuple[Callable[[], None], Array, State, Count]:
    """The fields of `linear.BoundStep`."""
    state, out_t = spend(state), np.zeros_like(v_t)
    scale = np.empty_like(state.z)  # (..., C), to be written to where a new one has risen
    scale[...] = state.log_scale
    state, own = state._replace(log_scale=scale), state.steps.copy()  # type: ignore[union-attr]
    phi = in_room(feature_map, kernels, "step")
    if phi is not feature_map:  # a kernel for all at once
        rest = state.s, state.z, scale, RISE, feature_map, out_t
        return phi.bind_step(q_t, k_t, v_t, *rest, turns=(state.steps, own)), out_t, state, own
    arrays = q_t, k_t, v_t, out_t, state, own
    return partial(_run, feature_map, kernels.causal_product.step, *arrays), out_t, state, own


def _run(
    feature_map: ExponentialMap,
    step_of_kernel: Callable[..., Array],
    q_t: Array,
    k_t: Array,
    v_t: Array,
    out_t: Array,
    state: State,
    own: Count,
) -> None:
    take_turn(state.steps, own)
    arrays = q_t, k_t, v_t, state.s, state.z, state.log_scale
    out_t[...], state.log_scale[...] = step_in_place(*arrays, feature_map, step_of_kernel)  # type: ignore[index]


def step_in_place(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    s: Array,
    z: Array,
    log_scale: Any,
    feature_map: ExponentialMap,
    step_of_kernel: Callable[..., Array],
) -> tuple[Array, Array]:
    """``out_t`` and the new scale; ``s`` and ``z`` are brought up to date. Queries and keys are mapped at once."""
    exponent, factor = feature_map.split(np.stack([q_t, k_t]))  # (2, ..., 1 or C)
    before, log_scale = log_scale, risen(log_scale, exponent[1])
    if log_scale is not before:
        decay = np.exp(before - finite(log_scale))  # equation (3) of ``exponents.py``
        s *= decay[..., None]
        z *= decay
    phi_q, phi_k = exponent[0] + finite(log_scale), exponent[1] - finite(log_scale)
    phi_q = np.exp(phi_q - phi_q.max(axis=-1, keepdims=True))
    phi_k = np.exp(phi_k)
    if factor is not None:
        phi_q, phi_k = phi_q * factor[0], phi_k * factor[1]
    return step_of_kernel(phi_q, phi_k, v_t, s, z, 0.0), log_scale


def summarise(k: Array, v: Array, *, feature_map: ExponentialMap, key_mask: Mask | None) -> State:
    """`linear.summarise` with such a map."""
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    phi = scaled_features(k[..., :1, :], k, feature_map, key_mask)  # some query; what becomes of it is not used
    return State(*add_up(phi.k, v), phi.log_scale, new_count())


def similarities(q: Array, k: Array, feature_map: ExponentialMap, allowed: Mask) -> Array:
    """``phi(q_i) . phi(k_j)`` of those that are ``allowed (..., N, L)``, else 0; each query on a scale of its own."""
    similarity = np.empty(allowed.shape, q.dtype)
    for i in range(q.shape[-2]):
        phi = scaled_features(q[..., i : i + 1, :], k, feature_map, allowed[..., i, :])
        similarity[..., i, :] = (phi.q @ phi.k.swapaxes(-1, -2))[..., 0, :]
    return similarity
