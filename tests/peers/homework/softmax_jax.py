"""The sheet on softmax attention in JAX."""

import jax
import jax.numpy as jnp


def softmax(a):
    return jnp.nan_to_num(jax.nn.softmax(a, axis=-1))  # 0 where all scores are -inf


@jax.jit
def attention(q, k, v, seen, scale):
    p = softmax(jnp.where(seen, scale * jnp.einsum("...id,...jd->...ij", q, k), -jnp.inf))
    return p @ v, p


def forward(q, k, v, *, causal=False, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    n, l = q.shape[-2], k.shape[-2]
    out, p = attention(q, k, v, jnp.tri(n, l, l - n if causal else l, dtype=bool), scale)
    return out, Saved(q, k, v, p, scale)


def backward(d_out, saved):
    q, k, v, p, scale = saved
    d_p = jnp.einsum("...im,...jm->...ij", d_out, v)
    d_a = scale * p * (d_p - jnp.sum(d_p * p, axis=-1, keepdims=True))
    return Gradients(d_a @ k, d_a.mT @ q, p.mT @ d_out)


def update(running, a, v):
    m = jnp.maximum(running.m, a.max(axis=-1, keepdims=True))
    decay, weights = jnp.exp(running.m - m), jnp.exp(a - m)
    return Running(m, decay * running.s + weights.sum(axis=-1, keepdims=True), decay * running.o + weights @ v)


def attention_by_tiles(q, k, v, tile):
    some, none = jnp.zeros((len(q), v.shape[-1])), jnp.zeros((len(q), 1))
    running = Running(none - jnp.inf, none, some)
    for start in range(0, len(k), tile):
        keys = slice(start, start + tile)
        running = update(running, q @ k[keys].T / q.shape[-1] ** 0.5, v[keys])
    return running.o / running.s


@jax.vmap
def gradient_row(d_out, out, p, d_p):
    return p * (d_p - d_out @ out)


def gradient_by_tiles(d_out, out, p, v):
    return gradient_row(d_out, out, p, d_out @ v.T)
