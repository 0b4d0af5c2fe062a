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
SOURCE = re.compile(
    r"figure:(?P<figure>\w+)(?:#(?P<panels>\d+(?:,\d+)*))?"
    r"|notebook:(?P<chapter>\d\d)#(?P<which>\d+)"
    r"|file:(?P<file>.+\.(?:png|jpe?g))"
)


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
    found = SOURCE.fullmatch(source)
    if found and found["figure"] in {*FIGURES, *BENCHES, *COMPILED}:
        return _figure(found["figure"], [int(panel) for panel in re.findall(r"\d+", found["panels"] or "")], root)
    if found and found["chapter"]:
        return _of_chapter(found["chapter"], int(found["which"]), root / "notebooks")
    if found and found["file"]:
        return _of_file(root / "notebooks" / "slides" / found["file"])
    expected = "figure:NAME, figure:NAME#PANEL, notebook:NN#WHICH, file:NAME.png or file:NAME.jpg"
    raise ValueError(f"no picture {source!r}: expected {expected}")


def _figure(name: str, panels: list[int], root: Path) -> Drawn:
    document = json.loads((root / "figures" / f"{name}.json").read_text(encoding="utf-8"))
    with style.use("projector"), matplotlib.rc_context({"svg.hashsalt": name}):
        figure = module_of(name).draw(results_of(name, document))
        box = _box_of(figure, panels, name)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", bbox_inches=box, metadata={"Date": None})
    drawing = re.sub(rb"<!--.*?-->", b"", buffer.getvalue())
    return Drawn(_address("svg+xml", drawing), box.width / box.height)


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
    cells = [cell for path in notebooks.glob(f"{chapter}_*.ipynb") for cell in json.loads(path.read_bytes())["cells"]]
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    found = [data["image/png"] for data in shown if "image/png" in data]
    if not 1 <= which <= len(found):
        raise ValueError(f"chapter {chapter} has {len(found)} pictures, counted from 1; got {which}")
    return _as_it_is("png", base64.b64decode(found[which - 1]))


def _of_file(path: Path) -> Drawn:
    if not path.is_file():
        raise ValueError(f"no picture {path.name!r} in {path.parent}")
    return _as_it_is("png" if path.suffix == ".png" else "jpeg", path.read_bytes())


def _as_it_is(kind: str, content: bytes) -> Drawn:
    height, width = matplotlib.image.imread(io.BytesIO(content), format=kind).shape[:2]
    return Drawn(_address(kind, content), width / height)


def _address(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
