"""A docstring as a page shows it: prose, mathematics, examples and references in HTML.

Docstrings here keep to few forms: paragraphs, headings underlined with dashes, indented formulas, definitions, fields,
doctests. What stands between two pairs of backticks is mathematics or code, which `formula.is_formula` tells apart. An
indented formula has one row per line; columns are separated by two spaces: names, formulas, the number, a remark.
"""

import contextlib
import html
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import NamedTuple

from linattn_ref.lecture.site.formula import FormulaError, is_formula, tex
from linattn_ref.lecture.site.markdown import EMPHASIS

__all__ = ["REFERENCE", "Equation", "about", "code_block", "entries", "equations", "inline", "row_html", "to_html"]

NUMBER = re.compile(r"(?:\(\d+\)\s*)+\Z")
REFERENCE = re.compile(r"\((\d+)\)")
BESIDE = r" \qquad "  # between formulas of one row
HEADING = re.compile(r"-{4,}\Z")
FIELD = re.compile(r":([A-Z]\w+): (.+)")
PROGRAM = re.compile(r"^\s*(?:@|def |class |from |import )|\w\.\w+\(|^\s*\"\"\"|[├│]|\[ [a-z] ", re.MULTILINE)


class Equation(NamedTuple):
    """A row of a display."""

    numbers: tuple[str, ...]  # ("3",); of a row without a number, none
    tex: str
    remark: str  # what stands behind the number, as it is written


def equations(docstring: str) -> dict[str, Equation]:
    """The numbered equations of a docstring, by number."""
    made = {}
    for block in filter(_is_display, _blocks(docstring)):
        with contextlib.suppress(FormulaError):  # a table, which is shown as such
            made.update({number: row for row in _rows(block) for number in row.numbers})
    return made


def to_html(docstring: str, *, link: Callable[[str], str], anchor: str = "") -> str:
    """HTML of a docstring.

    Parameters
    ----------
    docstring : str
        Without its indentation, as `inspect.cleandoc` gives it.
    link : callable
        From an equation's number to HTML that leads to where the code computes it, or to the number in brackets.
    anchor : str
        Before an equation's number, the ``id`` of its row; "" for no ``id``.
    """
    return "\n".join(_block_html(block, link, anchor) for block in _blocks(docstring))


def inline(text: str, link: Callable[[str], str] = "({})".format) -> str:
    """HTML of running text: mathematics, code, and equation numbers as ``link`` shows them."""
    parts = re.split(r"``(.+?)``|:\w+:`(.+?)`|`([^`]+?)`", " ".join(text.split()))
    out = []
    for at in range(0, len(parts), 4):
        running = EMPHASIS.sub(r"<em>\1</em>", html.escape(parts[at], quote=False))
        out.append(REFERENCE.sub(lambda match: link(match[1]), running))
        if at + 1 < len(parts):
            literal, role, other = parts[at + 1 : at + 4]
            if literal is not None and is_formula(literal):
                out.append(rf'<span class="math">\({html.escape(tex(literal), quote=False)}\)</span>')
            else:
                out.append(f"<code>{html.escape(literal or role or other, quote=False)}</code>")
    return "".join(out)


def entries(references: str) -> list[str]:
    """The papers in the text below the heading "References"."""
    return re.split(r"\n(?=[A-ZÖŁ][^\n]*\(\d{4}\)|\.\. \[)", references)


def code_block(text: str) -> str:
    """HTML of code or doctests, coloured."""
    from pygments import formatters, highlight, lexers

    lexer = lexers.PythonConsoleLexer() if text.startswith(">>>") else lexers.PythonLexer()
    return str(highlight(text, lexer, formatters.HtmlFormatter()))


# --- Blocks ---------------------------------------------------------------------------------------------------------


def _blocks(docstring: str) -> list[str]:
    """What blank lines separate."""
    return [block for block in re.split(r"\n(?:\s*\n)+", docstring.strip("\n")) if block]


def _is_display(block: str) -> bool:
    indented = all(line.startswith("    ") for line in block.splitlines())
    return indented and not PROGRAM.search(block) and bool(re.search(r"[=~]|<-|\(\d+\)", block))


def _block_html(block: str, link: Callable[[str], str], anchor: str) -> str:
    lines = block.splitlines()
    if _is_display(block):
        try:
            return f'<div class="display">{"".join(row_html(row, link, anchor) for row in _rows(block))}</div>'
        except FormulaError:
            return _table_html(lines, link)
    if lines[0].startswith("    "):
        return code_block(textwrap.dedent(block)) if PROGRAM.search(block) else _table_html(lines, link)
    if block.startswith(">>>"):
        return code_block(block)
    if len(lines) > 1 and HEADING.match(lines[1]):
        rest = "\n".join(lines[2:])
        heading = f"<h3>{inline(lines[0], link)}</h3>"
        if lines[0] == "References":
            return f'{heading}<ul class="papers">{"".join(f"<li>{inline(entry)}</li>" for entry in entries(rest))}</ul>'
        return heading + (_block_html(rest, link, anchor) if rest else "")
    if FIELD.match(lines[0]):
        return _fields_html(block, link)
    first = next((at for at, line in enumerate(lines) if line.startswith("    ")), 0)
    if first == 1 or (first and lines[0].startswith(("``", "*"))):
        return _definitions_html(block, link)
    if lines[0].startswith("- "):
        items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
        return "<ul>" + "".join(f"<li>{inline(item, link)}</li>" for item in items) + "</ul>"
    return f"<p>{inline(block, link)}</p>"


