"""`linattn_ref.attention.linear` on a causal loop; over all keys its sums are BLAS's already."""

from typing import Any, NamedTuple

from linattn_ref.attention import exponential
from linattn_ref.attention.features.feature_maps import FeatureMap, elu_plus_one
from linattn_ref.attention.linear import Gradients
from linattn_ref.attention.parts.masks import divide, shown
from linattn_ref.attention.parts.sums import State
from linattn_ref.kernels.common import exponential as common_exponential
from linattn_ref.kernels.common.exponential import from_all_keys, into, read_only, to_all_keys
from linattn_ref.kernels.common.rises import join
from linattn_ref.op import Array, Bool, Float

__all__ = ["Saved", "backward", "forward", "step"]


class Saved(NamedTuple):
    """What the backward pass needs: rows, and the sums of the keys that all queries see."""

    phi_q: Float[Array, "... N C"]
    phi_k: Float[Array, "... L C"]  # masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    s: Float[Array, "... C M"]
    z: Float[Array, "... C"]
    out: Float[Array, "... N M"]
    denominator: Float[Array, "... N"]
    features: tuple[FeatureMap, Any, Any]  # phi, and what its gradient needs of q and of k
    key_mask: Bool[Array, "... L"] | None
    causal: bool
    first: State | None
    state: State  # after the last key


def forward(
    loops, kind, q, k, v, *, feature_map=elu_plus_one, causal=False, key_mask=None, eps=1e-6, state=None, out=None
):
    """Equations (1)-(4) of the page; ``kind`` is the backend's class of what is saved."""
    if hasattr(feature_map, "split"):
        return exponential.forward(q, k, v, feature_map, causal=causal, key_mask=key_mask, state=state, out=out)
    phi = of_loops(feature_map, loops)
    seen_by_all = k.shape[-2] - causal * q.shape[-2]
    if key_mask is not None:
        k, v = shown(k, key_mask), shown(v, key_mask)
    (phi_q, of_q), (phi_k, of_k) = phi.forward(q), phi.forward(k)
    if key_mask is not None:
        phi_k = shown(phi_k, key_mask)
    of_all, v_of_all = phi_k[..., :seen_by_all, :], v[..., :seen_by_all, :]
    s, z = of_all.mT @ v_of_all, of_all.sum(axis=-2)  # (1), (2)
    if state is not None:
        s, z = s + state.s, z + state.z
    if causal:
        own = phi_k[..., seen_by_all:, :], v[..., seen_by_all:, :]
        buffer = {} if out is None else {"out": out}
        out, d, *last = loops.causal_product.normalised_forward(phi_q, *own, s, z, eps, **buffer)  # (3), (4)
    else:
        d = phi_q @ z[..., None] + eps
        result, d, last = divide(phi_q @ s, d), d[..., 0], read_only(s, z)  # (3)
        out = into(out, result)
    kept = phi_q, phi_k, v, s, z, out, d, (feature_map, of_q, of_k)
    return out, kind(*kept, key_mask, causal, state, State(*last))


def backward(loops, d_out, saved, *, d_state=None):
    """Equations (5)-(9) of the page."""
    phi_q, phi_k, v, s, z, out, denominator, (feature_map, of_q, of_k), key_mask, causal, first, _ = saved
    d_s, d_z = (None, None) if d_state is None else (d_state.s, d_state.z)
    seen_by_all = phi_k.shape[-2] - causal * phi_q.shape[-2]
    if causal:
        own = phi_q, phi_k[..., seen_by_all:, :], v[..., seen_by_all:, :], s, z, out, denominator
        d_phi_q, d_phi_k, d_v, d_s, d_z = loops.causal_product.normalised_backward(d_out, d_s, d_z, *own)
    else:
        d_phi_q, d_s, d_z = from_all_keys(d_out, d_s, d_z, phi_q, s, z, out, denominator)  # (5)-(7)
    if seen_by_all:
        shared = to_all_keys(d_s, d_z, phi_k[..., :seen_by_all, :], v[..., :seen_by_all, :])  # (8), (9)
        d_phi_k, d_v = map(join, zip(shared, (d_phi_k, d_v), strict=True)) if causal else shared
    if key_mask is not None:
        d_phi_k, d_v = shown(d_phi_k, key_mask), shown(d_v, key_mask)
    phi = of_loops(feature_map, loops)
    return Gradients(phi.backward(d_phi_q, of_q), phi.backward(d_phi_k, of_k), d_v, first and State(d_s, d_z))


def step(loops, q_t, k_t, v_t, state, *, feature_map=elu_plus_one, eps=1e-6, overwrite_state=False):
    """One token, equations (3) and (4)."""
    if hasattr(feature_map, "split"):
        return common_exponential.step(loops, q_t, k_t, v_t, state, feature_map, overwrite_state=overwrite_state)
    s, z = (state.s, state.z) if overwrite_state else (state.s.copy(), state.z.copy())
    phi = of_loops(feature_map, loops)
    if phi is not feature_map:  # a kernel for both at once
        return phi.step(q_t, k_t, v_t, s, z, eps), State(s, z)
    phi_q, phi_k = feature_map.forward(q_t)[0], feature_map.forward(k_t)[0]
    return loops.causal_product.step(phi_q, phi_k, v_t, s, z, eps), State(s, z)


def of_loops(feature_map, loops):
    """The loop of a feature map; without one, the map itself. Its ``backward`` may write over what it is given."""
    loop = getattr(loops, getattr(feature_map, "kernel", None) or "", None)
    return loop if hasattr(loop, "forward") else feature_map
