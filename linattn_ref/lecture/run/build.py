"""Writes beside the pages what runs in them: Pyodide, this package, the scripts, and a pretrained network."""

import gzip
import importlib.metadata
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np

from linattn_ref.atomic import write_all
from linattn_ref.data import fetch, npm, pyodide, splits, text
from linattn_ref.lecture.run.fetched import NETWORK, REVIEWS, only
from linattn_ref.models import bert
from linattn_ref.models.bert import rounded
from linattn_ref.telling import Say, silent

__all__ = ["CHAPTERS", "FOLDER", "NATIVE", "foot", "is_checked", "make", "page", "page_foot", "sources"]

HERE = Path(__file__).parent
# Those whose cells run in a browser, all but cells marked as NATIVE.
CHAPTERS = tuple(f"{n:02}" for n in range(1, 26))
WITH_NETWORK = ("02", "03", "04")  # whose pages load the pretrained network and reviews too, where they are among these
WITH_REVIEWS = ("17", "18")  # whose pages load reviews
FOLDER = "_static/run"  # in the site
NATIVE = "native"  # a cell's metadata: why it does not run in a browser
OF_CELLS = ("joblib", "matplotlib", "numpy", "scipy", "threadpoolctl")
# What runs in a page, and what runs it
PACKAGES = {"pages": ("numpy",), "sentence": ("numpy", "scipy")}
PACKAGES |= dict.fromkeys(("cells", "network", "reviews"), OF_CELLS)
# Modules whose pages are checked, if they have a gradient.
CHECKED = re.compile(r"linattn_ref\.attention\.(?:sparse\.)?\w+")
PURE = ("markdown-it-py", "mdurl", "mdit-py-plugins")  # copied from where this runs, since Pyodide has no wheel of them
COPIED = {"cells": ("cells.js", "check.js", "cells.css"), "sentence": ("sentence.js", "sentence.css")}  # and kernel.js
SOURCES, WEIGHTS, TEXTS = "sources.zip", "encoder.zip", "texts.zip"
BESIDE = {"network": (WEIGHTS, TEXTS), "reviews": (TEXTS,), "sentence": (WEIGHTS,)}  # what they take beside SOURCES
FIRST = 0x3400  # the letter for 0; with all others up to 0xB3FF, it needs no escape in a script
DATE = (1980, 1, 1, 0, 0, 0)  # of each file in an archive, so that it is the same bytes every time
READ = ((8, 0), (8, np.random.SeedSequence(0).spawn(1)[0]))  # sentences of 512 tokens, and the seed they are drawn by
LEFT_OUT = ("*.pyc", "*.nbi", "*.nbc", "digits_softmax.safetensors")


def make(root: Path, out: Path, *, cells: bool = True, sentence: bool = False, say: Say = silent) -> None:
    """Write into the folder ``out`` what chapters' ``cells`` and pages need, and what one's own ``sentence`` needs.

    Raises
    ------
    FetchError
        Pyodide cannot be had, or the pretrained network.
    """
    kinds = [*dict.fromkeys(("cells", "pages", *map(_kind, CHAPTERS)))] * cells + ["sentence"] * sentence
    beside = {name for kind in kinds for name in BESIDE.get(kind, ())}
    lock = pyodide.locked([name for kind in kinds for name in PACKAGES[kind]])
    found = pyodide.packages({str(each["file_name"]): str(each["sha256"]) for each in lock.values()}, progress=say)
    files = {name: npm.read(pyodide.ENGINE, name) for name in pyodide.CORE}
    files |= {path.name: path.read_bytes() for path in found}
    every = json.loads(npm.read(pyodide.ENGINE, "pyodide-lock.json"))
    files["lock.json"] = json.dumps({"info": every["info"], "packages": lock}).encode()
    files[SOURCES] = sources(root)
    if WEIGHTS in beside:
        files[WEIGHTS] = _zipped({NETWORK: _network(say)})
    if TEXTS in beside:
        files[TEXTS] = _zipped({REVIEWS: _reviews(say)})
    scripts = {f"{name}.js": _script(name, content) for name, content in sorted(files.items())}
    needs = {}
    for kind in kinds:
        archives = [SOURCES, *BESIDE.get(kind, ())]
        its = {str(each["file_name"]) for each in pyodide.locked(PACKAGES[kind]).values()}
        listed = sorted({*pyodide.CORE, "lock.json", *archives, *its})
        needs[kind] = {"packages": PACKAGES[kind], "archives": archives, "files": listed}
    sizes = {name: len(scripts[f"{name}.js"]) for name in files}
    about = {"files": sizes, "needs": needs, "worker": (HERE / "worker.js").read_text(encoding="utf-8")}
    scripts["about.js"] = f"const ABOUT = {json.dumps(about)};\n".encode()
    copied = ["kernel.js", *COPIED["cells"] * cells, *COPIED["sentence"] * sentence]
    scripts |= {name: (HERE / name).read_bytes() for name in copied}
    write_all({out / name: content for name, content in scripts.items()})