def _definitions_html(block: str, link: Callable[[str], str]) -> str:
    rows = []
    for part in re.split(r"\n(?!    )", block):  # a term, and the indented lines below it
        term, _, body = part.partition("\n")
        rows.append(f"<dt>{_term_html(term, link)}</dt>" + (f"<dd>{inline(body, link)}</dd>" if body else ""))
    return f"<dl>{''.join(rows)}</dl>"


def _term_html(line: str, link: Callable[[str], str]) -> str:
    """What is defined: of a parameter, the name is code."""
    name, colon, kind = line.partition(" : ")
    if "`" in name or "(" in name:
        return inline(line, link)
    return f"<code>{html.escape(name)}</code>" + (f' <span class="kind">{inline(kind, link)}</span>' if colon else "")


def _fields_html(block: str, link: Callable[[str], str]) -> str:
    rows = re.split(r"^(?=:[A-Z])", block, flags=re.MULTILINE)[1:]
    cells = (FIELD.match(" ".join(row.split())) for row in rows)
    body = "".join(f"<tr><th>{cell[1]}</th><td>{inline(cell[2], link)}</td></tr>" for cell in cells if cell)
    return f'<table class="fields">{body}</table>'


def _table_html(lines: list[str], link: Callable[[str], str]) -> str:
    rows = ("".join(f"<td>{inline(cell, link)}</td>" for cell in re.split(r"\s{2,}", line.strip())) for line in lines)
    return '<table class="plain">' + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


# --- Displays -------------------------------------------------------------------------------------------------------


def _rows(block: str) -> list[Equation]:
    """One row per line; a line that is indented further continues the one above."""
    made: list[Equation] = []
    for line in block.splitlines():
        cells = re.split(r"\s{2,}(?![\s=])", line.strip())  # but "a    = b" is one formula
        if not any(NUMBER.match(cell) for cell in cells):  # a long formula, and one space before its number
            cells[-1:] = re.split(r"\s(?=\(\d+\)\Z)", cells[-1])
        at = next((at for at, cell in enumerate(cells) if NUMBER.match(cell)), len(cells))
        numbers = tuple(REFERENCE.findall(" ".join(cell for cell in cells[at:] if NUMBER.match(cell))))
        remark = "  ".join(cell for cell in cells[at:] if not NUMBER.match(cell))
        row = Equation(numbers, _cells_tex(cells[:at]), remark)
        if line.startswith("     ") and made:
            above = made.pop()
            row = Equation(above.numbers + row.numbers, _below(above.tex, row.tex), above.remark + row.remark)
        made.append(row)
    return made


def _below(above: str, tex: str) -> str:
    """Two lines of one equation."""
    above = above.removeprefix(r"\begin{aligned}&").removesuffix(r"\end{aligned}")
    return rf"\begin{{aligned}}&{above} \\ &\qquad {tex}\end{{aligned}}"


def _cells_tex(cells: list[str]) -> str:
    """Names in the first column stand in the font of code; formulas beside each other have space between them."""
    if len(cells) > 1 and re.fullmatch(r"[a-z]\w+", cells[0]):
        return rf"\texttt{{{cells[0]}}}\quad " + _cells_tex(cells[1:])
    return BESIDE.join(tex(cell, display=True) for cell in cells)


def row_html(row: Equation, link: Callable[[str], str], anchor: str = "") -> str:
    """An equation, its number, its remark; its formulas can stand below one another on a narrow page."""
    identity = f' id="{anchor}{row.numbers[0]}"' if anchor and row.numbers else ""
    others = "".join(f'<span id="{anchor}{number}"></span>' for number in row.numbers[1:]) if anchor else ""
    number = others + " ".join(link(number) for number in row.numbers)
    remark = f'<span class="remark">{inline(_remark(row.remark), link)}</span>' if row.remark else ""
    parts = [row.tex] if row.tex.startswith(r"\begin") else row.tex.split(BESIDE)
    spans = "".join(rf'<span class="formula math">\[{html.escape(part, quote=False)}\]</span>' for part in parts)
    shown = f'<span class="formulas">{spans}</span><span class="number">{number}</span>{remark}'
    return f'<div class="equation"{identity}{about(row.numbers)}>{shown}</div>'


def about(numbers: Iterable[str]) -> str:
    """An attribute with the numbers of equations: parts of a page that share one light up together, see `beside.js`."""
    listed = " ".join(numbers)
    return f' data-equations="{listed}"' if listed else ""


def _remark(text: str) -> str:
    """Shapes stand in the font of code, letters in that of mathematics."""
    if "`" in text:
        return text
    return re.sub(r"(?<!\w)\([^()]*,[^()]*\)|\b[A-Z](?:_\w+)?(?![\w.])|\b[a-z]_\w+\b(?!\.)", r"``\g<0>``", text)
