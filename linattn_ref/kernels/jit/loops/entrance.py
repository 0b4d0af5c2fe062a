"""What a compiled kernel may be given: said once for each array, and looked at where Python calls it.

    @kernel(table=("heads N C", "heads N M"), x="rows W", bias="0|W", order="rows < N", part={"low": "R <= C"})

A word is the length of an axis, the same wherever it stands; a number is itself, ``T+1`` one more than ``T``, ``0|W``
either, ``*`` anything, and ``...`` in front any axes. A table of heads (`heads.table_of`) has a tuple, with a text for
each of its arrays: the product of the leading axes, rows, width. A NamedTuple has a text for each of its fields by
name. An argument that is None is passed over, and of a tuple each array is looked at. Integers that are used as indices
have ``< N``: they go from 0 to ``N - 1``; ends of slices ``<= N``.

Compiled code trusts its caller. With an axis more than it counts on, a gap, or an index that is too large, it would
read and write beyond the end of an array. So a kernel is compiled for these axes and arrays without gaps alone; Numba
asks whenever it sees new types, and the calls after that pay nothing. Lengths are looked at in every call of a kernel
with threads, unless they were seen before, and indices in every call. A step of decoding, which that would make half as
long again, has both looked at by the compiled code itself, except `decode`, whose caller looks at both.
"""

import functools
import inspect
import math
import operator
import re

import numpy as np

from linattn_ref.kernels.jit.loops.threads import process, start_threads

__all__ = ["Entrance", "Kernel", "check_indices"]

REMEMBERED = 4096  # calls
SHAPE = operator.attrgetter("shape")


class Kernel:
    """A compiled ``task``, and two loops over tasks: with threads, and without for where there can be none.

    Python calls the loops; the task itself is `inner`.
    """

    def __init__(self, task, threaded, serial, entrance):
        functools.update_wrapper(self, task.py_func)
        self.task, self.threaded, self.serial, self.entrance = task, threaded, serial, entrance

    def __call__(self, *arguments):
        entrance, key = self.entrance, []
        for place, field, _, said in entrance.said:  # what is looked at of each argument
            x = arguments[place] if field is None else getattr(arguments[place], field)
            if x is None:
                key.append(None)
            elif type(said) is tuple:  # a table of heads
                key += x[:, 1:3].tobytes(), x[0, 4:].tobytes()
            elif isinstance(x, tuple):
                key.append(tuple(map(SHAPE, x)))
            else:
                key.append(x.shape)
        key = tuple(key)
        if key not in entrance.seen or entrance.indices:
            entrance.check(arguments, key)
        layer = process.layer or start_threads()
        if layer == "serial":
            return self.serial(*arguments)
        if layer == "workqueue":
            with process.turn:
                return self.threaded(*arguments)
        return self.threaded(*arguments)


class Entrance:
    """The door of one kernel; with the names of what is ``written``, arrays of any layout are taken, by copies."""

    def __init__(self, function, said, written=None):
        places = list(inspect.signature(function).parameters)
        self.name, self.seen = f"{function.__module__.rpartition('.')[2]}.{function.__name__}", {}
        self.written = None if written is None else [places.index(name) for name in written.split()]
        self.said, self.indices = [], []  # both (place, field or None, name, ...): axes; a word and how many more
        for name, texts in said.items():
            for field, text in texts.items() if isinstance(texts, dict) else ((None, texts),):
                place, title = places.index(name), name if field is None else f"{name}.{field}"
                axes, sign, word = re.match(r"([^<]*)(<=?)? ?(.*)", text if isinstance(text, str) else "").groups()
                self.said.append((place, field, title, axes.strip() if isinstance(text, str) else text))
                if sign:
                    self.indices.append((place, field, title, word, int(sign == "<=")))

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
        result = function(*copies)
        for place in self.written:
            if copies[place] is not arguments[place]:
                arguments[place][...] = copies[place]
        return result

    def check(self, arguments, key):
        """Axes and their lengths, unless arguments with this key were seen before; and indices."""
        lengths = self.seen.get(key)
        if lengths is None:
            lengths = self._check_lengths(arguments)
            if len(self.seen) >= REMEMBERED:  # threads may add one each
                self.seen.clear()
            self.seen[key] = lengths
        for place, field, name, word, more in self.indices:
            check_indices(f"{self.name}: {name}", _field(arguments, place, field), lengths[word] + more)

    def _check_lengths(self, arguments):
        known = {}
        for name, said, x in self._arrays(arguments):
            self._check_axes(name, said, x)
            shapes = [(said, x.shape)] if isinstance(said, str) else zip(said, _shapes_in(x), strict=True)
            for axes, shape in shapes:
                self._check_shape(name, axes, shape, known)
        return known

    def _arrays(self, arguments):
        for place, field, name, said in self.said:
            x = _field(arguments, place, field)
            for one in x if isinstance(x, tuple) else (x,):
                if one is not None:
                    yield name, said, one

    def _check_axes(self, name, said, x):
        axes = said.split() if isinstance(said, str) else ["tables", "entries"]
        if x.ndim < len(axes) - 1 if axes[0] == "..." else x.ndim != len(axes):
            raise ValueError(f"{self.name}: {name}: expected the axes ({', '.join(axes)}), got shape {x.shape}")

    def _check_shape(self, name, axes, shape, known):
        for axis, length in zip(reversed(axes.split()), reversed(shape), strict=False):
            *numbers, axis = axis.split("|")
            if axis in ("*", "...") or str(length) in numbers:
                continue
            word, _, more = axis.partition("+")
            length -= int(more or 0)
            expected = int(word) if word.isdigit() else known.setdefault(word, length)
            if length != expected:
                raise ValueError(f"{self.name}: {name}: expected {word} = {expected} in ({axes}), got shape {shape}")


def check_indices(name, x, stop):
    """Integers from 0 to ``stop - 1``; negative ones are larger than any when they are read as unsigned."""
    if x.size and np.maximum.reduce(x.view(f"u{x.itemsize}"), axis=None) >= stop:
        raise ValueError(f"{name}: expected numbers from 0 to {stop - 1}, got {x.min()} to {x.max()}")


def _field(arguments, place, field):
    return arguments[place] if field is None else getattr(arguments[place], field)


def _whole(arguments):
    return [np.require(x, requirements="CWA") if isinstance(x, np.ndarray) else x for x in arguments]


def _shapes_in(table):
    """Of the arrays in a table: heads, rows, width."""
    heads = math.prod(table[0, 4:].tolist())
    return [(heads, *entry) for entry in table[1:, 1:3].tolist()]
