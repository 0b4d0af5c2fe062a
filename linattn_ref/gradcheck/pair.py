"""A ``forward``/``backward`` pair as the checks of `gradcheck` take it: run once, with what ``backward`` says of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.gradcheck.inputs import Array, check_output, check_some_floats, generator, match
from linattn_ref.nested import map_arrays

__all__ = ["MARGIN", "Backward", "Forward", "Pair"]

MARGIN = 64  # units of error allowed: the constants of order one left out above, and the rounding inside a forward pass

Forward = Callable[..., tuple[Any, Any]]
Backward = Callable[[Any, Any], Any]


class Pair(NamedTuple):
    """A pair run once: which arrays to move, and what ``backward`` says of them."""

    forward: Forward
    inputs: tuple[Any, ...]  # copies
    matched: list[tuple[str, Array, Array]]  # name, array, gradient; the arrays are parts of inputs, moved in place
    constants: tuple[str, ...]
    u: Array  # in place of d_out, the shape of out
    magnitude: float  # <|u|, |out|>

    @classmethod
    def run(
        cls, forward: Forward, backward: Backward, inputs: tuple[Any, ...], rng: np.random.Generator | int
    ) -> "Pair":
        check_some_floats(forward, inputs)
        copies = map_arrays(np.copy, inputs)
        out, saved = check_output(forward(*copies))
        u = np.asarray(generator(rng).standard_normal(np.shape(out)))
        magnitude = float((abs(u) * abs(out)).sum())
        matched, constants = match(forward, copies, backward(u.copy() if u.ndim else float(u), saved))
        return cls(forward, copies, matched, constants, u, magnitude)

    def out(self) -> Array:
        return np.array(self.forward(*self.inputs)[0])  # a copy: out may be a view of an input that moves on
