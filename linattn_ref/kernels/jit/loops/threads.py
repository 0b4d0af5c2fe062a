"""Kernels with threads that any Python thread may call, also several at a time, and a forked child too.

Numba shares out the work on one of three layers: the first that is there of ``tbb``, ``omp`` and ``workqueue``, or what
``NUMBA_THREADING_LAYER`` says. What ends the process with each, if nothing is done about it:

    layer      two Python threads at once  a child forked after a kernel has run
    =========  ==========================  =====================================
    tbb
    omp                                    a kernel in the child (GNU's OpenMP)
    workqueue  a kernel in each

Kernels take turns with ``workqueue``, and run without threads in such a child of ``omp``. For this they are compiled
once more, and a child that has to do so says it in a warning. Numba's order is kept: it is the safest as well, since a
lock here does not hold up Numba code of other packages.

Between two kernels GNU's OpenMP has its threads turn in circles for a while, so that they are there at once. But what
comes between the kernels of a network are matrix products, and these have threads of their own, OpenBLAS's: on as many
processors as either has threads, a step of training took longer with two threads than with one. So the circles are
limited to some microseconds, unless the user's ``OMP_WAIT_POLICY`` or ``GOMP_SPINCOUNT`` says what else to do.
"""

import contextlib
import os
import threading
import warnings
from types import SimpleNamespace

import numba
from numba.core import event

if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "1000"  # read when the first kernel runs

# "serial" is one more layer: no threads. None: not known before the first kernel runs.
process = SimpleNamespace(layer=None, turn=threading.Lock())


def start_threads():
    """Those of Numba; which layer they are on."""
    numba.get_num_threads()  # starts them
    process.layer = numba.threading_layer()
    return process.layer


def _in_a_forked_child():
    process.turn = threading.Lock()  # whoever had the turn is not in this process
    with contextlib.suppress(ValueError):  # no threads yet: the child starts its own
        if numba.threading_layer() == "omp" and process.layer != "serial":
            process.layer = "serial"
            event.register("numba:compile", CompilingInAChild())


class CompilingInAChild(event.Listener):
    """Says once that the kernels of this package are compiled again."""

    def __init__(self):
        self.said = False

    def on_start(self, event):
        ours = event.data["dispatcher"].py_func.__module__.startswith("linattn_ref.")
        if ours and not self.said:
            self.said = True
            warnings.warn(
                "linattn_ref.kernels.jit: this forked process has none of GNU's OpenMP threads, so the kernels that it"
                " calls are compiled for one thread first, which takes seconds or minutes; processes started by"
                ' "spawn", and NUMBA_THREADING_LAYER=workqueue, need no second compilation',
                RuntimeWarning,
                stacklevel=1,
            )

    def on_end(self, event):
        pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_forked_child)