def _script(name: str, content: bytes) -> bytes:
    """A file for the page, compressed: a script in UTF-16, of whose 16 bits a letter carries 15; of base64, 6 in 8."""
    compressed = gzip.compress(content, 9, mtime=0)
    bits = np.unpackbits(np.frombuffer(compressed + bytes(-len(compressed) % 15), np.uint8)).reshape(-1, 15)
    numbers = np.packbits(np.pad(bits, ((0, 0), (1, 0))), axis=-1).view(">u2")
    letters = (numbers + FIRST).astype("<u2").tobytes()
    start, end = f'\ufeffgiven({json.dumps(name)}, {len(compressed)}, "', '");\n'
    return start.encode("utf-16-le") + letters + end.encode("utf-16-le")


def _network(say: Say) -> bytes:
    """The pretrained network, rounded."""
    model = bert.load(fetch.open_content(fetch.MODEL, progress=say))
    assert model.tokenizer is not None
    numbers = model.tokenizer.get_vocab()
    return rounded.pack(model, sorted(numbers, key=numbers.__getitem__))


def _reviews(say: Say) -> bytes:
    """The short reviews, and of the long ones those that chapters read on their way to sentences of 512 tokens."""
    place = fetch.open_content(fetch.REVIEWS, progress=say)
    model = bert.load(fetch.open_content(fetch.MODEL, progress=say))
    labelled = [(source, splits.read_labelled(place, source)) for source in ("imdb", "rotten_tomatoes")]
    documents, seen = labelled[0][1].texts, set[str]()

    class Noting:
        def encode(self, document: str) -> Any:
            seen.add(document)
            return model.tokenizer.encode(document)  # type: ignore[union-attr]

        def __getattr__(self, name: str) -> Any:
            return getattr(model.tokenizer, name)

    for count, seed in READ:
        rng, tokenizer = np.random.default_rng(seed), cast("Any", Noting())
        reviews = text.Text("", documents, "")
        text.choose_sentences(reviews, tokenizer, count=count, length=512, rng=rng)
    rows = ((each, int(label), name) for name, found in labelled for each, label in zip(*found[1:3], strict=True))
    return only(lambda source, i: source != "imdb" or documents[i] in seen, rows)


def sources(root: Path) -> bytes:
    """An archive of the checkout ``root`` as chapters need it, with the packages in ``PURE``."""
    files = (path for path in (root / "linattn_ref").rglob("*") if not any(map(path.match, LEFT_OUT)))
    figures = [*(root / "figures").glob("*.json"), *(root / "figures" / "records").rglob("*.*")]
    held = {path.relative_to(root).as_posix(): path for path in (*files, *figures) if path.is_file()}
    held |= {name: root / name for name in ("pyproject.toml", "notebooks/README.md")}
    for name in PURE:
        for file in importlib.metadata.files(name) or []:
            if file.suffix == ".py" or file.name.startswith("LICENSE"):
                held[file.as_posix()] = Path(str(file.locate()))
    return _zipped({name: path.read_bytes() for name, path in held.items()})


def _zipped(held: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        for name, content in sorted(held.items()):
            made.writestr(zipfile.ZipInfo(name, DATE), content)
    return archive.getvalue()


def foot(chapter: str, cells: list[dict[str, Any]]) -> str:
    """HTML for the end of a chapter's page: what makes its cells run.

    ``cells`` are the notebook's. Those with ``NATIVE`` in their metadata do not run; the page says why.
    """
    reasons = [cell["metadata"].get(NATIVE, "") for cell in cells if cell["cell_type"] == "code"]
    return _foot("cells", {"kind": _kind(chapter[:2]), "reasons": reasons})


def _kind(number: str) -> str:
    """Which of the keys of ``PACKAGES`` the page of a chapter is."""
    return "network" if number in WITH_NETWORK else "reviews" if number in WITH_REVIEWS else "cells"


def is_checked(module: str) -> bool:
    """Whether the page of this module can be changed and its gradient be checked."""
    page = importlib.import_module(module)
    return bool(CHECKED.fullmatch(module)) and hasattr(page, "forward") and hasattr(page, "backward")


def page_foot(module: str) -> str:
    """HTML for the end of a module's page: what makes its code one that can be changed and checked."""
    return _foot("check", module)


def _foot(script: str, about: Any) -> str:
    """``script`` reads what the page is from the element ``run-data``.

    There is no Content-Security-Policy: browsers do not agree on what 'self' is for a page that was opened from a disk.
    A server that sends one has to allow ``script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval' blob:``.
    """
    listed = json.dumps(about).replace("<", "\\u003c")
    scripts = "".join(f'<script src="../{FOLDER}/{name}.js"></script>\n' for name in ("about", "kernel", script))
    style = f'<link rel="stylesheet" href="../{FOLDER}/cells.css">'
    return f'<script type="application/json" id="run-data">{listed}</script>\n{style}\n{scripts}'


def page() -> str:
    """HTML of the page of one's own sentence, below its title."""
    return (HERE / "sentence.html").read_text(encoding="utf-8").replace("PLACE", FOLDER)
