"""The sheet on the delta rule in JAX, the loops as `lax.scan`."""

import jax
import jax.numpy as jnp


def forward(q, k, v, erase):
    def token(s, row):
        q, k, v, e = row
        u = v - e @ s
        s = s + jnp.outer(k, u)
        return s, (q @ s, u)

    _, (out, u) = jax.lax.scan(token, jnp.zeros((k.shape[1], v.shape[1]), v.dtype), (q, k, v, erase))
    return out, Saved(q, k, erase, u)


def backward(d_out, saved):
    q, k, e, u = saved
    after = jnp.cumsum(k[:, :, None] * u[:, None, :], axis=0)
    before = after - k[:, :, None] * u[:, None, :]

    def token(a, row):
        q, k, e, u, before, after, d = row
        a = a + jnp.outer(q, d)
        r = k @ a
        return a - jnp.outer(e, r), (after @ d, a @ u, r, -before @ r)

    rows = q, k, e, u, before, after, d_out
    return Gradients(*jax.lax.scan(token, jnp.zeros_like(before[0]), rows, reverse=True)[1])


def unit(x):
    return x / jnp.sqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-6)


def unit_backward(d_y, x):
    r = jnp.square(x).sum(axis=-1, keepdims=True) + 1e-6
    return d_y / r**0.5 - x * (x * d_y).sum(axis=-1, keepdims=True) / r**1.5


def beta_backward(d_k, d_value, d_erase, unit_k, v, beta):
    d_beta = jnp.vecdot(v, d_value) + jnp.vecdot(unit_k, d_erase)
    return d_k + beta[:, None] * d_erase, beta[:, None] * d_value, d_beta


def solve(a, x):
    return jax.scipy.linalg.solve_triangular(jnp.tril(a, -1), x, lower=True, unit_diagonal=True)


def chunk(q, k, v, erase, s):
    u = solve(erase @ k.T, v - erase @ s)
    return q @ s + jnp.tril(q @ k.T) @ u, s + k.T @ u
