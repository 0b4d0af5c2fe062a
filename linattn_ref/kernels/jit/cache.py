"""A compilation cache that notices a change in any file of this package.

Numba's own cache looks only at the file that holds the kernel. A kernel here also contains code from `vector` and
`panel`, so after an edit there it would go on running the old machine code. The text of all files of this package is
therefore part of the cache's key; the processor, its features and Numba's version are already.
"""

import hashlib
from pathlib import Path

from numba import njit
from numba.core.caching import FunctionCache


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


SOURCES = _digest_of_sources()


class PackageCache(FunctionCache):
    """Numba's cache of one function, with `SOURCES` in the key."""

    def _index_key(self, sig, codegen):
        return (*super()._index_key(sig, codegen), SOURCES)


def kernel(function):
    """Compile ``function`` with ``numba.njit(parallel=True)`` and keep the result in the cache.

    For the entry points called from Python. What they call is plain ``@njit``: it is compiled into them.
    """
    return _cached(njit(parallel=True, cache=True)(function))


def serial_kernel(function):
    """The same without threads, for what is done sooner than a thread is woken."""
    return _cached(njit(cache=True)(function))


def _cached(dispatcher):
    dispatcher._cache = PackageCache(dispatcher.py_func)
    return dispatcher
