"""The sheet on linear attention in PyTorch."""

import torch


def features(x):
    return torch.nn.functional.elu(x) + 1


def features_backward(d_phi, phi):
    return d_phi * phi.clamp(max=1)


def triangle(x, y):
    """Which pairs a causal row sees, the last query all keys."""
    n, l = x.shape[-2], y.shape[-2]
    return torch.ones(n, l, dtype=x.dtype).tril(l - n)


def forward(q, k, v, *, causal=False, eps=1e-6):
    phi_q, phi_k = features(q), features(k)
    if causal:
        w = phi_q @ phi_k.mT * triangle(phi_q, phi_k)
        numerator, d = w @ v, w.sum(-1, keepdim=True) + eps
    else:
        numerator, d = phi_q @ (phi_k.mT @ v), phi_q @ phi_k.sum(-2)[..., None] + eps
    return numerator / d, Saved(phi_q, phi_k, v, numerator / d, d, causal)


def backward(d_out, saved):
    phi_q, phi_k, v, out, d, causal = saved
    d_n = d_out / d
    d_w = d_n @ v.mT - (d_n * out).sum(-1, keepdim=True)
    w = phi_q @ phi_k.mT
    if causal:
        d_w, w = (x * triangle(phi_q, phi_k) for x in (d_w, w))
    d_q, d_k = features_backward(d_w @ phi_k, phi_q), features_backward(d_w.mT @ phi_q, phi_k)
    return Gradients(d_q, d_k, w.mT @ d_n)


def step(s, z, phi_q, phi_k, v, eps):
    s, z = s + torch.outer(phi_k, v), z + phi_k
    return phi_q @ s / (phi_q @ z + eps), s, z


def chunk(s, z, phi_q, phi_k, v, eps):
    w = (phi_q @ phi_k.T).tril()
    out = (w @ v + phi_q @ s) / (w.sum(-1) + phi_q @ z + eps)[:, None]
    return out, s + phi_k.T @ v, z + phi_k.sum(0)
