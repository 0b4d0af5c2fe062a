"""Turns: what keeps a step that is bound to its state's arrays from going on after somebody else has.

All that works in the same arrays shares one count of the steps taken in them, and each knows how many it has seen.
"""

__all__ = ["check_room", "take_turn"]

TAKEN_OVER = (
    "state: another step has continued from the state of this bound step, whose arrays it works in;"
    " bind a step to the state that it returned"
)
FULL = "state: no room for one more token, there are as many as its capacity"


def take_turn(steps, own):
    """One step more, both ``(1,)``; an error if somebody else took one in between."""
    if steps[0] != own[0]:
        raise ValueError(TAKEN_OVER)
    steps[0] += 1
    own[0] += 1


def check_room(own, capacity):
    """For who adds a row a turn: there is one more."""
    if own[0] >= capacity:
        raise ValueError(FULL)
