"""Markdown to HTML as slides need it: formulas for MathJax, and excerpts of the package's own source.

A fence says whose source it shows, and between which lines; it is read from the file when the deck is built::

    ```source linattn_ref.attention.linear:forward
    s, z = s
    out[rows]
    ```
"""

import html
import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import formatters, highlight, lexers

from linattn_ref.experiments.publishing import chapter

__all__ = ["CODE_STYLE", "excerpt", "to_html", "to_inline"]

CODE_STYLE: str = formatters.HtmlFormatter(style="friendly", nobackground=True).get_style_defs("pre.code")
SHAPE = re.compile(r"(#(?: \(\d+\),?)+)[^#]*$|  # \((?:\.\.\.|[A-Z])[^#]*$")  # on a slide there is room for its letters
WIDTH, LETTER, LARGEST = 1080, 0.603, 28  # of a line of code in pixels, of a letter in its size; pixels


def to_html(text: str) -> str:
    """A slide's text, or its notes."""
    return str(_markdown().render(text))


def to_inline(text: str) -> str:
    """A title, without a paragraph around it."""
    return str(_markdown().renderInline(text))


def excerpt(name: str, lines: Sequence[str]) -> str:
    """Lines of a function, ``"package.module:function"``: from the first that has ``lines[0]`` to that with the last.

    Raises
    ------
    ValueError
        There is no such function or line any more.
    """
    shown = re.search(r"```python\n# [\w.]+\n(.*)\n```", chapter.source_text([name], doc=False), re.DOTALL)
    text = shown[1].splitlines() if shown else []
    if lines:
        try:
            first = next(i for i, line in enumerate(text) if lines[0] in line)
            last = next(i for i in range(first, len(text)) if lines[-1] in text[i])
        except StopIteration:
            raise ValueError(f"{name} has no lines from {lines[0]!r} to {lines[-1]!r}") from None
        text = text[first : last + 1]
    indent = min(len(line) - len(line.lstrip()) for line in text if line.strip())
    return "\n".join(SHAPE.sub(r"\1", line[indent:]) for line in text)


def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": True, "typographer": True}).enable(["table", "smartquotes"])
    markdown.use(dollarmath_plugin, double_inline=True)
    markdown.add_render_rule("math_inline", lambda self, tokens, i, *_: rf"\({html.escape(tokens[i].content)}\)")
    for kind in ("math_block", "math_inline_double"):
        markdown.add_render_rule(kind, lambda self, tokens, i, *_: rf"\[{html.escape(tokens[i].content)}\]")
    markdown.add_render_rule("fence", _fence)
    return markdown


def _fence(self: Any, tokens: Any, i: int, *_: Any) -> str:
    kind, _, name = tokens[i].info.strip().partition(" ")
    lines = [line.strip() for line in tokens[i].content.splitlines() if line.strip()]
    code = excerpt(name, lines) if kind == "source" else tokens[i].content.rstrip()
    size = min(LARGEST, int(WIDTH / LETTER / max(map(len, code.splitlines()), default=1)))
    told = f'<p class="whose">{html.escape(name)}</p>' if kind == "source" else ""
    coloured = highlight(code, lexers.PythonLexer(), formatters.HtmlFormatter(nowrap=True)).rstrip()
    return f'<pre class="code" style="font-size: {size}px">{coloured}</pre>{told}'
