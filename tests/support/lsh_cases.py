"""Reformer's LSH attention, for ``cases.py``."""

from functools import partial

import numpy as np
import plain_loops
from case import Bad, Case

from linattn_ref.attention import reformer

ROUNDS = 3  # with one round a mistake in counting pairs, or in the gradient of several rounds, could not show
BUCKETS = 6


def shared_qk(rng, s, dtype):
    """Queries and keys in one, and values."""
    shapes = {"qk": (s.n, s.d), "v": (s.n, s.m)}
    return {name: rng.standard_normal((*s.leading, *shape)).astype(dtype) for name, shape in shapes.items()}


def rotations(rng, s, dtype):
    return {"rotations": reformer.draw_rotations(ROUNDS, s.d, BUCKETS, rng, dtype)}


def held_hash(call):
    """The buckets as they are: the hash jumps, and neither a gradient nor causality is defined across a jump."""
    return {"buckets": reformer.buckets(call.arrays["qk"], call.options["rotations"])}


def kept(s):
    """The output, the length, the largest score and the sum of each row, and its place in each round."""
    return s.n * (s.m + 3 + ROUNDS)


def bad(what, error, match, **options):
    return Bad(what, lambda call: call.change(**options), error, match)


BAD_HASHES = (
    bad("no chunk", ValueError, r"^chunk: expected an integer of at least 1, got 0", chunk=0),
    bad("half a chunk", ValueError, r"^chunk: expected an integer of at least 1, got 2.5", chunk=2.5),
    bad("no hash", TypeError, r"^rotations: expected an array .*got None and no buckets", rotations=None),
    bad("one rotation", ValueError, r"^rotations: expected at least 3 axes", rotations=np.ones((4, 3))),
    bad("width", ValueError, r"^rotations: .*\(rounds, D, buckets/2\)", rotations=np.ones((2, 5, 3))),
    bad("rotations of NaN", ValueError, r"^rotations: expected finite numbers", rotations=np.full((2, 4, 3), np.nan)),
    bad("rotations of infinity", ValueError, r"^rotations: expected finite", rotations=np.full((2, 4, 3), np.inf)),
    bad("whole rotations", TypeError, r"^rotations: expected float", rotations=np.ones((2, 4, 3), int)),
    bad("real buckets", TypeError, r"^buckets: expected an array of integers, got float64", buckets=np.ones((2, 1, 7))),
    bad("buckets", ValueError, r"^buckets: .*\(\.\.\., rounds, N\)", buckets=np.ones((3, 1, 7), int)),
    bad("length", ValueError, r"^buckets: .*\(\.\.\., rounds, N\)", buckets=np.ones((2, 1, 6), int)),
)
REFORMER = partial(
    Case,
    module=reformer,
    rooms=("reference", "jit"),
    draw=shared_qk,
    draw_options=rotations,
    hold=held_hash,
    oracle=plain_loops.reformer,
    saved=kept,
    square=True,
    query_axes={},
    key_axes={"qk": -2, "v": -2},
)
LSH_CASES = (
    REFORMER("reformer", options={"chunk": 4}, widths=(4, 32), bad=BAD_HASHES),  # 32 lanes in float32
    REFORMER("reformer causal", options={"chunk": 40, "causal": True}, causal=True, widths=(40, 512)),  # 512 to a task
)
