"""A compilation cache that notices a change in any file whose text is compiled in.

Numba's own cache looks only at the file that holds the kernel. A kernel here also contains code from `vector` and
`panel`, and numbers like ``TILE`` of `linattn_ref.kernels.parts`, so after an edit there it would go on running the old
machine code. The text of all these files is therefore part of the cache's key; the processor, its features and Numba's
version are already.
"""

import hashlib
from pathlib import Path

from numba import njit
from numba.core.caching import FunctionCache

from linattn_ref.kernels import parts, turns
from linattn_ref.kernels.jit.threads import Kernel


def source_files():
    """The files whose text may be compiled in: this folder, and what its kernels take from outside."""
    return (*sorted(Path(__file__).parent.glob("*.py")), Path(parts.__file__), Path(turns.__file__))


def _digest(files):
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


SOURCES = _digest(source_files())


class PackageCache(FunctionCache):
    """Numba's cache of one function, with `SOURCES` in the key, and whether it has threads."""

    def __init__(self, function, parallel):
        super().__init__(function)
        self.parallel = parallel

    def _index_key(self, sig, codegen):
        return (*super()._index_key(sig, codegen), SOURCES, self.parallel)


def kernel(function):
    """Compile ``function`` with ``numba.njit(parallel=True)`` and keep the result in the cache.

    For the entry points called from Python. What they call is plain ``@njit``: it is compiled into them.
    """
    return Kernel(_compiled(function, parallel=True), serial_kernel(function))


def serial_kernel(function):
    """The same without threads, for what is done sooner than a thread is woken."""
    return _compiled(function, parallel=False)


def _compiled(function, parallel):
    dispatcher = njit(parallel=parallel, cache=True)(function)
    dispatcher._cache = PackageCache(function, parallel)
    return dispatcher
