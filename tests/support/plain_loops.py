"""Every mechanism once more, in plain loops from its formula: what the contract tests hold outputs against.

Nothing of the package is imported here: its patterns, features, hashes, landmarks and default scale are written down
again, so that a mistake in one of them cannot be on both sides of a comparison. A function takes the arrays of one
head, ``(N, D)``, ``(L, D)``, ``(L, M)``, and what else its formula has, under the names of ``forward``; it goes through
the queries one by one, and asks for each which keys it may see. It is slow, so give it little.
"""

from functools import cache
from math import exp, sqrt

import numpy as np

# --- One query ------------------------------------------------------------------------------------------------------


def attend(q, k, v, sees=lambda i, j: np.full(len(j), True), key_mask=None, scale=None):
    """Softmax attention of each query ``i`` to the keys that it sees, ``sees(i, j)`` for all ``j``: ``(N, M)``."""
    scale = 1 / sqrt(q.shape[1]) if scale is None else scale
    out, j = np.zeros((len(q), v.shape[1])), np.arange(len(k))
    for i in range(len(q)):
        seen = sees(i, j) if key_mask is None else sees(i, j) & key_mask
        out[i] = mean(scale * (k[seen] @ q[i]), v[seen])
    return out


def mean(exponents, rows):
    """``sum_j exp(a_j) x_j / sum_j exp(a_j)``, the largest ``a`` taken off all; 0 where there is no row."""
    if len(rows) == 0:
        return 0
    weights = np.exp(exponents - np.max(exponents))
    return weights @ rows / weights.sum()


def unmasked(x, key_mask):
    """``x`` with masked rows 0."""
    return x if key_mask is None else x * key_mask[:, None]


# --- Softmax attention over all keys, or over some ------------------------------------------------------------------


def softmax(q, k, v, *, causal=False, key_mask=None, scale=None):
    shift = len(k) - len(q)
    return attend(q, k, v, lambda i, j: (j <= i + shift) | (not causal), key_mask, scale)


def local(q, k, v, *, window, dilation=1, causal=False, key_mask=None, scale=None):
    shift = len(k) - len(q) if causal else 0

    def sees(i, j):
        away = i + shift - j
        return (abs(away) <= window * dilation) & (away % dilation == 0) & ((away >= 0) | (not causal))

    return attend(q, k, v, sees, key_mask, scale)


