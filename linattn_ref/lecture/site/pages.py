"""What Sphinx reads: the chapters, a page beside the code of each file, the gallery, the papers, a page a module."""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from linattn_ref.experiments.publishing import chapter, tables
from linattn_ref.lecture import elsewhere
from linattn_ref.lecture.site import beside, prose
from linattn_ref.lecture.site.formula import is_formula, tex

__all__ = ["Extras", "write"]

# Folders of the package whose files have a page with formulas beside the code.
LITERATE = {
    "attention": "Mechanisms",
    "kernels/reference": "The hot loops, as the papers print them",
    "nn": "Layers and losses",
}
API = ("attention", "nn", "training", "models", "models.bert", "theory", "data", "kernels.reference")
SINGLE = ("gradcheck",)
PARTS = {
    "Softmax attention, and why it can be cheaper": range(1, 5),
    "Linear attention": range(5, 9),
    "More ways": range(9, 15),
    "All together": range(15, 20),
}
SOURCE_FILE = re.compile(r"\(\.\./linattn_ref/(attention|nn)/(\w+)\.py\)")  # a link to it
RAW = "```{{raw}} html\n{}\n```\n"


class Extras(NamedTuple):
    """Pages that others make, and that stand beside Sphinx's: from their addresses to their titles."""

    slides: dict[str, str]  # by the name of the chapter; "00_course"
    live: dict[str, str]
    sliders: dict[str, str]  # from a chapter's number to the address


def write(root: Path, folder: Path, extras: Extras) -> None:
    """Write all sources of the checkout ``root``'s site into ``folder``."""
    shutil.copytree(
        root / "figures",
        folder / "figures",
        ignore=shutil.ignore_patterns("*.pdf", "*.json", "records", "pages", "frames"),
    )
    chapters = tables.chapters(root / "notebooks")
    literate = _write_literate(root, folder / "code")
    for each in chapters:
        _write_chapter(root, folder / "chapters", each.name, literate, extras)
    _write_claims(root, folder / "chapters")
    _write_gallery(root, folder)
    _write_papers(root, folder)
    _write_api(folder / "api")
    _write_index(folder, chapters, extras)


