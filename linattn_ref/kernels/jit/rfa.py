"""`linattn_ref.attention.rfa`, keeping less with a gate; a token at once by ``loops/linear/rfa.py``."""

from linattn_ref.attention import rfa as page
from linattn_ref.attention.features.feature_maps_random import KINDS
from linattn_ref.attention.linear import State
from linattn_ref.kernels.jit.loops.linear import rfa as loop

__all__ = ["Saved", "backward", "forward", "step"]


class Saved(page.Saved):
    """The page's, without the queries and keys of the gated sums, which are features, and weighted features."""


def forward(*arrays, **options):
    out, saved = page.forward.page(*arrays, **options)
    if not isinstance(saved, page.Saved):  # without a gate it is linear attention's
        return out, saved
    return out, Saved(*saved._replace(gated=with_rows(saved.gated, None, None)))


def backward(d_out, saved, *, d_state=None):
    _, (*_, phi_q), _ = saved.features
    gated = with_rows(saved.gated, phi_q, (1 - saved.gate)[..., None] * saved.phi_k)
    return page.backward.page(d_out, page.Saved(*saved._replace(gated=gated)), d_state=d_state)


def with_rows(gated, q, k):
    """What gated linear attention saved, with these queries and keys."""
    return gated._replace(rule=gated.rule._replace(q=q, k=k))


def step(q_t, k_t, v_t, state, omega, gate_t=None, *, kind="gaussian", eps=1e-6, overwrite_state=False):
    s, z = (state.s, state.z) if overwrite_state else (state.s.copy(), state.z.copy())
    return loop.step(q_t, k_t, v_t, s, z, gate_t, eps, KINDS[kind](omega)), State(s, z)
