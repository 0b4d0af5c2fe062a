"""Run tests of the CUDA kernels in Numba's simulator, in a process of its own: ``python simulator.py`` and arguments.

The simulator has to be chosen before Numba is imported, hence the process. Four things are changed to make it a test:

* The tiles are small (`SIZES`), so that a few rows are several chunks, and a block has 9 threads in place of 256.
  With ``--real-sizes`` as first word they are what they are, for one tile or two.
* A block's threads take turns: each runs up to the next barrier, in ascending order, then in descending order, and so
  on. That is a hundred times faster than the simulator's own scheme, always the same, and a missing barrier shows.
* New arrays, shared by each block anew, are full of NaN, so that a kernel that reads what nobody wrote, or leaves part
  of a result unwritten, is found.
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
from typing import NamedTuple

import numpy as np

SIZES = {"SIDE": 3, "EACH": 2, "TILE": 6, "PITCH": 7, "STEP": 3, "HALF": 1, "THREADS": 9, "BLOCK": (3, 3), "SHORT": 12}
SIZES |= {"WARPS": 2, "EDGE": 32, "PARTS": 4, "STEPS": 2, "WORDS": 16, "LANES": 64, "ROUNDS": 8, "WARP_BLOCK": (32, 2)}
SIZES |= {"AHEAD": 2}  # of three chunks
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
    from numba.cuda.simulator import kernelapi
    from numba.cuda.simulator.cudadrv import devicearray

    import linattn_ref.kernels.cuda
    from linattn_ref.kernels.cuda.loops import device

    devicearray.FakeShape = tuple  # as that of a real device array, which may be indexed from its end
    # The array itself: the one that wraps it takes five times as long for a number.
    simulator.FakeWithinKernelCUDAArray = attrgetter("_ary")
    simulator.BlockManager = taking_turns(simulator.BlockThread)
    device.cuda.device_array = lambda shape, dtype, stream=0: devicearray.FakeCUDAArray(unwritten(shape, dtype), stream)
    kernelapi.FakeCUDALocal.array = lambda self, shape, dtype: unwritten(shape, dtype)
    kernelapi.FakeCUDAShared.array = lambda self, shape, dtype: threading.current_thread().shared_array(shape, dtype)
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
    from linattn_ref.kernels import cuda
    from linattn_ref.op.backends import check_backend

    if not case.takes("kernels"):
        return False
    try:
        check_backend(cuda, case.module.forward)
    except TypeError:
        return False
    return True


def unwritten(shape, dtype):
    """A new array of NaN; of the largest integers, which are no index, and NaN as 16-bit numbers; or of True."""
    kind = np.dtype(dtype).kind
    return np.full(shape, {"f": np.nan, "b": True}.get(kind) or np.iinfo(dtype).max, dtype)


class Point(NamedTuple):
    """Of a thread in its block, or of a block in the grid."""

    x: int
    y: int
    z: int


# --- Taking turns ---------------------------------------------------------------------------------------------------


def taking_turns(thread_class):
    """A replacement for the simulator's ``BlockManager``, with its kind of threads.

    A thread that pauses or ends wakes the next one. A thread that has ended takes over the next one's work if that has
    not begun, so that a block without barriers needs no second thread; then it waits for other blocks. After an error
    those of its block are left where they are.
    """
    idle = []

    class Thread(thread_class):
        def __init__(self):
            threading.Thread.__init__(self, daemon=True)
            self.woken = threading.Semaphore(0)
            self.start()

        def work_for(self, block, number):
            self._manager, self.thread_id, self.asked = block, number, 0
            self.blockIdx, self.threadIdx = block.place, block.points[number]

        def run(self):
            while self.woken.acquire():
                try:
                    while self._manager.calls(self):
                        pass
                except BaseException as error:
                    error.add_note(f"in block {self.blockIdx}, thread {self.threadIdx}")
                    self._manager.error = error
                    self._manager.done.release()

        def syncthreads(self):
            self.wait_at("block")

        def syncwarp(self):
            self.wait_at("warp")

        def wait_at(self, barrier):
            self._manager.barriers[self.thread_id] = barrier
            number = next(self._manager.turns)
            if number != self.thread_id:
                self._manager.wake(number)
                self.woken.acquire()

        def shared_array(self, shape, dtype):
            """Its block's first, second, and so on, in the order of asking."""
            arrays, self.asked = self._manager.arrays, self.asked + 1
            if len(arrays) < self.asked:
                arrays.append(unwritten(shape, dtype))
            return arrays[self.asked - 1]

    class Block:
        def __init__(self, function, grid_dim, block_dim, debug):
            self.function, self.points, self.arrays = function, _points(block_dim), []
            self.done, self.error = threading.Semaphore(0), None
            self.threads, self.barriers = [None] * len(self.points), [None] * len(self.points)
            self.block_state = np.zeros(block_dim, bool)  # for `syncthreads_or`
            self.turns = _turns(self.barriers)

        def run(self, place, *arguments):
            self.place, self.arguments = Point(*place), arguments
            self.wake(next(self.turns))
            self.done.acquire()
            if self.error:
                raise self.error

        def calls(self, thread):
            """All of a GPU thread's work; whether ``thread`` is to do that of another one."""
            self.function(*self.arguments)
            self.barriers[thread.thread_id] = "end"
            number = next(self.turns, None)
            if number is not None and self.threads[number] is None:
                self.begin(thread, number)
                return True
            idle.append(thread)
            if number is None:
                self.done.release()
            else:
                self.wake(number)
            return False

        def wake(self, number):
            if self.threads[number] is None:
                self.begin(idle.pop() if idle else Thread(), number)
            self.threads[number].woken.release()

        def begin(self, thread, number):
            self.threads[number] = thread
            thread.work_for(self, number)

    return Block


def _turns(barriers):
    """The threads' numbers, in the order in which they run; ``barriers`` is where each has stopped."""
    waiting = range(len(barriers))
    while waiting:
        for _, warp in groupby(waiting, lambda number: number // 32):
            warp = among = list(warp)
            while among:
                yield from among
                among = _all_or_none(warp, barriers, "warp")[::-1]
        waiting = _all_or_none(range(len(barriers)), barriers, "block")[::-1]


def _all_or_none(numbers, barriers, place):
    """Those that wait at a barrier, of the block or of the warp whose threads these are."""
    reached = [number for number in numbers if barriers[number] == place]
    if 0 < len(reached) < len(numbers):
        raise RuntimeError(f"{len(reached)} of {len(numbers)} threads of a {place} reached a barrier")
    return reached


def _points(block_dim):
    """Thread indices, along ``x`` first."""
    width, height, depth = block_dim
    return [Point(x, y, z) for z in range(depth) for y in range(height) for x in range(width)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