def block_local(q, k, v, *, block, causal=False, key_mask=None, scale=None):
    shift = len(k) - len(q) if causal else 0

    def sees(i, j):
        return ((i + shift) // block == j // block) & ((j <= i + shift) | (not causal))

    return attend(q, k, v, sees, key_mask, scale)


def longformer(q, k, v, q_global, k_global, v_global, *, window, global_tokens, dilation=1, key_mask=None, scale=None):
    chosen = [token % len(k) for token in global_tokens]

    def sees(i, j):
        return np.isin(j, chosen) | ((abs(i - j) <= window * dilation) & ((i - j) % dilation == 0))

    out = attend(q, k, v, sees, key_mask, scale)
    for i in chosen:
        out[i] = attend(q_global[i : i + 1], k_global, v_global, key_mask=key_mask, scale=scale)[0]
    return out


def bigbird(q, k, v, *, block, window_blocks=3, global_blocks=(0, -1), random_blocks=None, key_mask=None, scale=None):
    blocks = -(-len(k) // block)
    chosen = [number % blocks for number in global_blocks]

    def sees(i, j):
        own, other = i // block, j // block
        drawn = () if random_blocks is None else random_blocks[own] % blocks
        return (own in chosen) | np.isin(other, [*chosen, *drawn]) | (abs(own - other) <= window_blocks // 2)

    return attend(q, k, v, sees, key_mask, scale)


def sparse_transformer(q, k, v, *, kind, stride, summary=1, key_mask=None, scale=None):
    shift = len(k) - len(q)

    def sees(i, j):
        i = i + shift
        near, column = j > i - stride, (i - j) % stride == 0
        same, summarises = i // stride == j // stride, j % stride >= stride - summary
        allowed = {
            "strided": near | column,
            "local_only": near,
            "strided_only": column,
            "fixed": same | summarises,
            "fixed_summary": summarises,
        }
        return (j <= i) & allowed[kind]

    return attend(q, k, v, sees, key_mask, scale)


# --- Linear attention -----------------------------------------------------------------------------------------------
# A map gives a vector as (exponents, factors): feature c of x is factor_c exp(exponent_c).


def elu_plus_one(x):
    return np.zeros(len(x)), np.array([y + 1 if y > 0 else exp(y) for y in x])


def positive(x, omega):
    return omega @ x - x @ x / 2, np.ones(len(omega))


def hyperbolic(x, omega):
    return np.concatenate([omega @ x, -omega @ x]) - x @ x / 2, np.ones(2 * len(omega))


def trig(x, omega):
    return np.full(2 * len(omega), x @ x / 2), np.concatenate([np.sin(omega @ x), np.cos(omega @ x)])


def relu(x, omega):
    return np.zeros(len(omega)), np.maximum(omega @ x, 0) + 1e-3


def linear(q, k, v, *, phi=elu_plus_one, causal=False, key_mask=None, eps=1e-6):
    """``sum_j (phi(q_i) . phi(k_j)) v_j / (sum_j phi(q_i) . phi(k_j) + eps)``"""
    out, j, shift = np.zeros((len(q), v.shape[1])), np.arange(len(k)), len(k) - len(q)
    exponents_k, factors_k = map(np.array, zip(*map(phi, k), strict=True))
    for i in range(len(q)):
        seen = ((j <= i + shift) | (not causal)) & (True if key_mask is None else key_mask)
        if not seen.any():
            continue
        exponents, factors = phi(q[i])
        exponents = exponents + exponents_k[seen]
        e = np.exp(exponents - exponents.max())  # the largest cancels, where eps is 0
        similarities = (factors * factors_k[seen] * e).sum(axis=1)
        denominator = similarities.sum() + eps
        out[i] = similarities @ v[seen] / denominator if denominator else 0
    return out


def performer(q, k, v, omega, *, kind, causal=False, key_mask=None):
    maps = {"positive": positive, "hyperbolic": hyperbolic, "trig": trig, "relu": relu}
    width = q.shape[1] ** 0.25  # so that x . y is q . k / sqrt(D)
    phi = lambda x: maps[kind](x, omega)  # noqa: E731
    return linear(q / width, k / width, v, phi=phi, causal=causal, key_mask=key_mask, eps=0.0)


def rfa(q, k, v, omega, gate=None, *, kind="gaussian", causal=False, key_mask=None, eps=1e-6):
    def phi(x):
        """Of unit length; (sin, cos) or relu, over the root of their number."""
        y = omega @ (x / sqrt(x @ x)) if x.any() else np.zeros(len(omega))
        features = np.maximum(y, 0) if kind == "arccos" else np.concatenate([np.sin(y), np.cos(y)])
        return np.zeros(len(features)), features / sqrt(len(omega))

    if gate is None:
        return linear(q, k, v, phi=phi, causal=causal, key_mask=key_mask, eps=eps)
    width = len(phi(q[0])[1])
    out, s, z = np.zeros((len(q), v.shape[1])), np.zeros((width, v.shape[1])), np.zeros(width)
    for t in range(len(q)):
        if key_mask is None or key_mask[t]:
            new = phi(k[t])[1]
            s = gate[t] * s + (1 - gate[t]) * np.outer(new, v[t])
            z = gate[t] * z + (1 - gate[t]) * new
        numerator, denominator = phi(q[t])[1] @ s, phi(q[t])[1] @ z + eps
        out[t] = numerator / denominator if denominator else 0
    return out


def gated_linear(q, k, v, log_gate, *, key_mask=None, scale=None):
    return delta(q, k, v, None, log_gate, normalise=False, key_mask=key_mask, scale=scale)


def delta(q, k, v, beta, log_gate=None, *, normalise=True, key_mask=None, scale=None):
    """Token by token, the state corrected before it is read; added to where there is no ``beta``."""
    scale = 1 / sqrt(q.shape[1]) if scale is None else scale
    out, s = np.zeros((len(q), v.shape[1])), np.zeros((q.shape[1], v.shape[1]))
    for t in range(len(q)):
        if key_mask is None or key_mask[t]:
            if log_gate is not None:
                s = np.diag(np.broadcast_to(np.exp(log_gate[t]), q.shape[1])) @ s
            key = k[t] / sqrt(k[t] @ k[t] + 1e-6) if normalise else k[t]
            s = s + np.outer(key, v[t] if beta is None else beta[t] * (v[t] - s.T @ key))
        out[t] = scale * (s.T @ (q[t] / sqrt(q[t] @ q[t] + 1e-6) if normalise else q[t]))
    return out


def log_gate_gradient(d_out, q, k, v, beta, log_gate):
    """``rowsum(A~_i * S~_i)`` of `delta` or `gated_linear`, of one head, in long double, with every state kept.

    Without ``normalise``, with a scale of 1. Also the sum of the absolute values of its terms, an entry's own size.
    """
    d_out, q, k, v, log_gate = (x.astype(np.longdouble) for x in (d_out, q, k, v, log_gate))
    beta = np.zeros(len(q)) if beta is None else beta.astype(np.longdouble)
    e, value = (k, beta[:, None] * v) if beta.any() else (0 * k, v)
    e, gate = beta[:, None] * e, np.exp(log_gate.reshape(len(q), -1))[:, :, None]  # (N, C or 1, 1)
    s, states = np.zeros((q.shape[1], v.shape[1]), np.longdouble), []
    for i in range(len(q)):
        states.append(gate[i] * s)
        s = states[i] + np.outer(k[i], value[i] - states[i].T @ e[i])
    a, gradient, size = np.zeros_like(s), np.zeros_like(q), np.zeros_like(q)
    for i in reversed(range(len(q))):
        a = a + np.outer(q[i], d_out[i])
        a = a - np.outer(e[i], a.T @ k[i])
        gradient[i], size[i] = (a * states[i]).sum(axis=1), abs(a * states[i]).sum(axis=1)
        a = gate[i] * a
    return (gradient, size) if log_gate.ndim == 2 else (gradient.sum(axis=1), size.sum(axis=1))


# --- Fewer keys -----------------------------------------------------------------------------------------------------


def mixed(matrix, x):
    """Row ``r`` is ``sum_j matrix_rj x_j``."""
    return np.array([sum(row[j] * x[j] for j in range(len(x))) for row in matrix])


def linformer(q, k, v, e, f, *, key_mask=None, scale=None):
    return attend(q, mixed(e, unmasked(k, key_mask)), mixed(f, unmasked(v, key_mask)), scale=scale)


def linformer_linear(q, k, v, e, f, *, key_mask=None, eps=1e-6):
    phi_q, phi_k = (np.array([elu_plus_one(y)[1] for y in x]) for x in (q, k))
    phi_e, v_f = mixed(e, unmasked(phi_k, key_mask)), mixed(f, unmasked(v, key_mask))
    out = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        similarities = [phi_q[i] @ row for row in phi_e]
        out[i] = sum(s * row for s, row in zip(similarities, v_f, strict=True)) / (sum(similarities) + eps)
    return out


def nystromformer(
    q, k, v, conv=None, *, landmarks, pinv="iterative", iterations=6, key_mask=None, query_mask=None, scale=None
):
    kept, means_q, means_k = [True] * len(k) if key_mask is None else key_mask, [], []
    for own, others in zip(*(np.array_split(range(n), landmarks) for n in (len(q), len(k))), strict=True):
        own = [i for i in own if query_mask is None or query_mask[i]]
        others = [j for j in others if kept[j]]
        if own and others:  # a landmark without a query or a key is left out
            means_q.append(sum(q[i] for i in own) / len(own))
            means_k.append(sum(k[j] for j in others) / len(others))
    out = np.zeros((len(q), v.shape[1]))
    if means_k:
        means_q, means_k = np.array(means_q), np.array(means_k)
        a = attend(means_q, means_k, np.eye(len(means_k)), scale=scale)  # values of one 1 each: the weights themselves
        inverse = np.linalg.pinv(a) if pinv == "exact" else iterated_inverse(a, iterations)
        out += attend(q, means_k, inverse @ attend(means_q, k, v, key_mask=key_mask, scale=scale), scale=scale)
    for i in range(len(q)) if conv is not None else ():
        for t in range(len(conv)):
            j = i + t - len(conv) // 2
            if 0 <= j < len(v) and kept[j]:
                out[i] += conv[t] * v[j]
    return out


def iterated_inverse(a, iterations):
    eye, z = np.eye(len(a)), a.T / (abs(a).sum(axis=0).max() * abs(a).sum(axis=1).max())
    for _ in range(iterations):
        z = z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z))) / 4
    return z


