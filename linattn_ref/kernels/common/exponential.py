"""`linattn_ref.attention.exponential` on a causal loop: a scale that rises seldom.

The page raises ``r`` with every larger key. Here it rises only where it has to (``rises.py``), and the rows between two
rises are a piece, an ordinary causal product. The gradients go back through the same factors. Over all keys, where the
exponents are a product with the directions, one kernel does all of it.
"""

from typing import NamedTuple

import numpy as np

from linattn_ref.attention.exponential import Gradients
from linattn_ref.attention.parts.masks import divide, in_range, shown
from linattn_ref.attention.parts.sums import State, on_scale
from linattn_ref.kernels.common.rises import RISE, Features, decayed, features_backward, join, risen, scaled_features
from linattn_ref.op import Array, Float

__all__ = ["Saved", "backward", "forward", "step"]


class Saved(NamedTuple):
    """What the backward pass needs: ``O(N + L)`` rows, and one state per piece."""

    phi: Features  # of queries (..., N, C) and keys (..., L, C), each piece on its scale
    v: Float[Array, "... L M"]  # masked rows 0
    out: Float[Array, "... N M"]
    denominator: Float[Array, "... N"]
    starts: tuple[tuple[Array, Array], ...]  # S and Z before each piece of a causal pass; else those of all keys
    first: State | None
    state: State  # after the last key


def forward(loops, kind, q, k, v, feature_map, *, causal=False, key_mask=None, state=None, out=None):
    """Equations (1)-(6) of the page; ``kind`` is the backend's class of what is saved."""
    k, v = shown(k, key_mask), shown(v, key_mask)
    if not causal and state is None and hasattr(feature_map, "product") and hasattr(loops, "exponential_features"):
        phi, s, z, result, d = _over_all_keys(q, k, v, feature_map, key_mask, loops)
        return into(out, result), kind(phi, v, result, d, ((s, z),), None, State(*read_only(s, z, phi.log_scale)))
    before = None if state is None else state.log_scale
    phi = scaled_features(q, k, feature_map, key_mask, causal, before, loops)
    s, z = sums(phi.k[..., : phi.shared, :], v[..., : phi.shared, :])  # of the keys that every query sees
    if state is not None:
        s_before, z_before = decayed(state.s, state.z, phi.decay)
        s, z = s_before + s, z_before + z
    if causal:
        out, d, s, z, starts = _causal(phi, v, s, z, loops, out)
    else:
        d = phi.q @ z[..., None]
        result, starts, d = divide(phi.q @ s, d), ((s, z),), d[..., 0]
        out = into(out, result)
    return out, kind(phi, v, out, d, starts, state, State(*read_only(s, z, phi.log_scale)))


def read_only(*arrays):
    """Arrays of a state that the backward pass needs too: read-only, so that no step works in them."""
    if not isinstance(arrays[0], np.ndarray):
        return [x.copy() for x in arrays]
    views = [x.view() for x in arrays]
    for view in views:
        view.flags.writeable = False
    return views


def sums(phi_k, v):
    """``S`` and ``Z`` of some keys."""
    return phi_k.mT @ v, phi_k.sum(axis=-2)


def from_all_keys(d_out, d_s, d_z, phi_q, s, z, out, denominator):
    """Equations (5)-(7) of `linear`, for queries that see the same keys: ``dphi(q)``, and the gradients of the sums."""
    d_n = divide(d_out, denominator[..., None])  # (5)
    d_d = -(d_n * out).sum(axis=-1, keepdims=True)  # (5)
    d_phi_q = d_n @ s.mT
    d_phi_q += d_d * z[..., None, :]  # (6)
    own_s, own_z = phi_q.mT @ d_n, (phi_q.mT @ d_d)[..., 0]  # (7)
    return d_phi_q, *((own_s, own_z) if d_s is None else (own_s + d_s, own_z + d_z))


def to_all_keys(d_s, d_z, phi_k, v):
    """Equations (8) and (9), for keys that all queries see: ``dphi(k)`` and ``dv``."""
    d_phi_k = v @ d_s.mT
    d_phi_k += d_z[..., None, :]  # (8)
    return d_phi_k, phi_k @ d_s  # (9)


def into(out, result):
    """The result, written to ``out`` if there is one."""
    if out is None:
        return result
    out[...] = result
    return out


def _over_all_keys(q, k, v, feature_map, key_mask, loops):
    """The same where exponents are products and all queries see all keys: one kernel computes it."""
    (x_q, directions), (x_k, _) = feature_map.product(q), feature_map.product(k)
    # The last column of ``directions`` is ones: where a finite key has -inf there, all its exponents are too low.
    beyond = np.isneginf(x_k[..., -1]) & np.isfinite(x_k[..., :-1]).all(axis=-1)
    if beyond.any():
        x_k = np.concatenate([shown(x_k[..., :-1], ~beyond), in_range(x_k[..., -1:])], axis=-1)
    if key_mask is not None:
        seen = np.where(key_mask, x_k[..., -1], x_k.dtype.type(-np.inf))
        x_k = np.concatenate([x_k[..., :-1], seen[..., None]], axis=-1)
    phi_q, phi_k, r, *sums_and_output = loops.exponential_features.over_all_keys(x_q, x_k, directions, v)
    saved = (q, phi_q), (k, phi_k), feature_map, key_mask
    r = np.maximum(r, np.finfo(r.dtype).min)  # the lowest number for a head that sees no key
    return Features(phi_q, phi_k, None, k.shape[-2], (), r, *saved), *sums_and_output


