"""All benches, and how long each takes: the command line, the gallery and the tests read this list.

A line of it is ``benches/bench_<name>.py``, and its options are the arguments of ``compute`` there, as its docstring
describes them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["BENCHES", "Bench"]


class Bench(NamedTuple):
    """One comparison."""

    minutes: float  # that its command takes on one core
    in_gallery: bool = True  # its figure is committed, and drawn again where the other packages are
    is_drawn: bool = True
    defaults: Mapping[str, Any] = {}  # of its command, where they are not those of the figure

    def figure(self, name: str) -> str:
        """What its figure is called, and its module."""
        return name if name == "resources" else f"bench_{name}"


# In the gallery's order.
BENCHES = {
    "softmax": Bench(0.5, defaults={"lengths": (512, 1024, 2048)}),
    "linear": Bench(5),
    "performer": Bench(1),
    "patterns": Bench(3, defaults={"lengths": (1024, 4096)}),
    "reformer": Bench(1),
    "training": Bench(3),
    "delta": Bench(3),
    "generation": Bench(1),
    "drawing": Bench(7),
    "speech": Bench(1),
    "steps": Bench(0.5),
    "encoder": Bench(7),
    "cuda": Bench(3, in_gallery=False),
    "spectrum": Bench(10, in_gallery=False, is_drawn=False),
    "resources": Bench(10, in_gallery=False),  # as a bench; it is a figure
}
