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
    notebook = json.loads((root / path).read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    named = [output.get("metadata", {}).get(chapter.SOURCE_OF, {}).get("names", []) for output in outputs]
    shown = dict.fromkeys(name.partition(":")[0] for names in named for name in names)
    links = [f"[{module.rpartition('.')[2]}](../{page_of(module)}.md)" for module in shown if module in literate]
    line = [f"Beside the code: {', '.join(links)}"] if links else []
    downloads = _downloads(root, folder, name, notebook)
    if name in extras.slides:
        line.append(f'<a href="../{extras.slides[name]}">Slides</a>')
        slides = deck.read(root / "notebooks" / "slides" / f"{name}.md").slides
        sections.link_slides(notebook["cells"], slides, f"../{extras.slides[name]}")
    if name[:2] in extras.sliders:
        line.append(f'<a href="../{extras.sliders[name[:2]]}">Sliders</a>')
        notebook["cells"] = _with_sliders(notebook["cells"], name[:2], extras.sliders[name[:2]])
    places = elsewhere.links(elsewhere.repository(root), path)
    line += [f'<a href="{address}">{place}</a>' for place, address in places.items()]
    line.append(f"Download: {', '.join(downloads)}")
    first = notebook["cells"][0]
    heading, _, rest = "".join(first["source"]).partition("\n")
    first["source"] = f"{heading}\n\n:::{{div}} chapter-links\n{' · '.join(line)}\n:::\n\n{rest}"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = "".join(cell["source"]).replace("(README.md)", "(course.md)")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:  # MyST-NB heeds what is said of the cell, which has one picture
                cell["metadata"]["mystnb"] = {"image": {"alt": output["metadata"]["image/png"]["alt"]}}
            if "text/markdown" in data:
                text = "".join(data["text/markdown"])
                data["text/markdown"] = SOURCE_FILE.sub(
                    lambda found: f"(../code/{found[1].replace('/', '.')}.md)", text
                )
    if extras.run and name[:2] in run.CHAPTERS:
        foot = raw(run.foot(name, notebook["cells"]))
        notebook["cells"].append(_markdown("run", foot))
    save(folder / f"{name}.ipynb", json.dumps(notebook))


def _downloads(root: Path, folder: Path, name: str, notebook: dict[str, Any]) -> list[str]:
    """Links to the chapter's notebook, without what it shows, and to its source; both are written."""
    empty: dict[str, Any] = {"outputs": [], "execution_count": None}
    cells = [{**cell, **empty} if cell["cell_type"] == "code" else cell for cell in notebook["cells"]]
    save(folder / "files" / f"{name}.ipynb", json.dumps({**notebook, "cells": cells}))
    source = (root / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    save(folder / "files" / f"{name}.py", source)
    return [f"{{download}}`{kind} <files/{name}.{kind}>`" for kind in ("ipynb", "py")]


def _with_sliders(cells: list[dict[str, Any]], chapter: str, address: str) -> list[dict[str, Any]]:
    """Before each cell with a slider a question, whose answer is folded, and below it the slider."""
    found, guesses = [], list(frames.guesses(chapter).items())
    for cell in cells:
        if not re.search(r"^chapter\.explore\(", "".join(cell["source"]), re.MULTILINE):
            found.append(cell)
            continue
        number = sum(each.get("id", "").startswith("slider-") for each in found)
        name, guess = guesses[number]
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
