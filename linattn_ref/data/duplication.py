"""The sequence duplication task: a word, a separator, and the same word again, to be predicted symbol by symbol.

    w_1 ... w_n 0 w_1 ... w_n 0 0 ...                        symbols 1 to 10, then zeros to length S

The first copy is random, and what it says next does not count. What counts are the ``n + 1`` targets from the separator
on: the separator itself, which costs nothing, since no other target counts before it; and the second copy, for which
the network has to look back exactly ``n`` places.

As the authors' code has it (idiap/linear-transformer-experiments, causal-copy/main.py), and not its README: there is no
separator before the first copy, and ``n`` is drawn evenly from ``S // 4`` to ``(S - 1) // 2 - 1``.

>>> words = draw(np.random.default_rng(0), count=1, length=12)
>>> for row in words:
...     print(*row[0].astype(int))
7 6 3 4 0 7 6 3 4 0 0 0
6 3 4 0 7 6 3 4 0 0 0 0
0 0 0 1 1 1 1 1 0 0 0 0

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.1.1.
Kitaev, Kaiser and Levskaya (2020), "Reformer: the efficient transformer", section 2.1 (a task like it).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.op import plain_numbers
from linattn_ref.op.options import check_rng, check_sizes

__all__ = ["SYMBOLS", "Words", "draw"]

SYMBOLS = 10  # besides the separator, 0


class Words(NamedTuple):
    """Sequences, and what comes next at each place."""

    read: NDArray[np.int64]  # (count, S)
    told: NDArray[np.int64]  # (count, S), one place on
    counts: NDArray[np.bool_]  # (count, S), True at the n + 1 targets


@plain_numbers
def draw(rng: np.random.Generator, *, count: int, length: int) -> Words:
    """Words and their copies.

    Parameters
    ----------
    rng : numpy.random.Generator
    count : int
        Sequences.
    length : int
        ``S``, at least 5.

    Raises
    ------
    ValueError
        ``length`` leaves no word.
    """
    check_rng(rng)
    check_sizes(count=count, length=length)
    least, most = length // 4, (length - 1) // 2
    if not 1 <= least < most:
        raise ValueError(f"length: expected at least 5 places for a word and its copy, got {length}")
    read = np.zeros((count, length), np.int64)
    counts = np.zeros((count, length), bool)
    for row, counted, n in zip(read, counts, rng.integers(least, most, size=count), strict=True):
        row[:n] = row[n + 1 : 2 * n + 1] = rng.integers(1, SYMBOLS + 1, size=n)
        counted[n - 1 : 2 * n] = True
    return Words(read, np.append(read[:, 1:], np.zeros((count, 1), np.int64), axis=1), counts)
