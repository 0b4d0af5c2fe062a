"""The sentence that runs through the chapters: twelve words, each with a query, a key and a value, made up by hand.

The four numbers of a key say what a word is: a thing, something done, a place, or a small word. Those of a query say
what the word looks for. The three numbers of a value are what it passes on: who, does what, where.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["WORDS", "vectors"]

# Each word, its query, key and value.
TABLE = """
the    1.2 -0.3  0.3 -0.4    0.1 -0.2  0.1  1.0    0.1 -0.1  0.2
cat    0.2  1.6  0.1  0.3    1.8 -0.4  0.2 -0.3    1.5  0.2 -0.3
sat    2.4 -0.5 -0.6 -0.2   -0.3  1.7  0.4 -0.1   -0.2  1.4  0.3
on     0.7  0.4  2.1 -0.3   -0.2  0.3  1.2  0.8    0.1  0.3  1.1
the    1.1 -0.2  0.6 -0.5    0.2 -0.1  0.3  1.1    0.2 -0.2  0.1
old    1.9 -0.6  0.9 -0.1    0.6 -0.5  0.4  0.2    0.6 -0.4  0.5
mat   -0.2  0.6  1.5  0.4    1.3 -0.6  1.4 -0.2    0.9 -0.1  1.3
and    0.4  0.5 -0.1  0.3   -0.4  0.1 -0.3  0.9   -0.1  0.2 -0.2
the    1.3 -0.4  0.2 -0.3    0.3 -0.3  0.2  1.2    0.1  0.1  0.3
dog    0.3  1.7 -0.2  0.2    1.9 -0.2  0.1 -0.4    1.4  0.4 -0.4
slept  2.3 -0.3 -0.7  0.1   -0.1  1.9  0.2  0.1    0.3  1.6 -0.1
too   -0.1  1.4  0.3 -0.2   -0.5  0.4 -0.2  0.7   -0.3  0.5  0.2
"""
LINES = TABLE.strip().split("\n")
WORDS = tuple(line.split()[0] for line in LINES)


def vectors() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return queries ``(12, 4)``, keys ``(12, 4)`` and values ``(12, 3)``, as new arrays."""
    rows = np.array([[float(number) for number in line.split()[1:]] for line in LINES])
    q, k, v = np.split(rows, [4, 8], axis=1)
    return q.copy(), k.copy(), v.copy()
