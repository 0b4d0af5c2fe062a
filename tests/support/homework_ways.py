"""Right answers that do not look like the solution's: loops, einsum, other chunks."""

OTHER_WAYS = {
    "softmax": {
        "loops": """
def softmax(a):
    rows = []
    for row in a.reshape(-1, a.shape[-1]):
        weights = [np.exp(x - max(*row, -1e300)) for x in row]
        rows.append([w / (sum(weights) or 1) for w in weights])
    return np.array(rows).reshape(a.shape)


def backward(d_out, saved):
    if d_out.ndim > 2:
        heads = [Saved(*(x[h] if np.ndim(x) else x for x in saved)) for h in range(len(d_out))]
        return [np.stack(x) for x in zip(*(backward(d_out[h], one) for h, one in enumerate(heads)))]
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
    n, l = a.shape[-2:]
    seen = np.arange(l) <= np.arange(n)[:, None] + (l - n if causal else l)
    a = np.where(seen, a, -1e300)
    w = seen * np.exp(a - a.max(-1)[..., None])
    return np.einsum("...ij,...jm,...i->...im", w, v, 1 / np.maximum(w.sum(-1), 1e-300)), None


def update(running, a, v):
    m = np.concatenate([running.m, a], axis=-1).max(axis=-1, keepdims=True)
    s, o = running.s * np.exp(running.m - m), running.o * np.exp(running.m - m)
    for j in range(a.shape[-1]):
        w = np.exp(a[:, j : j + 1] - m)
        s, o = s + w, o + w * v[j]
    return {"m": m, "s": s, "o": o}


def attention_by_tiles(q, k, v, tile):
    rows = []
    for row in q:
        m, s, o = -np.inf, 0.0, 0.0
        for start in range(0, len(k), tile):
            a = k[start : start + tile] @ row / len(row) ** 0.5
            before, m = m, max(m, a.max())
            w = np.exp(a - m)
            s, o = s * np.exp(before - m) + w.sum(), o * np.exp(before - m) + w @ v[start : start + tile]
        rows.append(o / s)
    return np.stack(rows)
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
    phi_q, phi_k, v, d_n = saved.phi_q, saved.phi_k, saved.v, d_out / saved.d
    n, l = phi_q.shape[-2], phi_k.shape[-2]
    d_phi_q, d_phi_k, d_v = np.zeros_like(phi_q), np.zeros_like(phi_k), np.zeros_like(v)
    for start in range(0, n, 20):
        rows = (..., slice(start, start + 20), slice(None))
        seen = np.tri(n, l, l - n if saved.causal else l, dtype=bool)[start : start + 20]
        d_w = seen * (d_n[rows] @ v.mT - (d_n[rows] * saved.out[rows]).sum(-1)[..., None])
        d_phi_q[rows] = d_w @ phi_k
        d_phi_k += d_w.mT @ phi_q[rows]
        d_v += (seen * (phi_q[rows] @ phi_k.mT)).mT @ d_n[rows]
    return features_backward(d_phi_q, phi_q), features_backward(d_phi_k, phi_k), d_v
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
    "low_rank": {
        "loops": """
def shares(p):
    values = np.sqrt(np.maximum(np.sort(np.linalg.eigvalsh(p @ p.T if len(p) <= len(p.T) else p.T @ p))[::-1], 0))
    return np.array([values[: k + 1].sum() for k in range(len(values))]) / values.sum()


def best(p, k):
    u, values, v_t = np.linalg.svd(p)
    return sum(values[i] * np.outer(u[:, i], v_t[i]) for i in range(k))


def dimension(m, eps, failure):
    k = 1
    while m * (m - 1) * math.exp(-(eps**2 - eps**3) * k / 4) > failure:
        k += 1
    return k


def worst_distance(x, z):
    r, worst = z / math.sqrt(len(z)), 0.0
    for a in range(len(x)):
        for b in range(a):
            kept = np.linalg.norm(r @ x[a] - r @ x[b]) / np.linalg.norm(x[a] - x[b])
            worst = max(worst, abs(kept**2 - 1))
    return worst
""",
        "einsum": """
def linformer(q, k, v, e, f, *, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    w = np.exp(scale * np.einsum("...nd,...ld,rl->...nr", q, k, e))
    return np.einsum("...nr,rl,...lm->...nm", w, f, v) / w.sum(-1, keepdims=True), None


def linformer_backward(d_out, saved):
    d_q, d_k, d_v = softmax.backward(d_out, saved.attention)
    d_e, d_f = np.einsum("rd,ld->rl", d_k, saved.k), np.einsum("rm,lm->rl", d_v, saved.v)
    return d_q, np.einsum("rl,rd->ld", saved.e, d_k), np.einsum("rl,rm->lm", saved.f, d_v), d_e, d_f
""",
    },
    "random_features": {
        "loops": """
def positive(x, omega):
    rows = [[np.exp(w @ row - row @ row / 2) for w in omega] for row in x]
    return np.array(rows) / len(omega) ** 0.5


def positive_backward(d_phi, x, omega):
    phi, d_x = positive(x, omega), np.zeros_like(x)
    for i in range(len(x)):
        for j in range(len(omega)):
            d_x[i] += d_phi[i, j] * phi[i, j] * (omega[j] - x[i])
    return d_x


def orthogonal(z, lengths):
    rows = []
    for row in z:
        for other in rows:
            row = row - (row @ other) * other
        rows.append(-row / np.linalg.norm(row))
    return np.array(rows) * np.asarray(lengths)[:, None]
""",
        "logarithms": """
def forward(q, k, v, omega):
    x, y = q / q.shape[-1] ** 0.25, k / k.shape[-1] ** 0.25
    b = y @ omega.T - np.square(y).sum(-1)[:, None] / 2
    most = b.max(0)
    a = x @ omega.T + most
    a, b = np.exp(a - a.max(-1)[:, None]), np.exp(b - most)
    w = np.einsum("nm,lm->nl", a, b)
    return w @ v / w.sum(-1)[:, None], None


def positive_error(x, y, m):
    return (np.exp(2 * np.sum((x + y) ** 2) - x @ x - y @ y) - np.exp(2 * x @ y)) / m


def trig_error(x, y, m):
    second = np.exp(x @ x + y @ y) * (1 + np.exp(-2 * np.sum((x - y) ** 2))) / 2
    return (second - np.exp(2 * x @ y)) / m
""",
    },
    "transformer": {
        "loops": """
def layer_norm(x, params, *, eps=1e-5):
    s = np.sqrt(np.var(x, axis=-1) + eps)[..., None]
    n = (x - np.mean(x, axis=-1)[..., None]) / s
    return n * params.gain + params.bias, NormSaved(n, s, params)


def layer_norm_backward(d_y, saved):
    n, s, d_n, width = saved.n, saved.s, d_y * saved.params.gain, d_y.shape[-1]
    slopes = (np.eye(width) - 1 / width - n[..., :, None] * n[..., None, :] / width) / s[..., None]
    d_x = np.einsum("...i,...ij->...j", d_n, slopes)
    return NormGradients(d_x, NormParams(rows(d_y * n).sum(0), rows(d_y).sum(0)))


def table_backward(d_x, tokens, count):
    d = np.zeros((count, d_x.shape[-1]))
    for token, row in zip(tokens.ravel(), rows(d_x)):
        d[token] += row
    return d
""",
        "einsum": """
def cross_entropy_backward(d_loss, saved):
    p = np.exp(saved.log_p)
    s = saved.label_smoothing
    p = p - (1 - s) * np.eye(p.shape[-1])[saved.targets] - s / p.shape[-1]
    return LossGradients(d_loss * p * saved.share[..., None])


def think_backward(d_y, kept):
    p = kept.params
    d_h = np.where(kept.inside > 0, np.einsum("bnw,fw->bnf", d_y, p["w2"]), 0)
    d = {"w1": np.einsum("bnw,bnf->wf", kept.n, d_h), "b1": d_h.sum((0, 1))}
    d["w2"], d["b2"] = np.einsum("bnf,bnw->fw", kept.inside, d_y), d_y.sum((0, 1))
    return d_y + layer_norm_backward(np.einsum("bnf,wf->bnw", d_h, p["w1"]), kept.norm)[0], d
""",
    },
}
