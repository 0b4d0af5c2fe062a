"""Give a trained encoder another mechanism, and that mechanism the trained projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from linattn_ref.nn import affine
from linattn_ref.op import op

__all__ = ["refit"]

Network = TypeVar("Network")  # `encoder.Params`, which is not imported here, because `encoder` imports this
# Of a mechanism that reads so many arrays: which of queries, keys and values (0, 1, 2) it is given for each.
PROJECTIONS = {
    2: (0, 2),  # Reformer: queries are keys too
    3: (0, 1, 2),
    6: (0, 1, 2, 0, 1, 2),  # Longformer: tokens that see all begin as the others
}


def own_of_each(own: Sequence[tuple[Any, ...]] | None, layers: int) -> Sequence[tuple[Any, ...]]:
    """The mechanism's own parameters for each block: none unless given."""
    own = ((),) * layers if own is None else own
    if len(own) != layers:
        raise ValueError(f"own: expected parameters for each of {layers} blocks, got {len(own)}")
    return own


@op
def refit(params: Network, reads: int, own: Sequence[tuple[Any, ...]] | None = None) -> Network:
    """The same network for another mechanism, which is given the projections that queries, keys and values had.

    Parameters
    ----------
    params : `encoder.Params`
        Of a network whose mechanism reads queries, keys and values.
    reads : int
        Of the new mechanism: `mechanism.Mechanism.reads`.
    own : sequence of tuples, optional
        The new mechanism's own parameters, for each block.
    """
    if reads not in PROJECTIONS:
        raise ValueError(f"reads: expected one of {', '.join(map(str, PROJECTIONS))}, got {reads!r}")
    network: Any = params
    for one in network.blocks:
        inner, outer = one.attention.inner.w.shape[1], one.attention.outer.w.shape[0]
        if inner != 3 * outer:
            raise ValueError(f"params: expected queries, keys and values of {outer} columns, got {inner}")
    blocks = []
    for one, its in zip(network.blocks, own_of_each(own, len(network.blocks)), strict=True):
        inner = affine.Params(
            *(
                np.concatenate([np.split(x, 3, axis=-1)[part] for part in PROJECTIONS[reads]], axis=-1)
                for x in one.attention.inner
            )
        )
        blocks.append(one._replace(attention=one.attention._replace(inner=inner, own=its)))
    return network._replace(blocks=tuple(blocks))
