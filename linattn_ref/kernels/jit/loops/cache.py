"""A compilation cache that notices a change in any file whose text is compiled in.

Numba's own cache looks only at the file that holds the kernel. A kernel here also contains code from `vector` and
`panel`, and numbers like ``TILE`` of `linattn_ref.attention.sparse.part`, so after an edit there it would go on running
the old machine code. The text of all these files is therefore part of the cache's key; the processor, its features and
Numba's version are already.

The cache lies where Numba finds a folder to write to: in ``NUMBA_CACHE_DIR`` if that is set, else in ``__pycache__``
beside these files, else in the user's cache directory. Where it finds none (an installation that only its owner may
write to, a container with a user who has no home), or where the disk is full, kernels are compiled without a cache, and
a warning says so. A cache that a power cut has left damaged is written anew.
"""

import contextlib
import functools
import hashlib
import warnings
from pathlib import Path

from numba import njit, typeof, types
from numba.core.caching import FunctionCache

from linattn_ref.attention.sparse import part
from linattn_ref.kernels.jit.loops.entrance import Entrance, Kernel
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.tasks import loop_of, publish


def source_files():
    """The files whose text may be compiled in: all loops, and what they take from outside."""
    return (*sorted(Path(__file__).parent.rglob("*.py")), Path(part.__file__))


def _digest(files):
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


SOURCES = _digest(source_files())


class PackageCache(FunctionCache):
    """Numba's cache of one function, with `SOURCES` in the key, and what of it is kept."""

    def __init__(self, function, word):
        super().__init__(function)
        self.word = word

    def _index_key(self, sig, codegen):
        return (*super()._index_key(sig, codegen), SOURCES, self.word)

    def load_overload(self, sig, target_context):
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # a damaged pickle may raise anything
            _say(f"compiled kernels in {self.cache_path} cannot be read ({error!r}): they are compiled anew")
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig, data):
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _say(f"compiled kernels cannot be kept in {self.cache_path} ({error.strerror or error}): {WITHOUT}")


WITHOUT = (
    "each process compiles those that it calls, which takes seconds or minutes;"
    " the environment variable NUMBA_CACHE_DIR may name a folder that can be written to"
)


@functools.cache  # once, not for each kernel
def _say(what):
    warnings.warn(f"linattn_ref.kernels.jit: {what}", RuntimeWarning, stacklevel=2)


def kernel(function=None, **said):
    """Compile ``function(task, ...)``, and keep the result in the cache; it is called as ``function(tasks, ...)``.

    Tasks count from 0 on and are shared out among Numba's threads. For the entry points called from Python. What they
    call is `inner`: it is compiled into them. The axes of arrays are ``said`` as in `entrance`.
    """
    if function is None:
        return functools.partial(kernel, **said)
    entrance = Entrance(function, said)
    task = _kept(inner(function), function, "task")
    loops = (_kept(njit(parallel=parallel)(loop_of(task)), function, parallel) for parallel in (True, False))
    return Kernel(task, *(_behind(entrance, loop, task) for loop in loops), entrance)


def serial_kernel(function=None, *, written=None, **said):
    """``function`` itself, without threads, for what is done sooner than a thread is woken.

    With the names of what it has ``written``, it takes arrays of any layout: those with gaps, or not to be written to,
    are copied first, and what is written is copied back. Calls with other arrays do not pay for this.
    """
    if function is None:
        return functools.partial(serial_kernel, written=written, **said)
    return _behind(Entrance(function, said, written), _kept(njit(function), function, False))


def _behind(entrance, dispatcher, task=None):
    """The dispatcher, which looks at types that are new; those of a loop over tasks are the task's as well."""
    compile_for = dispatcher._compile_for_args  # Numba calls it for types that it has no machine code for

    def through_copies(*arguments):
        return entrance.call_with_copies(dispatcher, arguments)

    def check_then_compile(*given):  # Numba calls what this returns
        arguments = given if task is None else (given[0], *given[1])
        entrance.check_types(arguments)
        if task is not None:
            publish(task, (types.intp, *map(typeof, given[1])))
        return through_copies if entrance.wants_copies(arguments) else compile_for(*given)

    dispatcher._compile_for_args = check_then_compile
    return dispatcher


def _kept(dispatcher, function, word):
    """The dispatcher, with a cache under the name of ``function`` and this word."""
    try:
        dispatcher._cache = PackageCache(function, word)
    except RuntimeError:  # no folder that can be written to
        _say(f"no folder for compiled kernels can be written to: {WITHOUT}")
    return dispatcher
