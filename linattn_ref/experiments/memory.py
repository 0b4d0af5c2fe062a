"""The most memory that a computation has in use at once, measured in a process of its own.

What is read is the operating system's account of the process, its resident memory. It holds everything: NumPy's
arrays, what compiled kernels and BLAS allocate for themselves, and nothing that was only reserved and never written.
Python's ``tracemalloc`` (`counting.peak_bytes`) sees arrays alone, to the byte; where that is all there is to see, the
two agree to about a percent.

Memory that was freed counts as in use until it is handed back. The C library keeps smaller blocks for later, up to 32
MiB as time goes on; in the measuring process it is told to hand back everything from 64 KiB on, so that the peak is
that of the computation and not of its history. (Only glibc can be told so. Without it linear attention here measures
an eighth more.)
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HAND_BACK = {"MALLOC_MMAP_THRESHOLD_": str(64 * 1024)}  # bytes
# What the other process runs: a call comes in, its result goes out.
CHILD = """
import pickle, sys
function, arguments = pickle.load(sys.stdin.buffer)
pickle.dump(function(*arguments), sys.stdout.buffer)
"""


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)`` in a fresh interpreter, to which both are pickled.

    Raises
    ------
    ChildProcessError
        The process failed, or was killed, as it is when the machine's memory is used up.
    """
    call, environment = pickle.dumps((function, arguments)), {**os.environ, **HAND_BACK}
    done = subprocess.run([sys.executable, "-c", CHILD], input=call, capture_output=True, env=environment)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        raise ChildProcessError(f"measuring {function.__name__}{arguments} in a process of its own failed: {reason}")
    return pickle.loads(done.stdout)


def peak_resident(call: Callable[[], object]) -> int:
    """Bytes that ``call()`` has in use at its peak beyond those in use before, in this process.

    To be called by `in_new_process`. Whatever happens only once, such as the loading of kernels, should have happened
    before.
    """
    gc.collect()
    with contextlib.suppress(OSError):  # not Linux: the peak is then the greatest so far
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _peak()
    call()
    return _peak() - before


def _peak() -> int:
    """Bytes, the greatest resident memory since it was last cleared."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        import resource  # not on Windows

        greatest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return greatest if sys.platform == "darwin" else 1024 * greatest
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])