def _save(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# --- Chapters -------------------------------------------------------------------------------------------------------


def _write_chapter(root: Path, folder: Path, name: str, literate: set[str], extras: Extras) -> None:
    """The executed notebook, with a line of links below its title."""
    path = f"notebooks/{name}.ipynb"
    notebook = json.loads((root / path).read_text(encoding="utf-8"))
    shown = [
        module
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        for entry in output.get("metadata", {}).get(chapter.SOURCE_OF, {}).get("names", [])
        if (module := entry.partition(":")[0]) in literate
    ]
    links = [f"[{module.rpartition('.')[2]}](../{_page_of(module)}.md)" for module in dict.fromkeys(shown)]
    line = [f"Beside the code: {', '.join(links)}"] if links else []
    if name in extras.slides:
        line.append(f'<a href="../{extras.slides[name]}">Slides</a>')
    if name[:2] in extras.sliders:
        line.append(f'<a href="../{extras.sliders[name[:2]]}">Sliders</a>')
    places = elsewhere.links(elsewhere.repository(root), path)
    line += [f'<a href="{address}">{place}</a>' for place, address in places.items()]
    first = notebook["cells"][0]
    heading, _, rest = "".join(first["source"]).partition("\n")
    under = f"\n\n:::{{div}} chapter-links\n{' · '.join(line)}\n:::\n" if line else ""
    first["source"] = f"{heading}{under}\n{rest}"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = "".join(cell["source"]).replace("(README.md)", "(claims.md)")
        for output in cell.get("outputs", []):
            shown_as = output.get("data", {})
            if "text/markdown" in shown_as:
                text = "".join(shown_as["text/markdown"])
                shown_as["text/markdown"] = SOURCE_FILE.sub(r"(../code/\1.\2.md)", text)
    _save(folder / f"{name}.ipynb", json.dumps(notebook))


def _write_claims(root: Path, folder: Path) -> None:
    _save(folder / "claims.md", (root / "notebooks" / "README.md").read_text(encoding="utf-8"))


# --- Formula beside line --------------------------------------------------------------------------------------------


def _page_of(module: str) -> str:
    return f"code/{module.removeprefix('linattn_ref.')}"


def _write_literate(root: Path, folder: Path) -> set[str]:
    """A page for each file that has numbered equations; the modules that have one."""
    made: dict[str, list[tuple[str, str, str]]] = {part: [] for part in LITERATE}
    for part in LITERATE:
        for path in sorted((root / "linattn_ref" / part).glob("*.py")):
            source = path.read_text(encoding="utf-8")
            docstring = inspect.cleandoc(ast.get_docstring(ast.parse(source)) or "")
            if not prose.equations(docstring):
                continue
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            title, said = _title(docstring, path.stem)
            made[part].append((module, title, said))
            _save(
                folder.parent / f"{_page_of(module)}.md",
                f"# {title}\n\n{_where(module)}\n\n{RAW.format(_one_block(beside.page_html(source)))}",
            )
    _save(folder / "index.md", _literate_index(made))
    return {module for rows in made.values() for module, _, _ in rows}


def _title(docstring: str, stem: str) -> tuple[str, str]:
    """A page's title, and its first sentence."""
    first = " ".join(docstring.split("\n\n")[0].split())
    name = re.match(r"^([^(:,.]{3,50}?)(?: \([^)]+\))?[:,.]", first)
    return (name[1] if name else stem.replace("_", " ").capitalize()), first


def _where(module: str) -> str:
    file = module.replace(".", "/")
    return f"`{file}.py`"


def _one_block(text: str) -> str:
    """Blank lines in code would not end a raw block, but three backticks would."""
    return text.replace("```", "&#96;&#96;&#96;")


def _literate_index(made: dict[str, list[tuple[str, str, str]]]) -> str:
    mechanisms = {f"linattn_ref.attention.{row.name}": row for row in tables.mechanisms()}
    parts = [
        "# Formula beside line\n",
        "Each file of the package with its formulas typeset, and below them formula and code side by side: the text is "
        "that of the file, nothing is written twice. A number in brackets leads from the formula to the line that "
        "computes it, and back.\n",
    ]
    toctree = []
    for part, heading in LITERATE.items():
        rows = sorted(made[part], key=lambda row: row[0] not in mechanisms)
        parts.append(f"## {heading}\n")
        cards = [row for row in rows if row[0] in mechanisms]
        if cards:
            parts.append(
                _grid(
                    (f"/{_page_of(m)}", t, _typeset(mechanisms[m].fields["Gives"]), _schematic(m)) for m, t, _ in cards
                )
            )
            parts.append("### What they are made of\n")
        rest = (row for row in rows if row[0] not in mechanisms)
        parts.append("".join(f"- [{title}](/{_page_of(module)}.md)\n" for module, title, _ in rest))
        toctree += [f"/{_page_of(module)}" for module, _, _ in rows]
    return "\n".join([*parts, _toctree(toctree)])


def _schematic(module: str) -> str:
    return f"/figures/schematic_{module.rpartition('.')[2]}.svg"


def _grid(cards: Iterable[tuple[str, str, str, str]], columns: str = "1 2 2 3") -> str:
    """Cards: page, title, text, picture or ""."""
    rows = [f"::::{{grid}} {columns}\n:gutter: 3\n"]
    for page, title, text, picture in cards:
        image = f":img-top: {picture}\n:img-alt: {title}, drawn\n" if picture else ""
        rows.append(f":::{{grid-item-card}} {title}\n:link: {page}\n:link-type: doc\n{image}\n{text}\n:::\n")
    return "\n".join([*rows, "::::\n"])


def _toctree(pages: Iterable[str], caption: str = "", depth: int = 1) -> str:
    options = f":hidden:\n:maxdepth: {depth}\n" + (f":caption: {caption}\n" if caption else "")
    return "\n```{toctree}\n" + options + "\n" + "\n".join(pages) + "\n```\n"


# --- Gallery, papers, API -------------------------------------------------------------------------------------------


def _write_gallery(root: Path, folder: Path) -> None:
    """The committed gallery; what is not copied is not linked."""
    text = (root / "figures" / "README.md").read_text(encoding="utf-8")
    text = re.sub(r" · \[svg\]\((\w+)\.svg\), \[pdf\]\([^)]*\), \[json\]\([^)]*\)", r" · [svg](\1.svg)", text)
    text = re.sub(r"!\[(.*?)\]\((\w+)\.png\)", r"![\1](\2.svg)", text)
    (folder / "figures" / "README.md").unlink(missing_ok=True)
    _save(folder / "figures" / "gallery.md", text)


def _write_papers(root: Path, folder: Path) -> None:
    """What the docstrings refer to, each paper once, with the files that do."""
    cited: dict[str, list[str]] = {}
    for path in sorted((root / "linattn_ref").rglob("*.py")):
        docstring = inspect.cleandoc(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        for entry in _references(docstring):
            cited.setdefault(entry, []).append(path.relative_to(root).as_posix())
    lines = ["# Papers\n", "What the files refer to, and where.\n"]
    for entry in sorted(cited):
        files = ", ".join(f"`{file}`" for file in cited[entry])
        lines.append(f"- {_plain(entry)}  \n  {files}\n")
    _save(folder / "papers.md", "\n".join(lines))


def _plain(text: str) -> str:
    """Prose of a docstring as Markdown."""
    return text.replace("*", r"\*").replace("``", "`")


def _typeset(text: str) -> str:
    """The same with formulas as such."""
    return re.sub(r"``(.+?)``", lambda match: f"${tex(match[1])}$" if is_formula(match[1]) else f"`{match[1]}`", text)


def _references(docstring: str) -> list[str]:
    _, found, below = docstring.partition("\nReferences\n----------\n")
    if not found:
        return []
    block = re.split(r"\n\n", below)[0]
    return [" ".join(entry.split()) for entry in re.split(r"\n(?=[A-ZÖŁ][^\n]*\(\d{4}\))", block)]


def _write_api(folder: Path) -> None:
    """A page a module, made from its docstrings."""
    parts = ["# API\n", "What is public: what ``__all__`` of each module lists.\n"]
    pages = []
    for package in API:
        module = importlib.import_module(f"linattn_ref.{package}")
        parts.append(f"## linattn_ref.{package}\n\n{_first_sentence(module)}\n")
        for name in _modules(module):
            parts.append(f"- [{name.rpartition('.')[2]}]({name}.rst): {_first_sentence(importlib.import_module(name))}")
            _write_module(folder, name)
            pages.append(name)
        parts.append("")
    for name in SINGLE:
        full = f"linattn_ref.{name}"
        _write_module(folder, full)
        pages.append(full)
        parts.append(f"- [{name}]({full}.rst): {_first_sentence(importlib.import_module(full))}")
    _save(
        folder / "index.md",
        "\n".join(parts) + "\n" + _toctree(f"{name.removeprefix('linattn_ref.')} <{name}>" for name in pages),
    )


def _modules(package: ModuleType) -> list[str]:
    """Modules of a package that are public, without the packages in it."""
    found = (
        f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__) if not module.ispkg
    )
    return [name for name in found if name.rpartition(".")[2] in package.__all__]


def _first_sentence(module: ModuleType) -> str:
    first = (inspect.getdoc(module) or "").split("\n\n")[0]
    return _plain(" ".join(first.split()))


def _write_module(folder: Path, name: str) -> None:
    _save(folder / f"{name}.rst", f"{name}\n{'=' * len(name)}\n\n.. automodule:: {name}\n")


# --- The front page -------------------------------------------------------------------------------------------------


def _write_index(folder: Path, chapters: list[tables.Chapter], extras: Extras) -> None:
    parts = [
        "# Efficient attention, written to be read\n",
        "Transformers that cost less than $N^2$: each mechanism derived, its gradient by hand, in NumPy that fits on a "
        "slide; what theorems promise beside what is measured.\n",
        "```{image} /figures/spectrum.svg\n:alt: Normalised cumulative singular values of the attention matrices of a "
        "pretrained transformer, and a heat map by layer and head\n:class: hero\n```\n",
        _entrances(extras),
    ]
    for heading, numbers in PARTS.items():
        cards = [
            (f"/chapters/{each.name}", each.title, each.question, "")
            for each in chapters
            if int(each.name[:2]) in numbers
        ]
        parts += [f"## {heading}\n", _grid(cards, "1 1 2 2")]
    short = (f"{each.title.partition(':')[0]} <chapters/{each.name}>" for each in chapters)
    parts.append(_toctree(short, "Chapters"))
    parts.append(_toctree(["code/index", "figures/gallery", "chapters/claims", "papers", "api/index"], "Look up"))
    _save(folder / "index.md", "\n".join(parts))


def _entrances(extras: Extras) -> str:
    """Ways into the site, beside the chapters."""
    ways = [
        ("code/index.html", "Formula beside line", "each file, typeset"),
        ("figures/gallery.html", "Figures", "with the command that draws each"),
        ("api/index.html", "API", "all that is public"),
    ]
    if extras.slides:
        ways.append((extras.slides.get("00_course", min(extras.slides.values())), "Slides", "a deck a chapter"))
    ways += [(address, title, "in your browser") for address, title in extras.live.items()]
    items = (f'<a class="way" href="{to}"><strong>{title}</strong><span>{said}</span></a>' for to, title, said in ways)
    return RAW.format(f'<nav class="ways">{"".join(items)}</nav>')
