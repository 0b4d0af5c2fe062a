"""Who owns a state: the rule for all recurrent forms, so that no state can be read after it was written over.

What a recurrent form carries from token to token stands in buffers that are large, or are used so often that a copy of
them would cost more than the step. So a step works in them, and:

``forward(..., state=s)``
    leaves ``s`` alone. Any number of passes may continue from it, and from each of them its backward pass.
``step(..., s)``
    *spends* ``s``. The buffers belong to the state that it returns. What becomes of ``s`` depends on what is in them:

    sums (linear, performer, rfa)
        The sums before the step are gone. To use ``s`` again is an error that says so, never a wrong number. Who
        wants to branch steps from a copy: ``copy.deepcopy(s)``.
    rows (the key/value cache of softmax)
        A row never changes once it is written, and ``s`` knows how many of them are its own. To use it again, for a
        second continuation, copies these rows.

Each set of buffers has one count that all states in it share. For sums it is the number of steps taken in them, and a
state knows what that was when it was made. For rows it is the number of rows that are written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Count", "check_unspent", "is_count", "is_unspent", "new_count"]

Count = NDArray[np.int64]  # (1,)


def new_count(start: int = 0) -> Count:
    """The count of a new set of buffers."""
    return np.array([start])


def is_count(x: NDArray[Any]) -> bool:
    """Whether an array that a state holds is its count, no number of the network's."""
    return x.dtype == np.int64 and x.shape == (1,)


def is_unspent(count: Count | None, own: int) -> bool:
    """Whether no step has gone on from a state of sums. One without a count was put together by hand: nobody's yet."""
    return count is None or count[0] == own


def check_unspent(name: str, state: Any) -> None:
    """``state`` has fields ``steps``, the count, and ``taken``, what that was; nobody has gone on from it."""
    if not is_unspent(state.steps, state.taken):
        raise ValueError(
            f"{name}: expected a state that no step has continued from, for a step works in its state's arrays; this"
            f" one was made after {state.taken} steps, and {int(state.steps[0])} were taken in them."
            " Go on from the state that the last step returned, or step from a copy, copy.deepcopy(state)"
        )
