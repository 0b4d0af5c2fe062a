"""A workspace for training: the C library keeps what is freed, so that no step pays for fresh memory.

    with workspace():
        for step in range(steps): ...

Every step of training makes arrays of the same shapes. Outside a workspace the C library returns the memory of a large
array to the system as soon as it is freed, and asks for it anew in the next step; the system then sets every page of it
to zero first, which takes an eighth of a step. Inside, freed memory stays with the process and is returned at the end.
Nothing else changes: no number, no argument, no array that somebody holds.

The settings are those of ``mallopt`` in glibc, and so of the whole process. Without glibc a workspace does nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["workspace"]

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # of mallopt(3)
KEPT = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1}
USUAL = {MMAP_MAX: 65536, MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26}  # where glibc's own adjustment ends

_depth = 0  # workspaces within workspaces: the outermost returns the memory


@contextmanager
def workspace() -> Iterator[None]:
    """Keep freed memory within the block, and return it to the system at its end."""
    global _depth
    library = _glibc()
    _depth += 1
    try:
        if library is not None and _depth == 1:
            for option, value in KEPT.items():
                library.mallopt(option, value)
        yield
    finally:
        _depth -= 1
        if library is not None and _depth == 0:
            for option, value in USUAL.items():
                library.mallopt(option, value)
            library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows has no such name
        return None
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
