"""Which query sees which key, written down in a few numbers per query.

A *pattern* is a tuple of `Part`, and the pairs that it allows are those of its parts, which must be disjoint: a pair in
two of them would count twice. A part is simple, once queries and keys are put in an order of its own::

              keys ->
             +------------------------+
    queries  |######..................|
      |      |..######................|    a tile with one run, (0, 10), of which each row sees low <= c < high
      v      |....######..............|
             +------------------------+
             |##...######.........###.|
             |##...######.........###.|    a tile with the runs (0, 2), (5, 11), (20, 23)
             +------------------------+

The order does much of the work. Sorted by ``position mod d``, the keys that are a multiple of ``d`` away from a query
are neighbours, and a dilated window becomes a plain one. And a key left out of the order is seen by nobody.

``band``      keys at distances ``first .. last`` times a dilation: sliding windows, strides
``interval``  one interval of keys for each query: blocks, or a few chosen columns
``columns``   all queries see the same few keys
``blocks``    a list of key blocks for each block of queries

Building a part takes ``O((N + L) log(N + L))`` for its orders, and nothing of size ``N L``. It depends on integers
alone, so a mechanism keeps the patterns that it built last, ``KEPT`` of them, in arrays that are read-only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["KEPT", "TILE", "Indices", "Part", "Pattern", "band", "blocks", "by_key", "columns", "count_pairs"]
__all__ += ["interval", "pairs", "tiles_of"]

Indices = NDArray[np.intp]
TILE = 32  # queries per tile: one for each lane of the kernels' vectors
KEPT = 16  # patterns per mechanism


class _Fields(NamedTuple):
    queries: Indices  # (N,) each query, in the part's order
    keys: Indices  # (columns,) different numbers below L
    low: Indices  # (N,)
    high: Indices  # (N,)
    tiles: Indices  # (tiles + 1,): the rows of tile t are tiles[t] : tiles[t + 1], at most TILE
    first_run: Indices  # (tiles + 1,): its runs are first_run[t] : first_run[t + 1]
    runs: Indices  # (runs, 2): start and stop, ascending and disjoint in a tile
    key_tiles: Indices  # (key tiles + 1,): the columns likewise; `by_key` needs them
    n_keys: int  # L


class Part(_Fields):
    """Query ``queries[r]`` sees key ``keys[c]`` if ``low[r] <= c < high[r]`` and ``c`` is in a run of ``r``'s tile."""

    def __new__(cls, *fields: Any) -> Part:
        kept: Any = (_read_only(x) if isinstance(x, np.ndarray) else x for x in fields)
        return super().__new__(cls, *kept)

    def __reduce__(self) -> Any:
        return Part, tuple(self)  # read-only in another process too

    @cached_property
    def by_key(self) -> tuple[Indices, Indices]:
        """The other way round, for backward passes: :func:`by_key`, found when it is first asked for and then kept."""
        return by_key(self)


Pattern = tuple[Part, ...]


# --- Making them ----------------------------------------------------------------------------------------------------


