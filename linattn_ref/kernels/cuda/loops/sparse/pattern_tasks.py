"""A part of a pattern in pieces for the blocks of a GPU: at most ``TILE`` rows each, and the columns they look at.

The parts' own tiles (`linattn_ref.attention.sparse.part`) are as wide as a CPU's vectors. A block has room for more
rows, and neighbouring tiles see much the same, so they are put together:

* where ``low`` and ``high`` alone say what a row sees (windows, intervals, columns), any rows that are neighbours;
* else (lists of key blocks) only tiles with the same runs. A list for every 16 queries fills a quarter of a block.

The columns are counted through the runs without the gaps between them, so that a tile of columns is full, however
short the runs are. Backward, keys are the rows and queries the columns, and all this is the same.

A few rows may see very much: a global token is seen by all. Their columns are dealt out to several blocks, whose
results are put together afterwards (`pattern_pieces`). That depends on the part alone, never on how many heads there
are: a sequence gives the same bits in any batch.
"""

from typing import Any, NamedTuple

import numpy as np

ROW, LAST_ROW, RUN, LAST_RUN, COLUMN, LAST_COLUMN, SLOT = 0, 1, 2, 3, 4, 5, 6  # of `tasks`; the last are one beyond
START, BEFORE = 0, 1  # of `runs`
FIRST_SLOT, LAST_SLOT = 2, 3  # of `joins`, after ROW and LAST_ROW
SHORT = 1024  # columns that are not dealt out; a multiple of TILE
PIECES = 64  # nor are those that are less than this part of all


class Tasks(NamedTuple):
    """The most work first, so that no long task begins when all others are done."""

    tasks: Any  # (tasks, 7) of int32: rows, runs, which of the runs' columns; the slot of a piece, -1 for a whole task
    runs: Any  # (runs, 2) of int32: the first column of a run, and how many columns its task has before it
    joins: Any  # (tasks in pieces, 4) of int32: rows, slots

    @property
    def slots(self):
        """How many pieces there are."""
        return int(self.joins[-1, LAST_SLOT]) if len(self.joins) else 0


def tasks_of_queries(part, size):
    """Rows are the part's queries, in its order, columns its keys."""
    return _tasks(part, part.tiles, part.first_run, part.runs, size)


def tasks_of_keys(part, size):
    """Rows are the part's keys, columns its queries."""
    return _tasks(part, part.key_tiles, *part.by_key, size)


def _tasks(part, tiles, first_run, runs, size):
    borders = _borders(part, tiles, first_run, runs, size)
    first, last = borders[:-1], borders[1:]
    task, start, stop = _union(first, last, tiles, first_run, runs)
    length = stop - start
    first_run = np.searchsorted(task, np.arange(len(first) + 1))
    total = np.concatenate([[0], np.cumsum(length)])
    before = total[:-1] - total[first_run[:-1]][task]
    rows = np.stack([first, last, first_run[:-1], first_run[1:]], axis=1)
    return _dealt_out(rows, np.diff(total[first_run]), np.stack([start, before], axis=1).astype(np.int32), size)


def _dealt_out(rows, columns, runs, size):
    most = max(SHORT, -(-columns.sum() // PIECES // size) * size)
    counts = -(-columns // most)
    whole = counts == 1
    last_slot = np.cumsum(np.where(whole, 0, counts))
    joins = np.stack([rows[:, 0], rows[:, 1], last_slot - counts, last_slot], axis=1)[counts > 1]
    task = np.repeat(np.arange(counts.size), counts)
    piece = np.arange(task.size) - (np.cumsum(counts) - counts)[task]
    column, slot = piece * most, np.where(whole[task], -1, (last_slot - counts)[task] + piece)
    last_column = np.minimum(column + most, columns[task])
    tasks = np.column_stack([rows[task], column, last_column, slot])[np.argsort(column - last_column, kind="stable")]
    return Tasks(tasks.astype(np.int32), runs, joins.astype(np.int32))


def _borders(part, tiles, first_run, runs, size):
    """Where the rows of a task begin, and where the last one ends."""
    alone = np.zeros(len(tiles) - 1, np.bool_)  # tiles that cannot be put together with the one before
    if not _intervals_say_all(part):
        counts = np.diff(first_run)
        tile = np.repeat(np.arange(counts.size), counts)  # of each run
        unequal = (runs != runs[np.arange(tile.size) - counts[tile]]).any(axis=1)  # to that of the tile before
        alone = np.bincount(tile[unequal], minlength=counts.size) > 0
        alone[1:] |= counts[1:] != counts[:-1]
    alone[:1] = True
    place = np.arange(tiles[-1])
    stretches = tiles[:-1][alone]
    since = place - stretches[np.searchsorted(stretches, place, side="right") - 1]
    return np.append(np.flatnonzero(since % size == 0), tiles[-1])


def _intervals_say_all(part):
    """Whether each row's ``low <= c < high`` lies in one run of its tile."""
    if part.runs.size == 0:
        return True
    far = part.keys.size + 1
    tile_of_run = np.repeat(np.arange(part.tiles.size - 1), np.diff(part.first_run))
    tile_of_row = np.repeat(np.arange(part.tiles.size - 1), np.diff(part.tiles))
    run = np.searchsorted(tile_of_run * far + part.runs[:, 0], tile_of_row * far + part.low, side="right") - 1
    inside = (run >= 0) & (tile_of_run[run] == tile_of_row) & (part.high <= part.runs[run, 1])
    return bool(np.all(inside | (part.low >= part.high)))


def _union(first, last, tiles, first_run, runs):
    """The runs of all tiles that have a row in ``first[i] : last[i]``, joined where they meet: ``i``, start, stop."""
    begin = first_run[np.searchsorted(tiles, first, side="right") - 1]
    counts = first_run[np.searchsorted(tiles, last)] - begin
    task = np.repeat(np.arange(len(first)), counts)
    run = np.arange(task.size) - np.repeat(np.cumsum(counts) - counts - begin, counts)
    far = runs.max(initial=0) + 1  # keeps tasks apart
    start, stop = runs[run, 0] + task * far, runs[run, 1] + task * far
    order = np.argsort(start, kind="stable")
    start, stop, task = start[order], np.maximum.accumulate(stop[order]), task[order]
    begins = np.ones(task.size, np.bool_)
    begins[1:] = start[1:] > stop[:-1]
    task = task[begins]
    return task, start[begins] - task * far, stop[np.roll(begins, -1)] - task * far