def long_short(q, k, v, w_p, norm_local, norm_global, *, window, causal=False, key_mask=None, scale=None):
    """Near keys as they are, and mixtures of all keys, or causal of each segment before the query's own."""
    scale, out = 1 / sqrt(q.shape[1]) if scale is None else scale, np.zeros((len(q), v.shape[1]))
    kept = [j for j in range(len(k)) if key_mask is None or key_mask[j]]
    rows = [[normed(x[j], norm_local, which) for j in range(len(k))] for which, x in enumerate((k, v))]

    @cache
    def mixtures(segment):
        """Keys and values mixed of those of a segment."""
        part = [j for j in kept if j in segment]
        shares = [k[part] @ w_p[:, r] for r in range(w_p.shape[1] if part else 0)]
        return [[normed(mean(each, x[part]), norm_global, which) for each in shares] for which, x in enumerate((k, v))]

    for i in range(len(q)):
        place = i + (len(k) - len(q) if causal else 0)
        start = place // window * window  # of its segment
        near = range(start - window, place + 1) if causal else range(start - window // 2, start + window + window // 2)
        segments = [range(s, s + window) for s in range(0, start, window)] if causal else [range(len(k))]
        keys, values = ([x[j] for j in kept if j in near] for x in rows)
        for segment in segments:
            keys, values = (own + mixed for own, mixed in zip((keys, values), mixtures(segment), strict=True))
        out[i] = mean(scale * (np.array(keys) @ q[i]), np.array(values)) if keys else 0
    return out


def normed(x, norm, which):
    """Layer norm of a key (0) or a value (1)."""
    if norm is None:
        return x
    gain, bias = norm[which]
    return gain * (x - x.mean()) / sqrt(((x - x.mean()) ** 2).mean() + 1e-5) + bias


# --- Reformer -------------------------------------------------------------------------------------------------------


def reformer(qk, v, *, rotations, chunk, causal=False, key_mask=None, scale=None):
    """Softmax over all that a token meets in any round; itself only if it meets nobody. Masked tokens meet nobody."""
    n, scale = len(qk), 1 / sqrt(qk.shape[1]) if scale is None else scale
    kept = [i for i in range(n) if key_mask is None or key_mask[i]]
    met = {i: set() for i in kept}
    for rotation in rotations:
        x = qk @ rotation
        hashes = np.concatenate([x, -x], axis=1).argmax(axis=1)
        order = sorted(kept, key=lambda i: (hashes[i], i))
        for rank, i in enumerate(order):
            first = max(rank // chunk - 1, 0) * chunk
            met[i] |= {j for j in order[first : (rank // chunk + 1) * chunk] if j != i and not (causal and j > i)}
    out = np.zeros((n, v.shape[1]))
    for i in kept:
        keys = sorted(met[i]) or [i]
        scores = [scale * (qk[i] @ qk[j]) / (sqrt(qk[j] @ qk[j]) or 1) for j in keys]
        out[i] = mean(np.array(scores), v[keys])
    return out
