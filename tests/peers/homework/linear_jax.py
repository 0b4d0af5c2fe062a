"""The sheet on linear attention in JAX: sums that grow by `lax.scan`, and a gradient that runs back."""

import jax
import jax.numpy as jnp


def features(x):
    return jax.nn.elu(x) + 1


def features_backward(d_phi, phi):
    return jnp.where(phi < 1, phi, 1) * d_phi


def forward(q, k, v, *, causal=False, eps=1e-6):
    phi_q, phi_k = features(q), features(k)
    if causal:
        w = jnp.tril(phi_q @ phi_k.mT, k.shape[-2] - q.shape[-2])
        numerator, d = w @ v, w.sum(axis=-1, keepdims=True) + eps
    else:
        numerator, d = phi_q @ (phi_k.mT @ v), phi_q @ phi_k.sum(axis=-2)[..., None] + eps
    return numerator / d, Saved(phi_q, phi_k, v, numerator / d, d, causal)


def backward(d_out, saved):
    phi_q, phi_k, v, out, d, causal = saved
    d_n = d_out / d
    d_d = -(d_n * out).sum(axis=-1, keepdims=True)
    v1, d_n1 = jnp.concatenate([v, jnp.ones_like(v[..., :1])], -1), jnp.concatenate([d_n, d_d], -1)
    if causal:
        w, d_w = (jnp.tril(x, phi_k.shape[-2] - phi_q.shape[-2]) for x in (phi_q @ phi_k.mT, d_n1 @ v1.mT))
        d_phi_q, d_phi_k, d_v = d_w @ phi_k, d_w.mT @ phi_q, w.mT @ d_n
    else:
        d_phi_q, d_s = d_n1 @ (phi_k.mT @ v1).mT, phi_q.mT @ d_n1
        d_phi_k, d_v = v1 @ d_s.mT, phi_k @ d_s[..., :-1]
    return Gradients(features_backward(d_phi_q, phi_q), features_backward(d_phi_k, phi_k), d_v)


def step(s, z, phi_q, phi_k, v, eps):
    s, z = s + jnp.outer(phi_k, v), z + phi_k
    return phi_q @ s / (phi_q @ z + eps), s, z


def chunk(s, z, phi_q, phi_k, v, eps):
    def token(state, row):
        out, *state = step(*state, *row, eps)
        return tuple(state), out

    (s, z), out = jax.lax.scan(token, (s, z), (phi_q, phi_k, v))
    return out, s, z
