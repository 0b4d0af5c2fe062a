"""What Sphinx reads: the chapters, a page beside the code of each file, the gallery, the papers, a page per module."""

import ast
import re
import shutil
from pathlib import Path

from linattn_ref.experiments.publishing import tables
from linattn_ref.lecture.run import build as run
from linattn_ref.lecture.site import beside, chapters, drawing, prose
from linattn_ref.lecture.site.chapters import Extras, page_of
from linattn_ref.lecture.site.markdown import grid, raw, save, toctree, typeset
from linattn_ref.lecture.site.reference import write_api, write_papers

__all__ = ["Extras", "write"]

# Folders of the package whose files have a page with formulas beside the code.
LITERATE = {
    "attention": "Mechanisms",
    "attention/sparse": "Mechanisms over a pattern of pairs",
    "attention/features": "Feature maps",
    "attention/parts": "What several mechanisms need",
    "kernels/common": "What compiled backends share",
    "nn": "Layers and losses",
}
PARTS = {
    "Softmax attention, and why it can be cheaper": range(1, 5),
    "Linear attention": range(5, 9),
    "More ways": range(9, 15),
    "All together": range(15, 100),
}
GRADIENT = "The gradient, by hand"  # the heading below the formulas of a forward pass
SENTENCE = "Your own sentence"
FIGURE = re.compile(r"^## (.*)\n\n!\[.*?\]\((\w+)\.png\)\n\n(.*)$", re.MULTILINE)  # in the committed gallery


def write(root: Path, folder: Path, extras: Extras) -> None:
    """Write all sources of the checkout ``root``'s site into ``folder``."""
    ignored = shutil.ignore_patterns("*.pdf", "*.json", "records", "pages", "frames", "README.md")
    shutil.copytree(root / "figures", folder / "figures", ignore=ignored)
    listed = tables.chapters(root / "notebooks")
    literate = _write_literate(root, folder / "code", extras.run)
    for each in listed:
        chapters.write(root, folder / "chapters", each.name, literate, extras)
    course = (root / "notebooks" / "README.md").read_text(encoding="utf-8")  # the decks' sources are not here
    save(folder / "chapters" / "course.md", re.sub(r"\[([^\]]*)\]\(slides/?\)", r"\1", course))
    _write_gallery(root, folder)
    write_papers(root, folder, {module: page_of(module) for module in literate})
    write_api(folder / "api")
    if extras.sentence:
        save(folder / "sentence.md", f"# {SENTENCE}\n\n{raw(run.page())}")
    _write_index(folder, listed, extras)


# --- Formula beside line --------------------------------------------------------------------------------------------


def _write_literate(root: Path, folder: Path, can_run: bool) -> set[str]:
    """A page for each file that has numbered equations; the modules that have one."""
    made: dict[str, list[tuple[str, str]]] = {part: [] for part in LITERATE}
    drawn = {row.module for row in tables.mechanisms()}
    for part in LITERATE:
        for path in sorted((root / "linattn_ref" / part).glob("*.py")):
            source = path.read_text(encoding="utf-8")
            docstring = ast.get_docstring(ast.parse(source)) or ""
            known = prose.equations(docstring)
            if not known:
                continue
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            title = _title(docstring, path.stem)
            made[part].append((module, title))
            text = [f"# {title}", f"`{module.replace('.', '/')}.py`"]
            if module in drawn:
                text.append(drawing.drawing(path.stem, title, prose.equations(docstring.partition(GRADIENT)[0])))
            text.append(raw(beside.page_html(source).replace("```", "&#96;&#96;&#96;")))  # which would end the block
            if can_run and run.is_checked(module):
                text.append(raw(run.page_foot(module)))
            save(folder.parent / f"{page_of(module)}.md", "\n\n".join(text))
    save(folder / "index.md", _literate_index(made, can_run))
    return {module for rows in made.values() for module, _ in rows}


def _title(docstring: str, stem: str) -> str:
    first = " ".join(docstring.split("\n\n")[0].split())
    name = re.match(r"^([^(:,.]{3,50}?)(?: \([^)]+\))?[:,.]", first)
    return name[1] if name else stem.replace("_", " ").capitalize()


