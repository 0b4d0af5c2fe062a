"""Writing files so that nobody ever meets half of one."""

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["check_writable", "write_all"]


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
    temporaries = {path: _beside(path) for path in writers}
    try:
        for path, write in writers.items():
            _write(temporaries[path], write, path)
        for path, temporary in temporaries.items():
            _rename(temporary, path)
    finally:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):  # not there, mostly; and what went wrong first is to be told
                temporary.unlink()
    return list(writers)


def check_writable(path: Path) -> None:
    """Find out before the work whether its result could be written: an empty temporary file is, and is removed.

    Missing folders are made. The disk may be full all the same when the work is done.

    Raises
    ------
    OSError
        As :func:`write_all` would.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"cannot write: {os.strerror(errno.EISDIR)}", str(path))
    temporary = _beside(path)
    _write(temporary, Path.touch, path)
    temporary.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _write(temporary: Path, write: Callable[[Path], object], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
    except OSError as error:  # a full disk is reported without a file name, any other under the temporary one
        raise _told(error, path) from error


def _rename(temporary: Path, path: Path) -> None:
    try:
        os.replace(temporary, path)
    except OSError as error:  # a folder of that name
        raise _told(error, path) from error


def _told(error: OSError, path: Path) -> OSError:
    return type(error)(error.errno, f"cannot write: {error.strerror or error}", str(path))
