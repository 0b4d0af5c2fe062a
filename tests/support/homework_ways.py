"""Right answers that do not look like the solution's: loops, einsum, other chunks."""

OTHER_WAYS = {
    "softmax": {
        "loops": """
def softmax(a):
    rows = []
    for row in a.reshape(-1, a.shape[-1]):
        weights = [np.exp(x - max(row)) for x in row]
        rows.append([w / sum(weights) for w in weights])
    return np.array(rows).reshape(a.shape)


def backward(d_out, saved):
    q, k, v, p, scale = saved.q, saved.k, saved.v, saved.p, saved.scale
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for i in range(len(q)):
        for j in range(len(k)):
            d_v[j] += p[i, j] * d_out[i]
            d_a = p[i, j] * (d_out[i] @ v[j] - sum(p[i, l] * (d_out[i] @ v[l]) for l in range(len(k))))
            d_q[i] += scale * d_a * k[j]
            d_k[j] += scale * d_a * q[i]
    return d_q, d_k, d_v
""",
        "einsum": """
def forward(q, k, v, *, causal=False, scale=None):
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    a = scale * np.einsum("...id,...jd->...ij", q, k)
    if causal:
        n, l = a.shape[-2:]
        a = a - 1e30 * (np.arange(l) > np.arange(n)[:, None] + l - n)
    w = np.exp(a - a.max(-1)[..., None])
    return np.einsum("...ij,...jm,...i->...im", w, v, 1 / w.sum(-1)), None


def update(running, a, v):
    m = np.concatenate([running.m, a], axis=-1).max(axis=-1, keepdims=True)
    s, o = running.s * np.exp(running.m - m), running.o * np.exp(running.m - m)
    for j in range(a.shape[-1]):
        w = np.exp(a[:, j : j + 1] - m)
        s, o = s + w, o + w * v[j]
    return {"m": m, "s": s, "o": o}
""",
    },
    "linear": {
        "matrix": """
def forward(q, k, v, *, causal=False, eps=1e-6):
    phi_q, phi_k = features(q), features(k)
    if not causal:
        out = phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(-2)[..., None] + eps)
        return out, None
    n, l = q.shape[-2], k.shape[-2]
    w = np.einsum("...ic,...jc->...ij", phi_q, phi_k) * np.tri(n, l, l - n)
    return w @ v / (w.sum(-1, keepdims=True) + eps), None


def backward(d_out, saved):
    phi_q, phi_k, v, out, d = saved.phi_q, saved.phi_k, saved.v, saved.out, saved.d
    n, l = phi_q.shape[-2], phi_k.shape[-2]
    seen = np.tri(n, l, l - n if saved.causal else l)
    w = seen * (phi_q @ phi_k.mT)
    d_w = seen * ((d_out / d) @ v.mT - ((d_out / d) * out).sum(-1)[..., None])
    d_q, d_k = features_backward(d_w @ phi_k, phi_q), features_backward(d_w.mT @ phi_q, phi_k)
    return d_q, d_k, w.mT @ (d_out / d)
""",
        "loops": """
def chunk(s, z, phi_q, phi_k, v, eps):
    rows = []
    for i in range(len(phi_q)):
        out, s, z = step(s, z, phi_q[i], phi_k[i], v[i], eps)
        rows.append(out)
    return np.stack(rows), s, z


def features(x):
    return np.maximum(x, 0) + np.exp(np.minimum(x, 0))
""",
    },
    "delta": {
        "states": """
def forward(q, k, v, erase):
    s, rows, us = np.zeros((k.shape[1], v.shape[1])), [], []
    for i in range(len(q)):
        us.append(v[i] - np.einsum("c,cm->m", erase[i], s))
        s = s + k[i][:, None] * us[-1]
        rows.append(s.T @ q[i])
    return np.array(rows), (q, k, erase, np.array(us))


def backward(d_out, saved):
    q, k, e, u = saved.q, saved.k, saved.e, saved.u
    before = [np.zeros((k.shape[1], u.shape[1]))]
    for i in range(len(q)):
        before.append(before[-1] + np.outer(k[i], u[i]))
    d_q, d_k, d_e, d_v, a = np.zeros_like(q), np.zeros_like(k), np.zeros_like(e), np.zeros_like(u), 0.0
    for i in range(len(q) - 1, -1, -1):
        a = a + np.outer(q[i], d_out[i])
        d_v[i], d_k[i], d_q[i] = a.T @ k[i], a @ u[i], before[i + 1] @ d_out[i]
        d_e[i] = -before[i] @ d_v[i]
        a = a - np.outer(e[i], d_v[i])
    return [d_q, d_k, d_v, d_e]
""",
        "library": """
def solve(a, x):
    return np.linalg.solve(np.eye(len(a), dtype=a.dtype) + np.tril(a, -1), x)


def chunk(q, k, v, erase, s):
    rows = []
    for i in range(len(q)):
        s = s + np.outer(k[i], v[i] - erase[i] @ s)
        rows.append(q[i] @ s)
    return np.stack(rows), s
""",
    },
}