def _literate_index(made: dict[str, list[tuple[str, str]]], can_run: bool) -> str:
    mechanisms = {row.module: row for row in tables.mechanisms()}
    parts = [
        "# Formula beside line\n",
        "Each file of the package with its formulas typeset, and below them formula and code side by side: the text is "
        "that of the file, nothing is written twice. A number in brackets leads from the formula to the line that "
        "computes it, and back; under the mouse both light up, with the boxes of the drawing.\n",
    ]
    if can_run:
        parts.append(
            "The code of a mechanism can be changed: press **Check**, and the page says whether its gradient is still "
            "right, and if not, where to look.\n"
        )
    listed: list[str] = []
    for part, heading in LITERATE.items():
        parts.append(f"## {heading}\n")
        cards, rest = [], []
        for module, title in sorted(made[part], key=lambda row: row[0] not in mechanisms):
            page, one = f"/{page_of(module)}", mechanisms.get(module)
            listed.append(page)
            if one:
                cards.append((page, title, typeset(one.fields["Gives"]), f"/figures/schematic_{one.name}.svg"))
            else:
                rest.append(f"- [{title}]({page}.md)\n")
        if cards:
            parts += [grid(cards), "### What they are made of\n"]
        parts.append("".join(rest))
    return "\n".join([*parts, toctree(listed)])


# --- The gallery ----------------------------------------------------------------------------------------------------


def _write_gallery(root: Path, folder: Path) -> None:
    """The committed gallery; what is not copied is not linked."""
    text = (root / "figures" / "README.md").read_text(encoding="utf-8")
    files = r" · \[svg\]\((\w+)\.svg\), \[pdf\]\([^)]*\), \[json\]\([^)]*\)"
    text = re.sub(files, r' · <a href="../_images/\1.svg">svg</a>', text)
    text = FIGURE.sub(_titled, text)
    save(folder / "figures" / "gallery.md", text)


def _titled(figure: re.Match[str]) -> str:
    """A figure below a title that says what is shown: its caption's first clause."""
    name, file, caption = figure.groups()
    title = re.split(r"[.:;] | \(|\.$", caption)[0]
    title = title if len(title) < 90 else title.split(", ")[0]
    title = name.capitalize() if title == "Left" else title
    return f"## {title}\n\n![{title}]({file}.svg)\n\n{caption}"


# --- The front page -------------------------------------------------------------------------------------------------


def _write_index(folder: Path, chapters: list[tables.Chapter], extras: Extras) -> None:
    parts = [
        "# Efficient attention, written to be read\n",
        "Transformers that cost less than $N^2$: each mechanism derived, its gradient by hand, in NumPy that fits on a "
        "slide; what theorems promise, and what is measured.\n",
        "```{image} /figures/spectrum.svg\n:alt: Normalised cumulative singular values of the attention matrices of a "
        "pretrained transformer, and a heat map by layer and head\n:class: hero\n```\n",
        _entrances(extras),
    ]
    if extras.run:
        parts.append(
            "Change a line and run it: each chapter's code runs in your browser, and [each mechanism's](code/index.md) "
            "is checked there.\n"
        )
    for heading, numbers in PARTS.items():
        here = (each for each in chapters if int(each.name[:2]) in numbers)
        cards = ((f"/chapters/{each.name}", each.title, each.question, "") for each in here)
        parts += [f"## {heading}\n", grid(cards, "1 1 2 2")]
    short = (f"{each.title.partition(':')[0]} <chapters/{each.name}>" for each in chapters)
    parts.append(toctree(short, "Chapters"))
    own = ["sentence"] * extras.sentence
    parts.append(toctree(["chapters/course", "code/index", "figures/gallery", *own, "papers", "api/index"], "Look up"))
    save(folder / "index.md", "\n".join(parts))


def _entrances(extras: Extras) -> str:
    """Ways into the site, besides the chapters."""
    ways = [
        ("chapters/course.html", "The course", "an evening, a lecture, or the whole"),
        ("code/index.html", "Formula beside line", "each file, typeset"),
        ("figures/gallery.html", "Figures", "with the command that draws each"),
        ("api/index.html", "API", "all that is public"),
    ]
    if extras.slides:
        ways.append((extras.slides.get("00_course", min(extras.slides.values())), "Slides", "one deck per chapter"))
    ways += [(address, title, "in your browser") for address, title in extras.live.items()]
    if extras.sentence:
        ways.append(("sentence.html", SENTENCE, "its attention, in your browser"))
    items = (f'<a class="way" href="{to}"><strong>{title}</strong><span>{said}</span></a>' for to, title, said in ways)
    return raw(f'<nav class="ways">{"".join(items)}</nav>')
