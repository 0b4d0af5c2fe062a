"""Writes beside the pages what their cells run on: Pyodide, this package, the scripts."""

import base64
import gzip
import importlib
import importlib.metadata
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from linattn_ref.atomic import write_all
from linattn_ref.data import npm, pyodide

__all__ = ["CHAPTERS", "FOLDER", "NATIVE", "foot", "is_checked", "make", "page_foot", "sources"]

HERE = Path(__file__).parent
CHAPTERS = ("05", "06", "13", "19")  # whose cells run in a browser, all but those marked as NATIVE
FOLDER = "_static/run"  # in the site
NATIVE = "native"  # a cell's metadata: why it does not run in a browser
PACKAGES = {"cells": ("joblib", "matplotlib", "numpy", "scipy", "threadpoolctl"), "pages": ("numpy",)}  # what runs them
CHECKED = re.compile(
    r"linattn_ref\.attention\.(?:sparse\.)?\w+"
)  # modules whose pages are checked, if they have a gradient
PURE = ("markdown-it-py", "mdurl", "mdit-py-plugins")  # copied from where this runs, since Pyodide has no wheel of them
COPIED = ("kernel.js", "cells.js", "check.js", "cells.css")
SOURCES = "sources.zip"
DATE = (1980, 1, 1, 0, 0, 0)  # of each file in an archive, so that it is the same bytes every time
LEFT_OUT = {".pyc", ".nbi", ".nbc", ".safetensors"}


def make(root: Path, out: Path, *, say: Callable[[str], object] = lambda line: None) -> None:
    """Write everything into the folder ``out``.

    Raises
    ------
    FetchError
        Pyodide cannot be had.
    """
    lock = pyodide.locked(PACKAGES["cells"])
    found = pyodide.packages({str(each["file_name"]): str(each["sha256"]) for each in lock.values()}, progress=say)
    files = {name: npm.read(pyodide.ENGINE, name) for name in pyodide.CORE}
    files |= {path.name: path.read_bytes() for path in found}
    every = json.loads(npm.read(pyodide.ENGINE, "pyodide-lock.json"))
    files["lock.json"] = json.dumps({"info": every["info"], "packages": lock}).encode()
    files[SOURCES] = sources(root)
    scripts = {name: base64.b64encode(_smaller(content)).decode() for name, content in sorted(files.items())}
    listed = {name: len(text) for name, text in scripts.items()}
    worker = (HERE / "worker.js").read_text(encoding="utf-8")
    alone = {name for name in files if name not in {path.name for path in found}}
    needs = {}
    for kind, wanted in PACKAGES.items():
        packed = {str(each["file_name"]) for each in pyodide.locked(wanted).values()}
        needs[kind] = {"packages": wanted, "files": sorted(alone | packed)}
    about = {"files": listed, "needs": needs, "sources": SOURCES, "worker": worker}
    texts = {f"{name}.js": f"given({json.dumps(name)}, {json.dumps(text)});\n" for name, text in scripts.items()}
    texts["about.js"] = f"const ABOUT = {json.dumps(about)};\n"
    texts |= {name: (HERE / name).read_text(encoding="utf-8") for name in COPIED}
    write_all({out / name: partial(Path.write_text, data=text, encoding="utf-8") for name, text in texts.items()})


def _smaller(content: bytes) -> bytes:
    """Compressed, as all of them are for the page."""
    return gzip.compress(content, 9, mtime=0)


def sources(root: Path) -> bytes:
    """An archive of the checkout ``root`` as chapters need it, with the packages in ``PURE``."""
    held = {path.relative_to(root).as_posix(): path for path in _files(root / "linattn_ref")}
    held |= {path.relative_to(root).as_posix(): path for path in (root / "figures").glob("*.json")}
    held |= {name: root / name for name in ("pyproject.toml", "notebooks/README.md")}
    for name in PURE:
        for file in importlib.metadata.files(name) or []:
            if file.suffix == ".py" or file.name.startswith("LICENSE"):
                held[file.as_posix()] = Path(str(file.locate()))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        for name, path in sorted(held.items()):
            made.writestr(zipfile.ZipInfo(name, DATE), path.read_bytes())
    return archive.getvalue()


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.suffix not in LEFT_OUT)


def foot(cells: list[dict[str, Any]]) -> str:
    """HTML for the end of a chapter's page: what makes its cells run.

    ``cells`` are the notebook's. Those with ``NATIVE`` in their metadata do not run; the page says why.
    """
    return _foot("cells", [cell["metadata"].get(NATIVE, "") for cell in cells if cell["cell_type"] == "code"])


def is_checked(module: str) -> bool:
    """Whether the page of this module can be changed and its gradient be checked."""
    page = importlib.import_module(module)
    return bool(CHECKED.fullmatch(module)) and hasattr(page, "forward") and hasattr(page, "backward")


def page_foot(module: str) -> str:
    """HTML for the end of a module's page: what makes its code one that can be changed and checked."""
    return _foot("check", module)


def _foot(script: str, about: Any) -> str:
    """``script`` reads what the page is from the element ``run-data``."""
    listed = json.dumps(about).replace("<", "\\u003c")
    scripts = "".join(f'<script src="../{FOLDER}/{name}.js"></script>\n' for name in ("about", "kernel", script))
    style = f'<link rel="stylesheet" href="../{FOLDER}/cells.css">'
    return f'<script type="application/json" id="run-data">{listed}</script>\n{style}\n{scripts}'
