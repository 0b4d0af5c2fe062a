"""What the site's sources are written with: MyST's Markdown."""

import re
from collections.abc import Iterable
from pathlib import Path

from linattn_ref.lecture.site.formula import is_formula, tex

__all__ = ["EMPHASIS", "grid", "plain", "raw", "save", "toctree", "typeset"]


EMPHASIS = re.compile(r"(?<![\w*])\*(\w[^*]*\w|\w)\*(?![\w*])")


def save(path: Path, text: str) -> None:
    """Write a file, and the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def grid(cards: Iterable[tuple[str, str, str, str]], columns: str = "1 2 2 3") -> str:
    """Cards: page, title, text, picture or ""."""
    rows = [f"::::{{grid}} {columns}\n:gutter: 3\n"]
    for page, title, text, picture in cards:
        image = f":img-top: {picture}\n:img-alt: {title}, drawn\n" if picture else ""
        rows.append(f":::{{grid-item-card}} {title}\n:link: {page}\n:link-type: doc\n{image}\n{text}\n:::\n")
    return "\n".join([*rows, "::::\n"])


def toctree(pages: Iterable[str], caption: str = "") -> str:
    """Pages for the sidebar."""
    options = ":hidden:\n:maxdepth: 1\n" + (f":caption: {caption}\n" if caption else "")
    return "\n```{toctree}\n" + options + "\n" + "\n".join(pages) + "\n```\n"


def plain(text: str) -> str:
    """Prose of a docstring as Markdown."""
    as_it_is = re.compile(rf"``(.+?)``|{EMPHASIS.pattern}|\*")  # code, emphasis, and asterisks that are neither
    return as_it_is.sub(lambda m: f"`{m[1]}`" if m[1] else m[0] if m[2] else r"\*", text)


def typeset(text: str) -> str:
    """The same with formulas as such."""
    return re.sub(r"``(.+?)``", lambda match: f"${tex(match[1])}$" if is_formula(match[1]) else f"`{match[1]}`", text)


def raw(html: str) -> str:
    """HTML as it is."""
    return f"```{{raw}} html\n{html}\n```\n"
