"""Measuring in a process of its own: what the C library does with freed memory, and the most that is in use at once.

Freed memory can go back to the operating system at once or be kept for the next array, and both time and memory depend
on it. Left to itself, the C library keeps small blocks and hands back large ones, which are those of long sequences:
every new array is then fresh memory, which the system has to fill with zeros first. That has been seen to take four
times as long as the computation itself, and never twice the same. So the process that measures sets what is done:

``KEEP`` for time
    Hand back nothing. From the second call on no memory is fresh, as it is in training, where the allocators of
    frameworks do the same.
``HAND_BACK`` for memory
    Hand back everything from 64 KiB on, so that the peak is that of the computation and not of its history.

(Only glibc has these settings. Without them, an eighth more memory is measured for linear attention.)

Memory is the operating system's account of the process, its resident memory. It holds everything: NumPy's arrays, what
compiled kernels and BLAS allocate for themselves, and nothing that was only reserved and never written. Python's
``tracemalloc`` (`counting.peak_bytes`) sees arrays alone, to the byte; where that is all there is to see, the two agree
to about a percent.
"""

import contextlib
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["HAND_BACK", "KEEP", "in_new_process", "peak_resident"]

# Environment variables that glibc's malloc reads when a process begins; in bytes.
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
HAND_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
# What the other process runs: a call comes in, its result goes out.
CHILD = """
import pickle, sys
function, arguments = pickle.load(sys.stdin.buffer)
pickle.dump(function(*arguments), sys.stdout.buffer)
"""


def in_new_process(function: Callable[..., Any], *arguments: Any, malloc: Mapping[str, str]) -> Any:
    """``function(*arguments)`` in a fresh interpreter, to which both are pickled; ``malloc`` is KEEP or HAND_BACK.

    Raises
    ------
    ChildProcessError
        The process failed, or was killed, as it is when the machine's memory is used up.
    """
    call, environment = pickle.dumps((function, arguments)), {**os.environ, **malloc}
    done = subprocess.run([sys.executable, "-c", CHILD], input=call, capture_output=True, env=environment)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        raise ChildProcessError(f"measuring {function.__name__}{arguments} in a process of its own failed: {reason}")
    return pickle.loads(done.stdout)


def peak_resident(call: Callable[[], object]) -> int:
    """Bytes that ``call()`` has in use at its peak beyond those in use before, in this process.

    To be called by `in_new_process` with HAND_BACK. Whatever happens only once, such as the loading of kernels, should
    have happened before.
    """
    gc.collect()
    with contextlib.suppress(OSError):  # not Linux: the peak is then the greatest so far
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _peak()
    call()
    return _peak() - before


def _peak() -> int:
    """Bytes, the greatest resident memory since it was last cleared, which psutil can neither read nor clear."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        import resource  # not on Windows

        greatest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return greatest if sys.platform == "darwin" else 1024 * greatest
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])
