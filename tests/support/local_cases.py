"""The lines of ``cases.py`` for windows and blocks."""

from functools import partial

import plain_loops
from case import Bad, Case
from pattern_cases import parts_bytes, qkv, row_and_two

from linattn_ref.attention import block_local, local

BACKENDS = ("reference", "jit")


def refuses(what, match, **options):
    return Bad(what, lambda call: call.change(**options), ValueError, match)


LOCAL = partial(
    Case,
    module=local,
    oracle=plain_loops.local,
    draw=qkv,
    rooms=BACKENDS,
    saved=row_and_two,
    shared_bytes=parts_bytes(1),
    widths=(3, 32, 128),  # the window; tiles of queries or keys; what is streamed
    bad=(
        refuses("no window", r"^window: expected an integer of at least 1, got 0", window=0),
        refuses("half a window", r"^window: expected an integer of at least 1, got 2.5", window=2.5),
        refuses("no step", r"^dilation: expected an integer of at least 1, got 0", dilation=0),
    ),
)
BLOCK_LOCAL = partial(
    Case,
    module=block_local,
    draw=qkv,
    rooms=BACKENDS,
    oracle=plain_loops.block_local,
    saved=row_and_two,
    shared_bytes=parts_bytes(1),
    widths=(4, 32, 128),
    bad=(
        refuses("no block", r"^block: expected an integer of at least 1, got 0", block=0),
        refuses("half a block", r"^block: expected an integer of at least 1, got 2.5", block=2.5),
    ),
)

LOCAL_CASES = (
    LOCAL("local", options={"window": 3}),
    LOCAL("local dilated causal", options={"window": 2, "dilation": 3, "causal": True}, causal=True),
    BLOCK_LOCAL("block local", options={"block": 4}),
    BLOCK_LOCAL("block local causal", options={"block": 4, "causal": True}, causal=True),
)
