"""Run tests of the CUDA kernels in Numba's simulator, in a process of its own: ``python simulator.py`` and arguments.

The simulator has to be chosen before Numba is imported, hence the process. Three things are changed to make it a test:

* The tiles are small (`SIZES`), so that a few rows are several chunks, and a block has 9 threads in place of 256.
  With ``--real-sizes`` as first word they are what they are, for one tile or two.
* A block's threads take turns: each runs up to the next barrier, in ascending order, then in descending order, and so
  on. That is a hundred times faster than the simulator's own scheme, always the same, and a missing barrier shows.
* A barrier that only some threads of a block reach, which can hang a GPU, is an error; so is an instruction of a whole
  warp that only some of its lanes reach. A warp runs up to the next barrier of the block before another one begins.

In the contract tests, every case that has its kernels here gets the room: ``-k cuda`` chooses its tests. They are run
in one dtype, float32 unless the first word is ``--float64``, and rooms are compared at one size.
"""

import os
import sys
import threading
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

SIZES = {"SIDE": 3, "EACH": 2, "TILE": 6, "PITCH": 7, "STEP": 3, "HALF": 1, "THREADS": 9, "BLOCK": (3, 3), "SHORT": 12}
SIZES |= {"WARPS": 2, "EDGE": 32, "PARTS": 4, "STEPS": 2, "WORDS": 16, "LANES": 64, "ROUNDS": 8, "WARP_BLOCK": (32, 2)}
TESTS = Path(__file__).parents[2]


def main(arguments):
    """Change the simulator, the kernels and the cases; run pytest."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    if hasattr(os, "sched_setaffinity"):  # threads that take turns lose half their time by changing the core
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    sys.path[:0] = [str(TESTS), str(TESTS / "support")]
    import case
    import cases
    import pytest
    from numba.cuda.simulator import kernel as simulator
    from numba.cuda.simulator.cudadrv import devicearray

    import linattn_ref.kernels.cuda

    devicearray.FakeShape = tuple  # as that of a real device array, which may be indexed from its end
    for name in ("shape", "dtype"):  # which it looks up in a list of all names, 30 times slower than a number
        setattr(devicearray.FakeWithinKernelCUDAArray, name, property(attrgetter(f"_item._ary.{name}")))
    simulator.BlockManager = taking_turns(simulator.BlockThread)
    if arguments[:1] == ["--real-sizes"]:
        return pytest.main(["-p", "no:cacheprovider", *arguments[1:]])
    shrink(linattn_ref.kernels.cuda.__name__)
    double = arguments[:1] == ["--float64"]
    case.DTYPES, case.SIZES = (np.float64 if double else np.float32,), (case.Sizes(7, 17),)
    cases.CASES = tuple(
        replace(case, rooms=(*case.rooms, "cuda"), widths=(6,)) for case in cases.CASES if has_kernels(case)
    )
    return pytest.main(["-p", "no:cacheprovider", *arguments[double:]])


def shrink(package):
    """Smaller sizes, in every module that has taken them over."""
    for name, module in list(sys.modules.items()):
        if name.startswith(package):
            for size, value in SIZES.items():
                if hasattr(module, size):
                    setattr(module, size, value)


def has_kernels(case):
    """Whether a mechanism runs with ``kernels=cuda``."""
    from case import Setting

    if not case.takes("kernels"):
        return False
    try:
        Setting(case, "cuda", masked=False).call().forward()
    except TypeError as error:
        if not str(error).startswith("kernels: "):
            raise
        return False
    return True


def taking_turns(thread_class):
    """A replacement for the simulator's ``BlockManager``, made of its kind of threads."""

    class Thread(thread_class):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.mine, self.back, self.place = threading.Semaphore(0), threading.Semaphore(0), None

        def run(self):
            self.mine.acquire()
            if not self.abort:
                super().run()
            self.place = "end"
            self.back.release()

        def syncthreads(self):
            self.wait_at("block")

        def syncwarp(self):
            self.wait_at("warp")

        def wait_at(self, place):
            self.place = place
            self.back.release()
            self.mine.acquire()
            if self.abort:
                raise RuntimeError("another thread failed")

    class Turns:
        def __init__(self, function, grid_dim, block_dim, debug):
            self._function, self._block_dim, self._debug = function, block_dim, debug

        def run(self, grid_point, *arguments):
            points = [(x, y, z) for x, y, z in _points(self._block_dim)]
            self.block_state = np.zeros(self._block_dim, bool)  # for `syncthreads_or`
            threads = [
                Thread(lambda: self._function(*arguments), self, grid_point, point, self._debug) for point in points
            ]
            for thread in threads:
                thread.start()
            try:
                waiting = threads
                while waiting:
                    for _, warp in groupby(waiting, lambda thread: thread.thread_id // 32):
                        _run_warp(list(warp))
                    waiting = _all_or_none(threads, "block")[::-1]
            except BaseException:
                for thread in threads:
                    thread.abort = True
                    thread.mine.release()
                raise

    return Turns


def _run_warp(threads):
    """Each of a warp's threads up to the next barrier of the block, or to its end."""
    waiting = threads
    while waiting:
        for thread in waiting:
            thread.mine.release()
            thread.back.acquire()
            if thread.exception:
                raise thread.exception[0].with_traceback(thread.exception[1])
        waiting = _all_or_none(threads, "warp")[::-1]


def _all_or_none(threads, place):
    """Those that wait at a barrier, of the block or of the warp whose threads these are."""
    reached = [thread for thread in threads if thread.place == place]
    if 0 < len(reached) < len(threads):
        raise RuntimeError(f"{len(reached)} of {len(threads)} threads of a {place} reached a barrier")
    return reached


def _points(block_dim):
    """Thread indices, along ``x`` first."""
    width, height, depth = block_dim
    return ((x, y, z) for z in range(depth) for y in range(height) for x in range(width))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
