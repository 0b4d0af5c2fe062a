"""The sheet on the delta rule in PyTorch."""

import torch


def forward(q, k, v, erase):
    s, out, u = k.new_zeros(k.shape[1], v.shape[1]), [], []
    for i in range(len(q)):
        u.append(v[i] - erase[i] @ s)
        s = s + torch.outer(k[i], u[i])
        out.append(q[i] @ s)
    return torch.stack(out), Saved(q, k, erase, torch.stack(u))


def backward(d_out, saved):
    q, k, e, u = saved
    states = torch.cumsum(torch.einsum("nc,nm->ncm", k, u), 0)
    a, d_v, d_k = k.new_zeros(k.shape[1], u.shape[1]), torch.empty_like(u), torch.empty_like(k)
    for i in reversed(range(len(q))):
        a = a + torch.outer(q[i], d_out[i])
        d_v[i], d_k[i] = k[i] @ a, a @ u[i]
        a = a - torch.outer(e[i], d_v[i])
    before = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
    d_q, d_e = torch.einsum("nm,ncm->nc", d_out, states), -torch.einsum("nm,ncm->nc", d_v, before)
    return Gradients(d_q, d_k, d_v, d_e)


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def unit_backward(d_y, x):
    y, length = unit(x), torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)
    return (d_y - y * (y * d_y).sum(-1, keepdim=True)) / length


def beta_backward(d_k, d_value, d_erase, unit_k, v, beta):
    d_beta = (v * d_value).sum(-1) + (unit_k * d_erase).sum(-1)
    return d_k + beta[:, None] * d_erase, beta[:, None] * d_value, d_beta


def solve(a, x):
    return torch.linalg.solve_triangular(a.tril(-1), x, upper=False, unitriangular=True)


def chunk(q, k, v, erase, s):
    u = solve(erase @ k.T, v - erase @ s)
    return q @ s + (q @ k.T).tril() @ u, s + k.T @ u
