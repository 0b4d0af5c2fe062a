"""Writing files so that nobody ever meets half of one."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["write_all"]


def write_all(writers: Mapping[Path, Callable[[Path], object]]) -> list[Path]:
    """Write several files so that they change together.

    Each ``writer`` writes to a temporary path beside its file; when all are done, the files are renamed into place. If
    anything fails before the renames (a full disk, Ctrl-C), the temporary files are removed and no file is changed.

    Parameters
    ----------
    writers : mapping from Path to callable
        For each file, what writes it: called with the temporary path. Missing folders are made.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    OSError
        Naming the file that could not be written.
    """
    temporaries = {path: path.with_name(f".{path.name}.{os.getpid()}.part") for path in writers}
    try:
        for path, write in writers.items():
            _write(temporaries[path], write, path)
        for path, temporary in temporaries.items():
            os.replace(temporary, path)
    finally:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):  # not there, mostly; and what went wrong first is to be told
                temporary.unlink()
    return list(writers)


def _write(temporary: Path, write: Callable[[Path], object], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
    except OSError as error:  # a full disk is reported without a file name, any other under the temporary one
        raise type(error)(error.errno, f"cannot write: {error.strerror or error}", str(path)) from error
