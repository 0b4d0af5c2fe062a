"""The lines of ``cases.py`` for the Long-Short Transformer."""

from functools import partial

import numpy as np
import plain_loops
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


def mixtures_and_segments(s, window=4, causal=False, page=True):
    """``P`` and the mixtures; what norms make of these and of keys and values; of each segment its keys, and weights.

    A backend keeps the output and two numbers per row in place of the weights.
    """
    width, segments = s.d + s.m, -(-s.n_keys // window)
    mixed = (s.n_keys - 1) // window * REDUCED if causal else REDUCED
    near, far = 2 * window, mixed // 2 if causal else REDUCED  # on average
    mixing = mixed * (1 if causal else 0) * window + REDUCED * s.n_keys + mixed * width
    norms = (mixed + s.n_keys) * (width + 2) + 4 * width
    in_segments = segments * (near + far) * width + (s.n * (near + far) if page else s.n * (s.m + 2))
    return mixing + norms + in_segments + segments * (near + far) // 4  # a mask, of bytes


LONG_SHORT = partial(
    Case,
    module=long_short,
    rooms=("reference", "jit"),
    draw=qkv_norms,
    oracle=plain_loops.long_short,
    options={"window": 4},
    square=True,
    shared=("w_p", "norm_local", "norm_global"),
    optional=("norm_local", "norm_global"),
    widths=(4, 8, 12),
    saved=mixtures_and_segments,
    saved_in={"jit": partial(mixtures_and_segments, page=False)},
    bad=(
        *(
            Bad(f"a window of {w}", lambda call, w=w: call.change(window=w), ValueError, r"^window: .*at least 1, got")
            for w in (0, -1, 2.0, True)
        ),
        Bad(
            "other rows of w_p",
            lambda call: call.change(arrays={"w_p": np.repeat(call.arrays["w_p"], 2, axis=-2)}),
            ValueError,
            r"^w_p: expected shape \(\.\.\., D, R\) = \(4, 3\), got \(8, 3\)",
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
            r"^norm_global, keys: gain: expected shape \(W,\) = \(4,\), got \(3,\)",
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
        saved=partial(mixtures_and_segments, causal=True),
        saved_in={"jit": partial(mixtures_and_segments, causal=True, page=False)},
    ),
    LONG_SHORT(
        "long short per head without norms",
        draw=qkv_no_norms,
        options={"window": 5},
        shared=("norm_local", "norm_global"),
        bad=(),
    ),
)
