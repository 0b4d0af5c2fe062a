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
}