def backward(loops, d_out, saved, *, d_state=None):
    """Linear attention's gradient, from piece to piece by (7) of the page."""
    phi, shared = saved.phi, slice(0, saved.phi.shared)
    d_s, d_z = (None, None) if d_state is None else on_scale(d_state, saved.state.log_scale)
    if phi.pieces:
        d_phi_q, d_phi_k, d_v, d_s, d_z = _causal_backward(d_out, d_s, d_z, saved, loops)
    else:
        d_phi_q, d_s, d_z = from_all_keys(d_out, d_s, d_z, phi.q, *saved.starts[0], saved.out, saved.denominator)
        d_phi_k, d_v = [], []
    if phi.shared:
        of_shared = to_all_keys(d_s, d_z, phi.k[..., shared, :], saved.v[..., shared, :])
        d_phi_k, d_v = [of_shared[0], *d_phi_k], [of_shared[1], *d_v]
    d_first = saved.first and State(*decayed(d_s, d_z, phi.decay), saved.first.log_scale)
    d_q, d_k = features_backward(d_phi_q, join(d_phi_k), phi)
    return Gradients(d_q, d_k, shown(join(d_v), phi.key_mask), d_first)


# --- Causal, piece by piece -----------------------------------------------------------------------------------------


def _causal(phi, v, s, z, loops, out):
    """``S`` and ``Z`` of the keys before go in, those of all keys come out."""
    results, denominators, starts = [], [], []
    for queries, keys, decay in phi.pieces:
        s, z = decayed(s, z, decay)
        starts.append((s, z))
        rows = {"phi_q": phi.q[..., queries, :], "phi_k": phi.k[..., keys, :], "v": v[..., keys, :]}
        buffer = {} if out is None else {"out": out[..., queries, :]}
        result, denominator, s, z = loops.causal_product.normalised_forward(**rows, s=s, z=z, eps=0.0, **buffer)
        results.append(result)
        denominators.append(denominator)
    return join(results) if out is None else out, join(denominators, axis=-1), s, z, tuple(starts)


def _causal_backward(d_out, d_s, d_z, saved, loops):
    """From the last piece to the first; the gradients of ``S`` and ``Z`` go in and come out likewise."""
    phi, kernel, parts = saved.phi, loops.causal_product, []
    for (queries, keys, decay), (s, z) in zip(reversed(phi.pieces), reversed(saved.starts), strict=True):
        own = phi.q[..., queries, :], phi.k[..., keys, :], saved.v[..., keys, :], s, z, saved.out[..., queries, :]
        given = d_out[..., queries, :], d_s, d_z, *own, saved.denominator[..., queries]
        d_q, d_k, d_v, d_s, d_z = kernel.normalised_backward(*given)
        d_s, d_z = decayed(d_s, d_z, decay)
        parts.append((d_q, d_k, d_v))
    d_phi_q, d_phi_k, d_vs = (list(part) for part in zip(*reversed(parts), strict=True))
    return join(d_phi_q), d_phi_k, d_vs, d_s, d_z


# --- One token --------------------------------------------------------------------------------------------------------


def step(loops, q_t, k_t, v_t, state, feature_map, *, overwrite_state):
    """`linear.step` with such a map."""
    s, z, r = state if overwrite_state else (x.copy() for x in state)
    loop = getattr(loops, getattr(feature_map, "kernel", None) or "", None)
    if hasattr(loop, "step"):  # one for all at once
        out_t, r = loop.step(q_t, k_t, v_t, s, z, r, RISE, feature_map)
    else:
        out_t, r = step_in_place(q_t, k_t, v_t, s, z, r, feature_map, loops.causal_product.step)
    return out_t, State(s, z, r)


def step_in_place(q_t, k_t, v_t, s, z, log_scale, feature_map, step_of_kernel):
    """``out_t`` and the new scale; ``s`` and ``z`` are brought up to date. Queries and keys are mapped at once."""
    exponent, factor = feature_map.split(np.stack([q_t, k_t]))  # (2, ..., 1 or C)
    exponent = in_range(exponent)
    before, log_scale = log_scale, risen(log_scale, exponent[1])
    if log_scale is not before:
        decay = np.exp(before - log_scale)  # equation (3) of ``rises.py``
        s *= decay[..., None]
        z *= decay
    phi_q, phi_k = exponent[0] - exponent[0].max(axis=-1, keepdims=True) + log_scale, exponent[1] - log_scale
    phi_q = np.exp(phi_q - phi_q.max(axis=-1, keepdims=True))
    phi_k = np.exp(phi_k)
    if factor is not None:
        phi_q, phi_k = phi_q * factor[0], phi_k * factor[1]
    return step_of_kernel(phi_q, phi_k, v_t, s, z, 0.0), log_scale
