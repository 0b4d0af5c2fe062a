"""Running a chapter elsewhere: links to Binder and Colab, and the cell that sets the package up there.

The repository's address stands in one place, ``Repository`` under ``[project.urls]`` in pyproject.toml. Where it is
not given there are no links and no cell.
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

__all__ = ["check_versions", "links", "repository", "set_up_cell"]

EXTRA = "notebooks"
BRANCH = "main"
SET_UP = """# Set-up where the package is not there yet, as on Colab; then whether what is there is new enough.
import importlib.util
import subprocess
import sys
import tempfile

if importlib.util.find_spec("linattn_ref") is None:
    clone = tempfile.mkdtemp(prefix="linattn_ref-")  # a folder that is nobody else's
    subprocess.run(["git", "clone", "--quiet", "--depth=1", "{address}", clone], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-e", clone + "[{extra}]"], check=True)
    sys.path.insert(0, clone)

from linattn_ref.lecture import elsewhere

elsewhere.check_versions()"""


def repository(root: Path) -> str:
    """The repository's address, without a slash at the end; "" where ``root``'s pyproject.toml gives none."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project.get("urls", {}).get("Repository", "")).rstrip("/").removesuffix(".git")


def links(address: str, notebook: str) -> dict[str, str]:
    """Where a notebook of the repository runs, by name of the place; empty unless the repository is on GitHub.

    Parameters
    ----------
    address : str
        As :func:`repository` gives it.
    notebook : str
        The notebook's path in the repository.
    """
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", address)
    if not match:
        return {}
    return {
        "Binder": f"https://mybinder.org/v2/gh/{match[1]}/{BRANCH}?urlpath=lab/tree/{notebook}",
        "Colab": f"https://colab.research.google.com/github/{match[1]}/blob/{BRANCH}/{notebook}",
    }


def set_up_cell(address: str) -> str:
    """The first cell of a chapter; "" without an address."""
    return SET_UP.format(address=address, extra=EXTRA) if address else ""


def check_versions() -> None:
    """See that the packages that the chapters need are there, and new enough.

    Raises
    ------
    RuntimeError
        What is missing or too old, and the command that mends it.
    """
    from packaging.requirements import Requirement

    wrong = []
    for needed in map(Requirement, metadata.requires("linattn-ref") or []):
        if needed.marker and not needed.marker.evaluate({"extra": EXTRA}):
            continue
        try:
            found = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{needed.name} is missing")
        else:
            if not needed.specifier.contains(found, prereleases=True):
                wrong.append(f"{needed.name} {found} is not {needed.specifier}")
    if wrong:
        raise RuntimeError(f"{'; '.join(wrong)}: pip install --upgrade 'linattn-ref[{EXTRA}]', and restart the kernel")
