"""Kernels with threads that any Python thread may call, also several at a time, and a forked child too.

Numba shares out the work on one of three layers: the first that is there of ``tbb``, ``omp`` and ``workqueue``, or what
``NUMBA_THREADING_LAYER`` says. What ends the process with each, if nothing is done about it:

    layer      two Python threads at once  a child forked after a kernel has run
    =========  ==========================  =====================================
    tbb
    omp                                    a kernel in the child (GNU's OpenMP)
    workqueue  a kernel in each

Kernels take turns with ``workqueue``, and run without threads in such a child of ``omp``. Numba's order is kept: it is
the safest as well, since a lock here does not hold up Numba code of other packages.

Between two kernels GNU's OpenMP lets its threads spin for a while, so that they start the next kernel at once. But what
comes between the kernels of a network are matrix products, and these have threads of their own, OpenBLAS's: on as many
processors as either has threads, a step of training took longer with two threads than with one. So spinning is limited
to some microseconds, unless the user's ``OMP_WAIT_POLICY`` or ``GOMP_SPINCOUNT`` says what else to do.
"""

import contextlib
import os
import threading
from types import SimpleNamespace

import numba

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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_forked_child)
