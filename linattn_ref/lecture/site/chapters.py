"""A chapter's page: the executed notebook, what it leads to, and its sliders, each with a question before it."""

import html
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from linattn_ref.experiments.publishing import chapter
from linattn_ref.lecture import elsewhere
from linattn_ref.lecture.live import frames
from linattn_ref.lecture.run import build as run
from linattn_ref.lecture.site import sections
from linattn_ref.lecture.site.markdown import raw, save
from linattn_ref.lecture.slides import deck

__all__ = ["Extras", "page_of", "write"]

SOURCE_FILE = re.compile(r"\(\.\./linattn_ref/((?:attention|nn)/[\w/]+)\.py\)")  # a link to it


class Extras(NamedTuple):
    """Pages that others make, and that stand beside Sphinx's: from their addresses to their titles."""

    slides: dict[str, str]  # by the name of the chapter; "00_course"
    live: dict[str, str]
    sliders: dict[str, str]  # from a chapter's number to the address
    run: bool = False  # whether cells can be run
    sentence: bool = False  # whether there is a page for a reader's own text


def write(root: Path, folder: Path, name: str, literate: set[str], extras: Extras) -> None:
    """Write the executed notebook, with a line of links below its title.

    Parameters
    ----------
    root, folder : Path
        The checkout, and where chapters are written.
    name : str
        The notebook's, without ``.ipynb``.
    literate : set of str
        Modules that have a page with formulas beside their code.
    extras : Extras
    """
    path = f"notebooks/{name}.ipynb"
    number, notebook = name[:2], json.loads((root / path).read_text(encoding="utf-8"))
    downloads = _downloads(root, folder, name, notebook)
    cells, modules = notebook["cells"], dict[str, None]()  # in the order in which the chapter shows them
    for cell in cells:
        cell["source"] = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            cell["source"] = cell["source"].replace("(README.md)", "(course.md)")
        for output in cell.get("outputs", []):
            data, about = output.get("data", {}), output.get("metadata", {})
            names = about.get(chapter.SOURCE_OF, {}).get("names", [])
            modules |= dict.fromkeys(each.partition(":")[0] for each in names)
            if "image/png" in data:  # MyST-NB heeds what is said of the cell, which has one picture
                cell["metadata"]["mystnb"] = {"image": {"alt": about["image/png"]["alt"]}}
            if "text/markdown" in data:
                shown = "".join(data["text/markdown"])
                data["text/markdown"] = SOURCE_FILE.sub(lambda file: f"(../code/{file[1].replace('/', '.')}.md)", shown)
    links = [f"[{module.rpartition('.')[2]}](../{page_of(module)}.md)" for module in modules if module in literate]
    line = [f"Beside the code: {', '.join(links)}"] if links else []
    if name in extras.slides:
        line.append(f'<a href="../{extras.slides[name]}">Slides</a>')
        slides = deck.read(root / "notebooks" / "slides" / f"{name}.md").slides
        sections.link_slides(cells, slides, f"../{extras.slides[name]}")
    if number in extras.sliders:
        line.append(f'<a href="../{extras.sliders[number]}">Sliders</a>')
        cells = _with_sliders(cells, number, extras.sliders[number])
    places = elsewhere.links(elsewhere.repository(root), path)
    line += [f'<a href="{address}">{place}</a>' for place, address in places.items()]
    line.append(f"Download: {', '.join(downloads)}")
    heading, _, rest = cells[0]["source"].partition("\n")
    cells[0]["source"] = f"{heading}\n\n:::{{div}} chapter-links\n{' · '.join(line)}\n:::\n\n{rest}"
    if extras.run and number in run.CHAPTERS:
        cells.append(_markdown("run", raw(run.foot(name, cells))))
    save(folder / f"{name}.ipynb", json.dumps({**notebook, "cells": cells}))


def _downloads(root: Path, folder: Path, name: str, notebook: dict[str, Any]) -> list[str]:
    """Links to the chapter's notebook, without what it shows, and to its source; both are written."""
    empty: dict[str, Any] = {"outputs": [], "execution_count": None}
    cells = [{**cell, **empty} if cell["cell_type"] == "code" else cell for cell in notebook["cells"]]
    save(folder / "files" / f"{name}.ipynb", json.dumps({**notebook, "cells": cells}))
    save(folder / "files" / f"{name}.py", (root / "notebooks" / f"{name}.py").read_text(encoding="utf-8"))
    return [f"{{download}}`{kind} <files/{name}.{kind}>`" for kind in ("ipynb", "py")]


def _with_sliders(cells: list[dict[str, Any]], chapter: str, address: str) -> list[dict[str, Any]]:
    """Before each cell with a slider a question, whose answer is folded, and below it the slider."""
    found, guesses = [], enumerate(frames.guesses(chapter).items())
    for cell in cells:
        if not re.search(r"^chapter\.explore\(", cell["source"], re.MULTILINE):
            found.append(cell)
            continue
        number, (name, guess) = next(guesses)
        asked, answer = (html.escape(guess[part], quote=False) for part in ("guess", "answer"))
        question = (
            f'<div class="guess"><p><strong>Guess first.</strong> {asked}</p>'
            f"<details><summary>Answer</summary><p>{answer}</p></details></div>"
        )
        frame = (
            f'<iframe class="slider-frame" loading="lazy" src="../{address}?slider={number}" '
            f'title="Slider: {html.escape(name)}"></iframe>'
        )
        found += [_markdown(f"guess-{number}", raw(question)), cell, _markdown(f"slider-{number}", raw(frame))]
    return found


def _markdown(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}


def page_of(module: str) -> str:
    """Where a module's page beside its code lies, without its ending."""
    return f"code/{module.removeprefix('linattn_ref.')}"
