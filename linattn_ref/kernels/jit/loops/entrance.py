"""What a compiled kernel may be given: said once for each array, and looked at where Python calls it.

    @kernel(table=("heads N C", "heads N M"), x="rows W", bias="W")

A word is the length of an axis, the same wherever it stands; a number is itself, ``T+1`` one more than ``T``, ``*``
anything, and ``...`` in front any axes. A table of heads (`heads.table_of`) has a tuple, with a text for each of its
arrays: the product of the leading axes, rows, width. An argument that is None is passed over, and of a tuple each array
is looked at.

Compiled code trusts its caller. With an axis more than it counts on, or a gap, it would go on behind an array. So a
kernel is compiled for these axes and arrays without gaps alone; Numba asks whenever it sees new types, and the calls
after that pay nothing. Lengths are looked at in every call of a kernel with threads, unless they were seen before, and
in a step of decoding, which that would make half as long again, by the compiled code itself. Values, such as targets
or the order of tokens, are not looked at.
"""

import inspect
import math

import numpy as np

__all__ = ["Entrance"]

REMEMBERED = 4096  # calls


class Entrance:
    """The door of one kernel; with the names of what is ``written``, arrays of any layout are taken, by copies."""

    def __init__(self, function, said, written=None):
        places = list(inspect.signature(function).parameters)
        self.name, self.seen = f"{function.__module__.rpartition('.')[2]}.{function.__name__}", set()
        self.written = None if written is None else [places.index(name) for name in written.split()]
        self.said = [(places.index(name), name, said[name]) for name in said]

    def check_types(self, arguments):
        """Numbers of axes, and gaps."""
        for name, said, x in self._arrays(arguments):
            self._check_axes(name, said, x)
            if self.written is None and not x.flags.c_contiguous:
                raise ValueError(f"{self.name}: {name}: expected an array without gaps, got strides {x.strides}")

    def wants_copies(self, arguments):
        """Machine code for each layout, and for what is not to be written to, would take seconds."""
        return self.written is not None and any(x is not y for x, y in zip(arguments, _whole(arguments), strict=True))

    def call_with_copies(self, function, arguments):
        """The same with arrays that have no gaps and may be written to."""
        copies = _whole(arguments)
        function(*copies)
        for place in self.written:
            if copies[place] is not arguments[place]:
                arguments[place][...] = copies[place]

    def check_lengths(self, arguments):
        """Axes and their lengths."""
        key = tuple([_key(arguments[place], said) for place, _, said in self.said])
        if key in self.seen:
            return
        known = {}
        for name, said, x in self._arrays(arguments):
            self._check_axes(name, said, x)
            shapes = [(said, x.shape)] if isinstance(said, str) else zip(said, _shapes_in(x), strict=True)
            for axes, shape in shapes:
                self._check_shape(name, axes, shape, known)
        if len(self.seen) == REMEMBERED:
            self.seen.clear()
        self.seen.add(key)

    def _arrays(self, arguments):
        for place, name, said in self.said:
            x = arguments[place]
            for one in x if isinstance(x, tuple) else (x,):
                if one is not None:
                    yield name, said, one

    def _check_axes(self, name, said, x):
        axes = said.split() if isinstance(said, str) else ["tables", "entries"]
        if x.ndim < len(axes) - 1 if axes[0] == "..." else x.ndim != len(axes):
            raise ValueError(f"{self.name}: {name}: expected the axes ({', '.join(axes)}), got shape {x.shape}")

    def _check_shape(self, name, axes, shape, known):
        for axis, length in zip(reversed(axes.split()), reversed(shape), strict=False):
            if axis in ("*", "..."):
                continue
            word, _, more = axis.partition("+")
            length -= int(more or 0)
            expected = int(word) if word.isdigit() else known.setdefault(word, length)
            if length != expected:
                raise ValueError(f"{self.name}: {name}: expected {word} = {expected} in ({axes}), got shape {shape}")


def _whole(arguments):
    return [np.require(x, requirements="CWA") if isinstance(x, np.ndarray) else x for x in arguments]


def _key(x, said):
    """What is looked at of an argument."""
    if x is None:
        return None
    if isinstance(x, tuple):
        return tuple([one.shape for one in x])
    return x.shape if isinstance(said, str) else (x.shape, x[:, 1:3].tobytes(), x[0, 4:].tobytes())


def _shapes_in(table):
    """Of the arrays in a table: heads, rows, width."""
    heads = math.prod(table[0, 4:].tolist())
    return [(heads, *entry) for entry in table[1:, 1:3].tolist()]
