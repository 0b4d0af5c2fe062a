"""Pattern softmax at the real sizes of its tiles; run by ``test_simulator.py``, with ``--real-sizes``."""

import numpy as np
import pytest
from in_simulator import assert_close
from patterns_in_simulator import on_both

from linattn_ref.attention.sparse import part
from linattn_ref.kernels.cuda.loops.sparse import pattern_tasks
from linattn_ref.kernels.cuda.loops.tile import TILE


@pytest.mark.parametrize("name", ["a window and columns", "blocks"])
def test_kernels_are_the_page(name, monkeypatch):
    """Two of the parts' tiles in a block, two blocks, tasks in pieces, a width above that of a tile."""
    assert TILE == 64
    monkeypatch.setattr(pattern_tasks, "SHORT", TILE)
    if name == "blocks":
        sizes, pattern = ((), 66, 66, 3, 66), (part.blocks(66, 66, 16, [[0, 1], [0, 1, 3], [2, 4], [], range(5)]),)
    else:
        pattern = part.band(70, 70, -9, 9, without=[0, 33]), part.columns(70, 70, [0, 33])
        sizes = (), 70, 70, 5, 3
    for want, got in zip(*on_both(pattern, sizes, name != "blocks", np.float64), strict=True):
        assert_close(got, want)
