"""Why a sparse pattern has a pair of query and key, and in which colour that is drawn, in every figure."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from linattn_ref.experiments.publishing import style
from linattn_ref.op import Mask

__all__ = ["PAIRS", "paint"]

# A reason's number is its place.
PAIRS = {
    "no pair": "#FFFFFF",
    "a pair": style.GREY,
    "global": style.BROWN,
    "random": style.SKY,
    "second head": style.PURPLE,
    "window or block": style.ORANGE,
    "the query itself": style.BLACK,
}


def paint(layers: Sequence[tuple[str, Mask]]) -> NDArray[np.int8]:
    """Reasons, one over the other: each the number of a name in `PAIRS`; where there are two, the later is painted."""
    painted = np.zeros(layers[0][1].shape, np.int8)
    for reason, where in layers:
        painted[where] = list(PAIRS).index(reason)
    return painted
