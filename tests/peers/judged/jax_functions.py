"""A function of JAX.

linattn-ref conform tests/peers/judged/jax_functions.py:rule --op gated_delta --fixed normalise=false
"""

import jax
import jax.numpy as jnp


def rule(q, k, v, beta, log_gate, *, state=None):
    q = q * q.shape[-1] ** -0.5
    if state is None:
        state = jnp.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), k.dtype)

    def token(s, row):
        q_t, k_t, v_t, beta_t, gate_t = row
        s = jnp.exp(gate_t)[..., None, None] * s
        u = beta_t[..., None] * (v_t - jnp.einsum("...c,...cm->...m", k_t, s))
        s = s + k_t[..., :, None] * u[..., None, :]
        return s, jnp.einsum("...c,...cm->...m", q_t, s)

    rows = (*(jnp.moveaxis(x, -2, 0) for x in (q, k, v)), *(jnp.moveaxis(x, -1, 0) for x in (beta, log_gate)))
    last, out = jax.lax.scan(token, state, rows)
    return jnp.moveaxis(out, 0, -2), last
