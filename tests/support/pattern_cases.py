"""The lines of ``cases.py`` for mechanisms with a sparse pattern."""

from functools import partial

import numpy as np
import plain_loops
from case import Bad, Case

from linattn_ref.attention import bigbird, longformer, patterns, sparse_transformer

BLOCK, STRIDE, SUMMARY = 3, 5, 2
BACKENDS = ("reference", "jit")


# --- What they are called with --------------------------------------------------------------------------------------


def qkv(rng, s, dtype):
    """Queries, keys and values."""
    shapes = {"q": (s.n, s.d), "k": (s.n_keys, s.d), "v": (s.n_keys, s.m)}
    return {name: rng.standard_normal((*s.leading, *shape)).astype(dtype) for name, shape in shapes.items()}


def qkv_and_global(rng, s, dtype):
    """And the three global projections."""
    return {**qkv(rng, s, dtype), **{f"{name}_global": x for name, x in qkv(rng, s, dtype).items()}}


def two_tokens(rng, s, dtype):
    """Global tokens, one of them given twice; fewer in a shorter sequence."""
    return {"global_tokens": [token for token in (0, 2, 2) if token < s.n]}


def some_blocks(rng, s, dtype):
    """Short ones, unless there are very many."""
    return {"block": BLOCK if s.n < 300 else 16 * BLOCK}


def random_blocks(rng, s, dtype):
    """And any two for each block: some are drawn twice, or in the window, or global."""
    options = some_blocks(rng, s, dtype)
    blocks = -(-s.n // options["block"])
    return {**options, "random_blocks": rng.integers(0, blocks, (blocks, 2))}


# --- The cases ------------------------------------------------------------------------------------------------------


def row_and_sum(s):
    """The output and the denominator."""
    return s.n * (s.m + 1)


def row_and_two(s):
    """The output, and of its row the largest score and the sum."""
    return s.n * (s.m + 2)


def parts_bytes(count):
    """Of a pattern: the order of queries and keys in each part, what each query sees, and the tiles."""
    return lambda s: count * 8 * (3 * s.n + s.n_keys + s.n // 2)


def refuses(what, error, match, **options):
    return Bad(what, lambda call: call.change(**options), error, match)


LONGFORMER = partial(
    Case,
    module=longformer,
    draw=qkv_and_global,
    draw_options=two_tokens,
    rooms=BACKENDS,
    oracle=plain_loops.longformer,
    square=True,
    query_axes={"q": -2, "q_global": -2},
    key_axes={"k": -2, "v": -2, "k_global": -2, "v_global": -2},
    shared_bytes=parts_bytes(2),
    # And the same of two global rows, and their queries; in the reference the query and the weights.
    saved=lambda s: row_and_two(s) + 2 * (s.d + s.m + 2),
    saved_in={"reference": lambda s: row_and_two(s) + 2 * (s.d + s.n_keys)},
    bad=(
        refuses("no window", ValueError, r"^window: expected an integer of at least 1, got 0", window=0),
        refuses("no step", ValueError, r"^dilation: expected an integer of at least 1, got 0", dilation=0),
        refuses("a token too far", ValueError, r"^global_tokens: .* from -7 to 6, got 7", global_tokens=[0, 7]),
        refuses("half a token", TypeError, r"^global_tokens: expected integers, got float64", global_tokens=[0.5]),
        refuses("a mask", TypeError, r"^global_tokens: expected integers, got bool", global_tokens=np.ones(7, bool)),
    ),
)
BIGBIRD = partial(
    Case,
    module=bigbird,
    draw=qkv,
    rooms=BACKENDS,
    oracle=plain_loops.bigbird,
    square=True,
    saved=row_and_two,
    shared_bytes=parts_bytes(2),
    bad=(
        refuses("no block", ValueError, r"^block: expected an integer of at least 1, got 0", block=0),
        refuses("an even window", ValueError, r"^window_blocks: expected an odd number", window_blocks=2),
        refuses("a block too far", ValueError, r"^global_blocks: .* from -3 to 2, got 3", global_blocks=(3,)),
        refuses("too few rows", ValueError, r"^random_blocks: .*blocks = 3, got \(2, 1\)", random_blocks=[[0]] * 2),
        refuses("drawn too far", ValueError, r"^random_blocks: .* got -4", random_blocks=[[0], [-4], [0]]),
    ),
)
SPARSE_TRANSFORMER = partial(
    Case,
    module=sparse_transformer,
    draw=qkv,
    rooms=BACKENDS,
    oracle=plain_loops.sparse_transformer,
    causal=True,
    saved=row_and_two,
    shared_bytes=parts_bytes(2),
    bad=(
        refuses("unknown kind", ValueError, r"^kind: expected one of strided, fixed", kind="dense"),
        refuses("no stride", ValueError, r"^stride: expected an integer of at least 1, got 0", stride=0),
        refuses("wide summary", ValueError, r"^summary: expected at most stride = 5, got 6", summary=6),
    ),
)

PATTERN_CASES = (
    LONGFORMER("longformer", options={"window": 2}),
    LONGFORMER("longformer dilated", options={"window": 1, "dilation": 3}),
    # A global block is seen by earlier ones, and there are fewer blocks to draw from where there are fewer keys.
    BIGBIRD(
        "bigbird",
        options={"window_blocks": 1},
        draw_options=random_blocks,
        padding_is_truncation=False,
    ),
    BIGBIRD("bigbird no random", options={"global_blocks": (0,)}, draw_options=some_blocks),
    *(
        SPARSE_TRANSFORMER(f"sparse transformer {kind}", options={"kind": kind, "stride": STRIDE, "summary": SUMMARY})
        for kind in patterns.KINDS
        if kind != "local_only"  # a causal window: see test_sparse_transformer.py
    ),
)
