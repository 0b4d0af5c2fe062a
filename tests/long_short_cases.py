"""The lines of ``cases.py`` for the Long-Short Transformer."""

from functools import partial

import numpy as np
from case import Bad, Case
from pattern_cases import qkv

from linattn_ref.attention import long_short

REDUCED = 3  # R


def qkv_norms(rng, s, dtype):
    """And a projection by content and both norms, for all heads; gains of either sign, far from 1.

    One entry of each row is well above the others: where all are within sqrt(1e-5), a norm is too steep to difference.
    """
    norms = {
        name: tuple(tuple(rng.standard_normal(width).astype(dtype) for _ in range(2)) for width in (s.d, s.m))
        for name in ("norm_local", "norm_global")
    }
    arrays = qkv(rng, s, dtype)
    arrays["k"][..., -1] += 5
    arrays["v"][..., -1] += 5
    return {**arrays, "w_p": rng.standard_normal((s.d, REDUCED)).astype(dtype), **norms}


def qkv_no_norms(rng, s, dtype):
    """And a projection for each head."""
    w_p = rng.standard_normal((*s.leading, s.d, REDUCED)).astype(dtype)
    return {**qkv(rng, s, dtype), "w_p": w_p, "norm_local": None, "norm_global": None}


def near_and_far(call):
    """Long-short attention, one head and one query at a time: the keys it sees in a list, then softmax."""
    out = np.zeros((*call.sizes.leading, call.sizes.n, call.sizes.m))
    for head in np.ndindex(call.sizes.leading):
        q, k, v = (call.arrays[name][head] for name in "qkv")
        w_p = call.arrays["w_p"]
        w_p = w_p if w_p.ndim == 2 else w_p[head]
        mask = call.options.get("key_mask")
        mask = np.ones(len(k), bool) if mask is None else mask[head]
        for i in range(len(q)):
            keys, values = seen_by(i + (len(k) - len(q)) * call.case.causal, k, v, w_p, mask, call)
            if len(keys):
                weights = np.exp(call.options.get("scale", len(q[i]) ** -0.5) * (keys @ q[i]))
                out[head][i] = weights @ values / weights.sum()
    return out


def seen_by(place, k, v, w_p, mask, call):
    """The keys and values of that place's query: near ones, and mixtures of all, or of segments before its own."""
    w, causal = call.options["window"], call.case.causal
    start = place // w * w
    near = range(start - w, place + 1) if causal else range(start - w // 2, start + w + w // 2)
    near = [j for j in near if 0 <= j < len(k) and mask[j]]
    parts = [range(t, t + w) for t in range(0, start, w)] if causal else [range(len(k))]
    far_k, far_v = [], []
    for part in ([j for j in part if mask[j]] for part in parts):
        for r in range(w_p.shape[1] if part else 0):
            share = np.exp(k[part] @ w_p[:, r])
            far_k.append(share @ k[part] / share.sum())
            far_v.append(share @ v[part] / share.sum())

    def normed(rows, name, which):
        rows = np.array(rows).reshape(-1, (k, v)[which].shape[1])
        if call.arrays[name] is None:
            return rows
        gain, bias = call.arrays[name][which]
        return gain * (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5) + bias

    both = [(k[near], far_k), (v[near], far_v)]
    return [
        np.concatenate([normed(a, "norm_local", which), normed(b, "norm_global", which)])
        for which, (a, b) in enumerate(both)
    ]


def projection_and_mixtures(s):
    """``P`` and the mixtures of all keys."""
    return REDUCED * (s.n_keys + s.d + s.m)


def projection_and_mixtures_by_segment(s, window=4):
    """Of every segment of ``w`` keys but the last."""
    return (s.n_keys - 1) // window * REDUCED * (window + s.d + s.m)


LONG_SHORT = partial(
    Case,
    module=long_short,
    draw=qkv_norms,
    oracle=near_and_far,
    options={"window": 4},
    square=True,
    shared=("w_p", "norm_local", "norm_global"),
    optional=("norm_local", "norm_global"),
    widths=(4, 8, 12),
    saved=projection_and_mixtures,
    bad=(
        *(
            Bad(f"a window of {w}", lambda call, w=w: call.change(window=w), ValueError, r"^window: .*at least 1, got")
            for w in (0, -1, 2.0, True)
        ),
        Bad(
            "other rows of w_p",
            lambda call: call.change(arrays={"w_p": np.repeat(call.arrays["w_p"], 2, axis=-2)}),
            ValueError,
            r"^w_p: expected one row an entry of a key, \(D, R\) with D = 4, got \(8, 3\)",
        ),
        Bad(
            "a bare gain",
            lambda call: call.change(arrays={"norm_local": call.arrays["norm_local"][0]}),
            TypeError,
            r"^norm_local: expected None or \(\(gain, bias\) of keys, \(gain, bias\) of values\), got ",
        ),
        Bad(
            "norms of keys and values exchanged",
            lambda call: call.change(arrays={"norm_global": call.arrays["norm_global"][::-1]}),
            ValueError,
            r"^norm_global: expected shape \(D,\) = \(4,\), got \(3,\)",
        ),
    ),
)

LONG_SHORT_CASES = (
    LONG_SHORT("long short"),
    LONG_SHORT(
        "long short causal",
        options={"window": 4, "causal": True},
        causal=True,
        square=False,
        saved=projection_and_mixtures_by_segment,
    ),
    LONG_SHORT(
        "long short per head without norms",
        draw=qkv_no_norms,
        options={"window": 5},
        shared=("norm_local", "norm_global"),
        bad=(),
    ),
)
