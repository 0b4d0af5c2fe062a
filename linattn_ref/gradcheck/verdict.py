"""Could the comparison have failed? A gradient is right only where a wrong one would have been found.

See "What can be told" in `gradcheck`.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from linattn_ref.gradcheck.inputs import rms
from linattn_ref.gradcheck.pair import EPS, MARGIN, Pair
from linattn_ref.gradcheck.report import Entry

__all__ = ["judge", "negligible", "settled"]

RESOLUTION = 0.004  # of the largest gradient of the same input: an error of one percent in it is found
NEGLIGIBLE = 1e-8  # of the largest gradient of all inputs, each times the size of its input, or of what moves if less
CONSTANT = 1e3  # times an input that moves nothing: outputs that never move are taken for constants up to that size


def settled(entries: list[Entry]) -> list[bool]:
    """Whether the two values of each entry agree, and had to."""
    sizes = _sizes(entries)
    return [entry.excess <= 1 and (sizes[entry.name] == 0 or _resolved(entry, sizes)) for entry in entries]


def negligible(pair: Pair, entries: list[Entry]) -> dict[str, float]:
    """For each input, what its gradient may be off by because of the others': they are rounded too, in ``backward``."""
    sizes, lengths = _sizes(entries), _lengths(pair)
    largest = min(pair.magnitude, max((size * lengths[name] for name, size in sizes.items()), default=0.0))
    return {name: NEGLIGIBLE * largest / lengths[name] for name in sizes}


def judge(pair: Pair, entries: list[Entry], *, exact: bool = False) -> list[Entry]:
    """The entries, with the reason where nothing can be said of one; ``exact`` where no change can be rounded away."""
    sizes, lengths, floor = _sizes(entries), _lengths(pair), negligible(pair, entries)
    still = {entry.name for entry in entries} - {entry.name for entry in entries if entry.numeric}
    fixed = pair.largest_that_is_fixed

    def reason(entry: Entry) -> str:
        if math.isnan(entry.numeric):
            return entry.undecided
        hidden = 0.0 if exact else EPS * pair.hidden / entry.step
        if entry.name in still and fixed > CONSTANT * lengths[entry.name] and entry.absolute <= hidden:
            return f"{entry.name} moves nothing, but in values of {fixed:.2g} its changes may be lost"
        if entry.excess > 1 and exact:
            return ""
        if entry.excess > 1:
            capped = MARGIN * EPS * pair.hidden_of_size(lengths[entry.name]) / entry.step
            return "what out rounds away is as large" if entry.absolute <= entry.tolerance + capped else ""
        if sizes[entry.name] == 0 or _resolved(entry, sizes) or entry.noise <= floor[entry.name]:
            return ""
        return (
            f"rounding may be as large as {entry.noise:.2g} and the gradient of {entry.name} is {sizes[entry.name]:.2g}"
        )

    return [replace(entry, undecided=reason(entry)) for entry in entries]


def _lengths(pair: Pair) -> dict[str, float]:
    return {name: max(1.0, rms(x)) for name, x, _ in pair.matched if x.size}


def _sizes(entries: Iterable[Entry]) -> dict[str, float]:
    """The largest derivative of each input, as either side has it."""
    sizes: dict[str, float] = {}
    for entry in entries:
        sizes[entry.name] = max(sizes.get(entry.name, 0.0), abs(entry.analytic), abs(entry.numeric))
    return sizes


def _resolved(entry: Entry, sizes: dict[str, float]) -> bool:
    return entry.noise <= RESOLUTION * sizes[entry.name]
