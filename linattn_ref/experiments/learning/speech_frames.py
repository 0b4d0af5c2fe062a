"""What networks hear of an utterance, and in which order utterances come: see `speech`.

Of frames of ten milliseconds, seven side by side are one that a network is given, every 30 ms: speech has some 15
phonemes per second, and a third of the frames is a third of the work. Not stacked, as in the paper, each comes alone.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.data.speech import Corpus, Utterances
from linattn_ref.data.splits import Part
from linattn_ref.op import Array

__all__ = ["Sorted", "fitting", "in_order", "left_out", "needed", "stack", "steps_per_epoch"]

SIDE, EVERY = 7, 3  # frames that are one, and from one such to the next


def stack(features: Array) -> Array:
    """Seven frames around every third: ``(T, 40)`` to ``(T / 3, 280)``, rounded up; beyond the ends 0, the mean."""
    around = SIDE // 2
    padded = np.pad(features, ((around, around + EVERY), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, SIDE, axis=0)[: len(features) : EVERY]  # (T/3, 40, 7)
    return windows.swapaxes(1, 2).reshape(len(windows), -1)


class Sorted(NamedTuple):
    """Utterances in the order of their lengths."""

    stacked: list[Array]
    labels: list[NDArray[np.int64]]
    ends: NDArray[np.int64]  # (utterances,), frames up to the end of each
    order: list[int]  # which utterance of the part each is

    def rows(self, first: int, frames: int) -> slice:
        """From the ``first`` on, as many as make so many frames, padded; at least one."""
        last = first + 1
        while last < len(self.stacked) and len(self.stacked[last]) * (last + 1 - first) <= frames:
            last += 1
        return slice(first, last)


def in_order(found: Utterances, stacking: bool = True) -> Sorted:
    """Stacked and sorted; of those with more labels than frames, nothing could be learned."""
    stacked = [stack(each) for each in found.features] if stacking else found.features
    order = sorted(fitting(found, stacking), key=lambda i: len(stacked[i]))
    ends = np.cumsum([len(stacked[i]) for i in order])
    return Sorted([stacked[i] for i in order], [found.labels[i] for i in order], ends, order)


def fitting(found: Utterances, stacking: bool = True) -> list[int]:
    """Which utterances have as many frames as their labels need."""
    every = EVERY if stacking else 1
    pairs = enumerate(zip(found.labels, found.features, strict=True))
    return [i for i, (labels, features) in pairs if needed(labels) <= -(-len(features) // every)]


def left_out(corpus: Corpus, stacking: bool = True) -> dict[Part, int]:
    """How many utterances of each part do not fit; if it is all of them, an error."""
    counts: dict[Part, int] = {}
    for part, found in corpus.parts.items():
        counts[part] = len(found.labels) - len(fitting(found, stacking))
        if counts[part] == len(found.labels):
            ms = 10 * EVERY if stacking else 10
            raise ValueError(f"corpus: each utterance for {part} has more labels than frames, of which one is {ms} ms")
    return counts


def needed(labels: NDArray[np.int64]) -> int:
    """Frames that the labels need: one each, and a blank between two that are the same."""
    return len(labels) + int((np.diff(labels) == 0).sum())


def steps_per_epoch(found: Sorted, frames: int) -> int:
    """Steps that hear about as much as there is."""
    return max(1, round(int(found.ends[-1]) / frames))