def band(
    n: int,
    n_keys: int,
    first: int,
    last: int,
    *,
    dilation: int = 1,
    shift: int = 0,
    without: ArrayLike = (),
    blind: ArrayLike = (),
) -> Part:
    """Query ``i`` sees the keys ``i + shift + s * dilation`` for ``first <= s <= last``, where there are any.

    Parameters
    ----------
    n, n_keys : int
        ``N`` and ``L``.
    first, last : int
        In steps of ``dilation``: ``-w, w`` is a window, ``-w, 0`` a causal one.
    dilation : int
    shift : int
        ``L - N`` for queries aligned with the last keys; not negative.
    without : sequence of int
        Keys that nobody sees, because another part has them.
    blind : sequence of int
        Queries that see nothing.
    """
    span = max(n + shift, n_keys)
    first, last, dilation = max(first, -span), min(last, span), min(dilation, span)  # no key is further away
    position, keys = np.arange(n) + shift, np.setdiff1d(np.arange(n_keys), np.asarray(without, np.intp))

    def place(residue: Indices, quotient: Indices) -> Indices:
        """Both as one number, by which positions are ordered: by residue, then by position."""
        return residue * span + quotient

    queries = np.argsort(place(position % dilation, position // dilation), kind="stable")
    keys = keys[np.argsort(place(keys % dilation, keys // dilation), kind="stable")]
    residue, quotient, places = position % dilation, position // dilation, place(keys % dilation, keys // dilation)
    low = np.searchsorted(places, place(residue, np.clip(quotient + first, 0, span)))[queries]
    high = np.searchsorted(places, place(residue, np.clip(quotient + last + 1, 0, span)))[queries]
    high = np.where(np.isin(queries, blind), low, high)
    return _tiled(queries, keys, low, high, n_keys)


def interval(low: ArrayLike, high: ArrayLike, n_keys: int, keys: ArrayLike | None = None) -> Part:
    """Query ``i`` sees ``keys[low[i] : high[i]]``; ``keys`` are those to choose from, in order, all unless given."""
    low, high = np.asarray(low, np.intp), np.asarray(high, np.intp)
    keys = np.arange(n_keys) if keys is None else np.asarray(keys, np.intp)
    return _tiled(np.arange(low.size), keys, np.clip(low, 0, keys.size), np.clip(high, 0, keys.size), n_keys)


def columns(n: int, n_keys: int, keys: ArrayLike, blind: ArrayLike = ()) -> Part:
    """Each of ``n`` queries, but for the ``blind``, sees the same ``keys``, different numbers below ``n_keys``."""
    keys = np.asarray(keys, np.intp)
    return interval(np.zeros(n, np.intp), np.where(np.isin(np.arange(n), blind), 0, keys.size), n_keys, keys)


def blocks(n: int, n_keys: int, block: int, seen: Sequence[ArrayLike]) -> Part:
    """Queries of block ``b``, ``block`` long, see the key blocks ``seen[b]``. The last of either may be shorter."""
    starts, stops, first_run = [], [], [0]
    for listed in seen:
        own = np.unique(np.asarray(listed, np.intp))  # ascending, each once
        alone = np.diff(own, prepend=-2) != 1
        starts.append(own[alone] * block)
        stops.append(np.minimum((own[np.roll(alone, -1)] + 1) * block, n_keys))
        first_run.append(first_run[-1] + len(starts[-1]))
    tiles, key_tiles = _cut(n, block), _cut(n_keys, block)
    of_tile = tiles[:-1] // block
    counts = np.diff(first_run)[of_tile]
    source = np.repeat(np.asarray(first_run[:-1])[of_tile], counts) + _counting(counts)
    runs = np.stack([np.concatenate(starts), np.concatenate(stops)], axis=1)[source]
    low, high = np.zeros(n, np.intp), np.full(n, n_keys)
    return Part(np.arange(n), np.arange(n_keys), low, high, tiles, _pointers(counts), runs, key_tiles, n_keys)


def _tiled(queries: Indices, keys: Indices, low: Indices, high: Indices, n_keys: int) -> Part:
    """A part whose tiles are ``TILE`` rows; the runs of a tile are the union of what its rows see."""
    rows = len(queries)
    tiles, key_tiles = _cut(rows, TILE), _cut(len(keys), TILE)
    empty, fill = low >= high, -rows % TILE
    # A row that sees nothing gets the interval [columns, columns), the last in its tile.
    starts = np.pad(np.where(empty, keys.size, low), (0, fill), constant_values=keys.size).reshape(-1, TILE)
    stops = np.pad(np.where(empty, keys.size, high), (0, fill), constant_values=keys.size).reshape(-1, TILE)
    order = np.argsort(starts, axis=1, kind="stable")
    starts = np.take_along_axis(starts, order, axis=1)
    reach = np.maximum.accumulate(np.take_along_axis(stops, order, axis=1), axis=1)  # (tiles, TILE)
    begins = np.ones(starts.shape, np.bool_)
    begins[:, 1:] = starts[:, 1:] > reach[:, :-1]
    runs = np.stack([starts[begins], reach[np.roll(begins, -1, axis=1)]], axis=1)
    tile_of_run = np.nonzero(begins)[0]
    some = runs[:, 0] < runs[:, 1]
    counts = np.bincount(tile_of_run[some], minlength=len(tiles) - 1)
    return Part(queries, keys, low, high, tiles, _pointers(counts), runs[some], key_tiles, n_keys)


def _read_only(x: Indices) -> Indices:
    view = x.view()  # the array itself may be a caller's
    view.flags.writeable = False
    return view


def _cut(length: int, block: int) -> Indices:
    """Where tiles of at most ``TILE`` begin, none across the border of a block; and ``length``."""
    place = np.arange(length)
    return np.append(np.flatnonzero(place % block % TILE == 0), length)


def _pointers(counts: Indices) -> Indices:
    """``(0, counts[0], counts[0] + counts[1], ...)``."""
    return np.concatenate([[0], np.cumsum(counts)])


def _counting(counts: Indices) -> Indices:
    """``0 .. counts[0] - 1, 0 .. counts[1] - 1, ...``."""
    return np.arange(counts.sum()) - np.repeat(_pointers(counts)[:-1], counts)


# --- Looking at them ------------------------------------------------------------------------------------------------


def tiles_of(pattern: Pattern) -> Iterator[tuple[Indices, Indices, NDArray[np.bool_]]]:
    """For each tile that sees anything: its queries, the keys that any of them sees, and which query sees which key."""
    for part in pattern:
        for t in range(len(part.tiles) - 1):
            rows = slice(part.tiles[t], part.tiles[t + 1])
            runs = part.runs[part.first_run[t] : part.first_run[t + 1]]
            if len(runs):
                columns = np.concatenate([np.arange(start, stop) for start, stop in runs])
                seen = (part.low[rows, None] <= columns) & (columns < part.high[rows, None])
                yield part.queries[rows], part.keys[columns], seen


def by_key(part: Part) -> tuple[Indices, Indices]:
    """The other way round: the runs of rows that see anything of each key tile.

    Returns
    -------
    first_run : ndarray ``(key tiles + 1,)``
    runs : ndarray ``(runs, 2)``
        Those of key tile ``t`` are ``first_run[t] : first_run[t + 1]``, ascending and disjoint. ``low`` and ``high``
        determine which of the tile's columns each of these rows sees.
    """
    tile = np.repeat(np.arange(len(part.tiles) - 1), np.diff(part.first_run))  # of each run
    first = np.searchsorted(part.key_tiles, part.runs[:, 0], side="right") - 1
    counts = np.searchsorted(part.key_tiles, part.runs[:, 1]) - first
    key_tile = np.repeat(first, counts) + _counting(counts)  # one entry for each pair of tiles with a run in common
    tile = np.repeat(tile, counts)
    start, stop = _rows_between(part, tile, part.key_tiles[key_tile], part.key_tiles[key_tile + 1])
    order = np.argsort(key_tile, kind="stable")  # by key tile, then by rows
    order = order[start[order] < stop[order]]
    key_tile, start, stop = key_tile[order], start[order], stop[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (key_tile[1:] != key_tile[:-1]) | (start[1:] > stop[:-1])
    counts = np.bincount(key_tile[begins], minlength=len(part.key_tiles) - 1)
    runs = np.stack([start[begins], stop[np.roll(begins, -1)]], axis=1)
    return _read_only(_pointers(counts)), _read_only(runs)


def _rows_between(part: Part, tile: Indices, first: Indices, last: Indices) -> tuple[Indices, Indices]:
    """For each entry: the first row of its tile that sees any column from ``first`` to ``last``, and one past the last.

    ``last`` itself is not one of these columns.
    """
    start, stop = part.tiles[tile], part.tiles[tile + 1]
    highest_low = np.maximum.reduceat(part.low, part.tiles[:-1])[tile]
    lowest_high = np.minimum.reduceat(part.high, part.tiles[:-1])[tile]
    edge = np.flatnonzero((highest_low > first) | (lowest_high < last))  # not seen by all rows: a few at a run's ends
    rows = start[edge, None] + np.arange(TILE)  # (entries, TILE)
    inside = rows < stop[edge, None]
    rows[~inside] = 0
    sees = inside & (part.low[rows] < last[edge, None]) & (part.high[rows] > first[edge, None])
    stop[edge] = np.where(sees.any(axis=1), start[edge] + TILE - sees[:, ::-1].argmax(axis=1), start[edge])
    start[edge] += sees.argmax(axis=1)
    return start, stop


def pairs(pattern: Pattern) -> tuple[Indices, Indices]:
    """Every allowed pair: the queries, and the key of each. One that stands here twice is an error of the pattern."""
    found = [(np.empty(0, np.intp), np.empty(0, np.intp))]
    for queries, keys, seen in tiles_of(pattern):
        row, column = np.nonzero(seen)
        found.append((queries[row], keys[column]))
    queries, keys = (np.concatenate(each) for each in zip(*found, strict=True))
    return queries, keys


def count_pairs(pattern: Pattern) -> int:
    """How many pairs are allowed."""
    return sum(int(seen.sum()) for _, _, seen in tiles_of(pattern))
