"""Writing files so that nobody ever meets half of one, not even after a power cut."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

__all__ = ["check_writable", "move_into_place", "write_all"]


def write_all(writers: Mapping[Path, str | bytes | Callable[[Path], object]]) -> list[Path]:
    """Write several files so that they change together.

    Each is written to a temporary file in the same folder; when all are done, and on the disk itself, the files
    are renamed into place. If anything fails before the renames (a full disk, Ctrl-C), the temporary files are removed
    and no file is changed. A file keeps its mode, and becomes writable by its owner; a link keeps what it points to.

    Parameters
    ----------
    writers : mapping from Path to str, bytes or callable
        For each file its content, text as UTF-8 (what has none, such as a byte of a file's name, by its number); or
        what writes it: called with the path of an empty file of this process's own, under a name that nobody can guess.
        Missing folders are made.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    OSError
        Naming the file that could not be written.
    """
    temporaries: list[tuple[Path, Path]] = []  # each with the file it becomes; by a link, two the same
    try:
        for path, write in writers.items():
            with _naming(path):
                path = path.resolve()  # what a link points to
                temporary = _reserved(path)
                temporaries.append((temporary, path))
                if callable(write):
                    write(temporary)
                else:
                    temporary.write_bytes(write.encode(errors="backslashreplace") if isinstance(write, str) else write)
                _flush(temporary)
        for temporary, path in temporaries:
            _rename(temporary, path)
    finally:
        for temporary, _ in temporaries:
            with contextlib.suppress(OSError):  # usually renamed by now; and the first error is the one to report
                temporary.unlink()
    return list(writers)


def check_writable(path: Path) -> None:
    """Find out before the work whether its result could be written, by making an empty temporary file and removing it.

    Missing folders are made. The disk may be full all the same when the work is done.

    Raises
    ------
    OSError
        As :func:`write_all` would.
    """
    with _naming(path):
        _reserved(path.resolve()).unlink(missing_ok=True)  # whoever clears unfinished files away may have been faster


def move_into_place(temporary: Path, path: Path) -> None:
    """Rename a whole file, or a folder of them, once its content is on the disk itself.

    A rename may reach the disk before what is renamed: then a power cut would leave an empty file of the right name.

    Raises
    ------
    OSError
        Naming ``path``.
    """
    with _naming(path):
        for file in (one for one in [temporary, *temporary.rglob("*")] if one.is_file()):
            _flush(file)
    _rename(temporary, path)


def _rename(temporary: Path, path: Path) -> None:
    with _naming(path):
        os.replace(temporary, path)
        if os.name != "nt":  # where no folder can be opened
            with contextlib.suppress(OSError):  # on file systems that cannot do this the file is there all the same
                _flush(path.parent)


def _reserved(path: Path) -> Path:
    """An empty temporary file in the folder of ``path``, newly made: never one that somebody has put there."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "a device or a pipe, which a rename would replace with a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    while True:
        temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.part")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            with contextlib.suppress(OSError):  # there is no such file yet, or its file system keeps no modes
                temporary.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWUSR)
            return temporary


def _flush(path: Path) -> None:
    """Have the operating system write what it still keeps in memory of a file, or of a folder's names."""
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A full disk is reported without a file name, and anything else under the temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot write: {error.strerror or error}", str(path)) from error
