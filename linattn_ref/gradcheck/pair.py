"""A ``forward``/``backward`` pair as the checks of `gradcheck` take it: run once, with what ``backward`` says of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.gradcheck.inputs import Array, argument_names, check_output, check_some_floats, generator, match
from linattn_ref.nested import leaves, map_arrays

__all__ = ["EPS", "MARGIN", "Backward", "Forward", "Pair"]

EPS = float(np.finfo(np.float64).eps)
MARGIN = 64  # units of error allowed: constants of order one that are left out, and the rounding inside a forward pass

Forward = Callable[..., tuple[Any, Any]]
Backward = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Pair:
    """A pair run once: which arrays to move, and what ``backward`` says of them."""

    forward: Forward
    inputs: tuple[Any, ...]  # copies
    matched: list[tuple[str, Array, Array]]  # name, array, gradient; the arrays are parts of inputs, moved in place
    constants: tuple[str, ...]
    u: Array  # in place of d_out, the shape of out
    size: Array  # |u| |out|
    moving: NDArray[np.bool_]  # where out has changed so far

    @classmethod
    def run(
        cls, forward: Forward, backward: Backward, inputs: tuple[Any, ...], rng: np.random.Generator | int
    ) -> "Pair":
        """Both passes.

        Raises
        ------
        ValueError
            One of them alters what it was called with, or ``forward`` gives another output when it is called again.
        """
        names = argument_names(forward, len(inputs))
        check_some_floats(names, inputs)
        copies = map_arrays(np.copy, inputs)
        named = (pair for name, x in zip(names, copies, strict=True) for pair in leaves(x, name, strict=False))
        kept = [(name, x, x.copy()) for name, x in named]

        def check_unaltered(who: str) -> None:
            for name, x, before in kept:
                if not same(x, before):
                    raise ValueError(f"{who}: expected {name} to be left as it was, but it was written to")

        out, saved = check_output(forward(*copies))
        check_unaltered("forward")
        before = np.array(out)
        u = np.asarray(generator(rng).standard_normal(np.shape(out)))
        d_out = u.copy()
        kept += [("d_out", d_out, u), ("out", np.asarray(out), before)]
        gradients = backward(d_out if u.ndim else float(u), saved)
        check_unaltered("backward")
        matched, constants = match(names, copies, gradients)
        if not same(np.asarray(forward(*copies)[0]), before):
            raise ValueError("forward: expected the same out for the same inputs, got another in a second call")
        with np.errstate(invalid="ignore"):  # 0 times infinity, of masked scores
            size = np.asarray(abs(u) * abs(before))
        return cls(forward, copies, matched, constants, u, size, np.zeros(u.shape, bool))

    def out(self) -> Array:
        return np.array(self.forward(*self.inputs)[0])  # a copy: out may be a view of an input that moves on

    def along(self, high: Array, low: Array) -> float:
        """``<u, high - low>``; an infinity that stays is no change."""
        change = np.zeros(self.u.shape)
        moved = np.asarray(high != low)
        np.subtract(high, low, out=change, where=moved)
        self.moving[...] |= moved
        return float((self.u * change).sum())

    @property
    def magnitude(self) -> float:
        """``<|u|, |out|>`` of all that has moved: what never does has no rounding that a difference sees."""
        return float(self.size[self.moving].sum())

    @property
    def hidden(self) -> float:
        """``<|u|, |out|>`` of all that has not moved."""
        return float(self.size[~self.moving].sum())

    def hidden_of_size(self, largest: float) -> float:
        """The same, no value counted as larger than this or than all that have moved: a mask's -1e9 hides nothing."""
        largest = max([largest, *(self.size / abs(self.u))[self.moving]])
        return float(np.minimum(self.size, largest * abs(self.u))[~self.moving].sum())

    @property
    def largest_that_is_fixed(self) -> float:
        """Of all values that have not moved."""
        return float((self.size / abs(self.u))[~self.moving].max(initial=0.0))


def same(x: Any, y: Any) -> bool:
    """Bit for bit, but for the sign of zeros and the kind of NaN."""
    return x.shape == y.shape and np.array_equal(x, y, equal_nan=x.dtype.kind in "fc")
