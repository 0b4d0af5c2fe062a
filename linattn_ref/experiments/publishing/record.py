"""Saving a figure with everything that made it: the drawing three times, and the numbers next to it.

``write`` makes ``name.svg``, ``name.png``, ``name.pdf`` and ``name.json``. The same results on the same machine with
the same versions give the same bytes: no date is written anywhere, and the identifiers in the SVG are fixed.
"""

import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import linattn_ref
from linattn_ref.atomic import write_all

__all__ = ["document", "machine", "read", "versions", "write"]

# What makes each format carry a date or a random identifier, switched off.
METADATA: dict[str, dict[str, None]] = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}
# Text as outlines in the SVG (it looks the same without the font), as a font in the PDF (it can be searched).
PNG_WIDTH = 1600  # pixels, for a figure of any size in inches
SAVING: Any = {"svg.hashsalt": "linattn_ref", "svg.fonttype": "path", "pdf.fonttype": 42}


def document(
    results: Any, name: str, *, command: str, seed: int | None, caption: str = "", **more: Any
) -> dict[str, Any]:
    """The record of a figure: all numbers that it shows, and what they were made with.

    Parameters
    ----------
    results : mapping, NamedTuple, dataclass, sequence, array or number
        As ``compute`` returned them; see `plain` for what becomes of them.
    name : str
        Of the figure's files.
    command : str
        The command line that makes the figure again.
    seed : int or None
        The seed of the random generator; None where nothing is drawn at random.
    caption : str
        What the figure shows, in a sentence or two: the gallery prints it.
    **more
        To be kept with the numbers, such as the hashes of model and text.
    """
    about = {"name": name, "caption": caption, "command": command, "seed": seed, **plain(more)}
    return {**about, "versions": versions(), "machine": machine(), "results": plain(results)}


def write(figure: Figure, document: Mapping[str, Any], out_dir: str | os.PathLike[str]) -> list[Path]:
    """Write the figure as SVG, PNG and PDF and its record as JSON, all of them or none.

    Parameters
    ----------
    figure : Figure
        To be saved inside the `style.use` in which it was drawn: matplotlib makes some of its parts only now.
    document : mapping
        The `document`.
    out_dir : path
        Made if it is not there.

    Returns
    -------
    list of Path
        The four files.

    Raises
    ------
    OSError
        A file cannot be written (full disk, no permission); none of the four is then changed.
    """
    out = Path(out_dir) / document["name"]
    writers: dict[Path, bytes | Callable[[Path], object]] = {
        out.with_name(f"{out.name}.{format}"): partial(_draw, figure, format) for format in METADATA
    }
    writers[out.with_name(f"{out.name}.json")] = (json_text(dict(document)) + "\n").encode(errors="backslashreplace")
    return write_all(writers)


def read(path: Path) -> dict[str, Any]:
    """The `document` in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def _draw(figure: Figure, format: str, path: Path) -> None:
    with matplotlib.rc_context(SAVING):
        figure.savefig(path, format=format, dpi=PNG_WIDTH / figure.get_figwidth(), metadata=METADATA[format])


def plain(value: Any) -> Any:
    """The value in JSON's own types.

    A NamedTuple becomes a mapping by field name, an array nested lists, a path a string. A float32 is
    written with the digits that tell it from its neighbours; NaN and the infinities, which JSON has not, become
    ``"nan"``, ``"inf"`` and ``"-inf"``, which ``float`` reads back.

    Raises
    ------
    TypeError
        Anything else: results must be numbers, not objects.
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.ndim else plain(value[()])
    if isinstance(value, (float, np.floating)):
        return float(str(value)) if math.isfinite(value) else str(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"results must hold numbers, strings and arrays, got {type(value).__name__}")


def json_text(value: Any, indent: str = "") -> str:
    """JSON with a line for each key and each row of numbers, so that a person can read it and a diff stays short.

    ``json.dumps`` has one line for all, or one for each number.
    """
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        body = (f"{deeper}{json.dumps(str(key))}: {json_text(item, deeper)}" for key, item in value.items())
        return "{\n" + ",\n".join(body) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value):
        return "[\n" + ",\n".join(deeper + json_text(item, deeper) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def versions(packages: Sequence[str] = ("numpy", "scipy", "numba", "matplotlib")) -> dict[str, str]:
    """The versions of Python, this package and the packages that the numbers depend on."""
    found = {"python": platform.python_version(), "linattn_ref": linattn_ref.__version__}
    return found | {name: importlib.metadata.version(name) for name in packages}


def machine() -> dict[str, Any]:
    """The processor and the linear algebra libraries: what the last bits of the numbers depend on, and the times."""
    import scipy.linalg  # noqa: F401  # loads SciPy's own BLAS, so that it is listed whatever ran before
    from threadpoolctl import threadpool_info

    libraries = (library for library in threadpool_info() if library["user_api"] == "blas")
    blas = {f"{lib['internal_api']} {lib['version']} ({lib.get('architecture', '?')})" for lib in libraries}
    return {"processor": _processor(), "cores": os.cpu_count(), "blas": sorted(blas)}


def _processor() -> str:
    """The processor's name, family and widest vectors; Python's own answer is often empty on Linux.

    py-cpuinfo has them too, and would be a dependency for these lines.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    said = {key.strip(): value.strip() for key, found, value in (line.partition(":") for line in lines) if found}
    if "model name" not in said:
        return platform.processor() or platform.machine()
    wide = next((f", {flag}" for flag in ("avx512f", "avx2", "avx") if flag in said.get("flags", "").split()), "")
    return f"{said['model name']} (family {said.get('cpu family', '?')}{wide})"
