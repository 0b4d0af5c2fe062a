"""Pictures of a slide: a figure drawn again from its record in the projector's style, a chapter's, or a file.

``figure:NAME`` is a whole figure, ``figure:NAME#0`` its first panel alone, ``figure:NAME#0,2`` the part of it that two
panels take. ``notebook:NN#2`` is the second picture in the executed chapter NN. ``file:NAME.png``, or ``.jpg``, is the
lecturer's own, next to the decks; the deck has it inside.
"""

import base64
import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.image
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.publishing.catalogue import BENCHES, COMPILED, FIGURES, module_of, results_of

__all__ = ["Drawn", "of"]

PAD = 0.12  # inches around a panel
FILES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg"}


class Drawn(NamedTuple):
    address: str  # a data: address, which needs no request
    ratio: float  # width over height


@cache
def of(source: str, root: Path) -> Drawn:
    """The picture that a deck names; ``root`` is the checkout.

    Raises
    ------
    ValueError
        A name, panel or number that there is not.
    """
    kind, _, rest = source.partition(":")
    name, _, which = rest.partition("#")
    if kind == "figure" and name in {*FIGURES, *BENCHES, *COMPILED}:
        return _figure(name, [int(panel) for panel in which.split(",") if panel], root / "figures")
    if kind == "notebook" and which.isdecimal():
        return _of_chapter(name, int(which), root / "notebooks")
    if kind == "file" and Path(rest).suffix in FILES:
        return _of_file(root / "notebooks" / "slides" / rest)
    expected = "figure:NAME, figure:NAME#PANEL, notebook:NN#WHICH, file:NAME.png or file:NAME.jpg"
    raise ValueError(f"no picture {source!r}: expected {expected}")


def _figure(name: str, panels: list[int], figures: Path) -> Drawn:
    module = module_of(name)
    document = json.loads((figures / f"{name}.json").read_text(encoding="utf-8"))
    results = results_of(name, document)
    with style.use("projector"), matplotlib.rc_context({"svg.hashsalt": name}):
        figure = module.draw(results)
        box = _box_of(figure, panels, name)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", bbox_inches=box, metadata={"Date": None})
    return Drawn(_address("svg+xml", buffer.getvalue()), box.width / box.height)


def _box_of(figure: Figure, panels: list[int], name: str) -> Bbox:
    """Of the whole figure, or of some panels alone with all that is written at them, in inches."""
    if panels and max(panels) >= len(figure.axes):
        raise ValueError(f"figure {name} has {len(figure.axes)} panels, counted from 0; got {panels}")
    chosen: list[Any] = [figure.axes[panel] for panel in panels]
    for legend in figure.legends if panels else ():  # of all panels together
        legend.set_visible(False)
    for axes in chosen:  # what panels share is written at some of them only
        axes.tick_params(labelbottom=True, labelleft=True)
        axes.set_xlabel(next(filter(None, (one.get_xlabel() for one in _sharing(axes, "x"))), ""))
        axes.set_ylabel(next(filter(None, (one.get_ylabel() for one in _sharing(axes, "y"))), ""))
    figure.set_dpi(72)  # as an SVG is drawn: letters and lines have their places then
    figure.draw_without_rendering()  # lays it out
    if not panels:
        return figure.get_tightbbox().padded(PAD)
    figure.set_layout_engine("none")  # each panel stays where it is when the others go
    for other in {*figure.axes} - {*chosen}:
        other.set_visible(False)
    boxes = [axes.get_tightbbox() for axes in chosen]
    return Bbox.union(boxes).transformed(figure.dpi_scale_trans.inverted()).padded(PAD)


def _sharing(axes: Any, side: str) -> list[Any]:
    """The panel itself, and then those with which it shares an axis."""
    shared = axes.get_shared_x_axes() if side == "x" else axes.get_shared_y_axes()
    return [axes, *(one for one in shared.get_siblings(axes) if one is not axes)]


def _of_chapter(chapter: str, which: int, notebooks: Path) -> Drawn:
    (path,) = notebooks.glob(f"{chapter}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    found = [data["image/png"] for data in shown if "image/png" in data]
    if not 1 <= which <= len(found):
        raise ValueError(f"{path.name} has {len(found)} pictures, counted from 1; got {which}")
    png = base64.b64decode(found[which - 1])
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))  # of the header chunk
    return Drawn(_address("png", png), width / height)


def _of_file(path: Path) -> Drawn:
    if not path.is_file():
        raise ValueError(f"no picture {path.name!r} in {path.parent}")
    height, width = matplotlib.image.imread(path).shape[:2]
    return Drawn(_address(FILES[path.suffix], path.read_bytes()), width / height)


def _address(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(re.sub(rb'<!--.*?-->', b'', content)).decode()}"
