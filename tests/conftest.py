"""Set before anything else is imported: threads enough to notice a race, and hypothesis drawing the same every time."""

import os

os.environ.setdefault("NUMBA_NUM_THREADS", "4")  # the number of cores otherwise, and one core could not show a race

from hypothesis import settings

# The same examples in every run; no deadline, since the first call of a Numba kernel compiles it.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=20)
settings.load_profile("repeatable")
