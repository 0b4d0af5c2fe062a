"""Where a small network that is to say hidden tokens begins: its heads look at the tokens beside.

One that is drawn as usual says what the frequencies say, and it takes many updates until a head has come to look at
anything else. Here three things are otherwise.

*Two halves.* Half of the width is for places, the other half for tokens, as if they were concatenated; what the layers
add is for both. Queries and keys begin to read places alone.

*Heads.* Places begin as sinusoids. To go on by a place is to turn each pair of a sine and a cosine by its angle,

    P[i + 1] = P[i] T,    [sin, cos] <- [sin, cos] [[cos w, -sin w], [sin w, cos w]]     (1)

so keys projected by ``W_K = T^s W_Q`` are what queries would be, ``s`` places further on: the score of a query at ``i``
is largest where ``j + s = i``. Heads begin with ``s = 1, -1, 2, -2, ...``. Of the sinusoids only the faster quarter is
taken, or near places could not be told.

*Scores.* Those of all pieces begin nearly equal, by a small gain of the last norm. Scores of the size that tokens'
numbers have are wrong by several nats, and the fastest way to unlearn them is to say the same everywhere.
"""

import numpy as np

from linattn_ref.models.masked_tokens import Params
from linattn_ref.nn import embedding, positions
from linattn_ref.op import Array

__all__ = ["SPREAD", "begun", "turning"]

SPREAD = 0.5  # of tokens' and places' numbers
SHARPNESS = 2.0  # of queries, and of keys
GAIN = 0.1  # of what is compared with each piece


def begun(params: Params, heads: int, rng: np.random.Generator) -> Params:
    """The network with these three changes, partly in place; tokens are drawn anew, and the other weights stay."""
    below, (count, width) = params.encoder, params.encoder.embedding.table.shape
    dtype, places = below.embedding.table.dtype, len(below.positions.table)
    half = width // 4 * 2  # pairs of a sine and a cosine
    waves = positions.sinusoidal(max(places, 2), 4 * half)[:, :half]
    turn = turning(sine=waves[1, ::2], cosine=waves[1, 1::2])
    for one in below.blocks:
        inner = one.attention.inner.w  # (E, 3 E), of most mechanisms
        if inner.shape[1] != 3 * width:
            continue
        inner[half:, : 2 * width] = 0
        q, k, _ = np.split(inner[:half], 3, axis=1)  # (places' half, E)
        q *= SHARPNESS
        for head, (of_q, of_k) in enumerate(zip(np.split(q, heads, axis=1), np.split(k, heads, axis=1), strict=True)):
            further = np.linalg.matrix_power(turn, head // 2 + 1)
            of_k[...] = (further.T if head % 2 else further) @ of_q
    params.norm.gain[...] = GAIN
    table = np.zeros((places, width), dtype)
    table[:, :half] = 2**0.5 * SPREAD * waves[:places]
    drawn = embedding.draw(count, width, rng, scale=SPREAD, dtype=dtype)
    drawn.table[:, :half] = 0
    return params._replace(encoder=below._replace(embedding=drawn, positions=positions.Params(table)))


def turning(sine: Array, cosine: Array) -> Array:
    """Equation (1)'s ``T (C, C)``, ``C`` the width that places have; of the angles of one place ``(C / 2,)``."""
    even = np.arange(0, 2 * len(sine), 2)
    turn = np.zeros((2 * len(sine),) * 2)
    turn[even, even] = turn[even + 1, even + 1] = cosine  # (1)
    turn[even, even + 1], turn[even + 1, even] = -sine, sine
    return turn
