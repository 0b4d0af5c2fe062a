"""A source file as a page: above, its docstring typeset; below, formula beside line, as in Knuth's literate programs.

A line of code that ends in ``# (3)`` computes equation (3) of the file's docstring. Each such statement becomes a row:
at the left the equation, at the right the code, the number a link both ways. What a function's docstring says stands
beside its first lines.
"""

import ast
import html
import io
import itertools
import re
import tokenize
from typing import NamedTuple

from linattn_ref.lecture.site import prose

__all__ = ["Segment", "page_html", "segments", "tags"]

TAG = re.compile(r"\((\d+)\)(?:\s*-\s*\((\d+)\))?")
TAGS = re.compile("<[^>]*>")
ELSEWHERE = re.compile(r"\b(?:linear|(?:online_)?softmax) \(\d.*")  # "# linear (5)": equations of another file


class Segment(NamedTuple):
    """Lines of code that stand beside one text."""

    lines: tuple[int, ...]  # their numbers, from 1
    numbers: tuple[str, ...]  # of the equations that these lines compute
    docstring: str  # of the function or class that begins here


def page_html(source: str) -> str:
    """HTML of a file's page, without its title: the docstring, then rows of text and code."""
    from pygments import formatters, highlight, lexers

    docstring = ast.get_docstring(ast.parse(source)) or ""
    known = prose.equations(docstring)
    parts = segments(source)
    lexer = lexers.PythonLexer(stripnl=False, ensurenl=False)
    lines = str(highlight(source, lexer, formatters.HtmlFormatter(nowrap=True))).split("\n")
    computed = {number: part.lines[0] for part in reversed(parts) for number in part.numbers if number in known}

    def to_code(number: str) -> str:
        """From the docstring to the line."""
        if number not in computed:
            return f"({number})"
        return f'<a href="#line-{computed[number]}" title="to the code">({number})</a>'

    def to_formula(number: str) -> str:
        """From the line to the docstring."""
        return f'<a href="#eq-{number}" title="to the formula">({number})</a>' if number in known else f"({number})"

    rows = []
    for part in parts:
        beside = prose.to_html(part.docstring, link=to_formula) if part.docstring else ""
        here = [number for number in part.numbers if number in known]
        beside += "".join(prose.row_html(known[number]._replace(remark=""), to_formula) for number in here)
        code = "\n".join(_linked(lines[line - 1], known) for line in part.lines).strip("\n").split("\n")
        shown = f'<div class="highlight"><pre>{"".join(map(_hanging, code))}</pre></div>'
        if code[0].startswith('<span class="kn">'):
            shown = f"<details><summary>imports, and what is public</summary>{shown}</details>"
        row = f'<div class="beside" id="line-{part.lines[0]}"{prose.about(here)}>'
        rows.append(f'{row}<div class="text">{beside}</div>{shown}</div>')
    above = re.sub(r"(</?h)3>", r"\g<1>2>", prose.to_html(docstring, link=to_code, anchor="eq-"))  # below the title
    return f'<div class="derivation">{above}</div>\n<div class="literate">{"".join(rows)}</div>'


def segments(source: str) -> list[Segment]:
    """The file below its docstring, cut where a function begins and where an equation is computed."""
    tree, lines = ast.parse(source), source.splitlines()
    hidden: set[int] = set()  # lines of docstrings, which stand at the left
    texts: dict[int, str] = {1: ""}  # by the line where a row begins
    heads = []  # first and last line of each statement; of one with a body, without that
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            hidden.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            texts[min(each.lineno for each in [node, *node.decorator_list])] = ast.get_docstring(node) or ""
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            heads.append((node.lineno, body[0].lineno - 1 if body else node.end_lineno or 0))
    numbers: dict[int, list[str]] = {}
    for line, found in tags(source).items():
        around = [(first, last) for first, last in heads if first <= line <= last]
        if around:  # none for a comment on a line of its own
            first, last = max(around)
            numbers.setdefault(first, []).extend(found)
            texts.setdefault(first, "")
            texts.setdefault(last + 1, "")
    parts: list[Segment] = []
    for start, stop in itertools.pairwise([*sorted(texts), len(lines) + 1]):
        its = tuple(line for line in range(start, stop) if line not in hidden)
        if not any(lines[line - 1].strip() for line in its):
            continue
        computed, text = tuple(dict.fromkeys(numbers.get(start, ()))), texts[start]
        if computed and parts and computed == parts[-1].numbers and not text:  # they stand beside it together
            parts[-1] = parts[-1]._replace(lines=parts[-1].lines + its)
        else:
            parts.append(Segment(its, computed, text))
    return parts


def tags(source: str) -> dict[int, list[str]]:
    """The equations that comments name, by line."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        comment = ELSEWHERE.sub("", token.string) if token.type == tokenize.COMMENT else ""
        if TAG.search(comment):
            ranges = (range(int(first), int(last or first) + 1) for first, last in TAG.findall(comment))
            found[token.start[0]] = [str(number) for numbers in ranges for number in numbers]
    return found


# --- HTML -----------------------------------------------------------------------------------------------------------


def _hanging(line: str) -> str:
    """A line that is broken where there is no room for it goes on further right than it began."""
    text = html.unescape(TAGS.sub("", line))
    return f'<span class="line" style="--indent: {len(text) - len(text.lstrip()) + 4}ch">{line}\n</span>'


def _linked(line: str, known: dict[str, prose.Equation]) -> str:
    """A coloured line whose comment's equation numbers lead to the formula."""
    code, comment, rest = line.partition('<span class="c1">')
    own = ELSEWHERE.sub("", rest)
    linked = prose.REFERENCE.sub(lambda m: f'<a href="#eq-{m[1]}">({m[1]})</a>' if m[1] in known else m[0], own)
    return code + comment + linked + rest[len(own) :]
