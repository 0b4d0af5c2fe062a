"""A page is one file: its styles, scripts and data stand in it, so that it works from anywhere, a disk or a mail.

In a template in ``assets/`` these lines are replaced:

    <!-- style NAME -->     the style sheet of that name
    <!-- script NAME -->    the script
    <!-- data NAME -->      data of that name as JSON, ``document.getElementById(NAME)``
    <!-- navigation -->     links to the other pages
"""

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["ASSETS", "LARGEST", "PAGES", "Html", "inline", "navigation"]

ASSETS = Path(__file__).with_name("assets")
LARGEST = 4_000_000  # bytes of a page
PAGES = {"pixels.html": "Pixel by pixel", "sums.html": "N × N or C × M", "frames/index.html": "Sliders"}


class Html(str):
    """Data that is a part of the page as it is."""


def inline(template: str, data: Mapping[str, Any], *, links: str) -> str:
    """The page of a template, whole.

    Raises
    ------
    ValueError
        It is larger than :data:`LARGEST`.
    """

    def replaced(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "navigation":
            return links
        if kind != "data":
            return f"<{kind}>\n{(ASSETS / name).read_text(encoding='utf-8')}</{kind}>"
        if isinstance(data[name], Html):
            return data[name]
        # "<" would end the script element, were there a "</script>" in a text
        text = json.dumps(data[name], separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        return f'<script type="application/json" id="{name}">{text}</script>'

    text = (ASSETS / template).read_text(encoding="utf-8")
    page = re.sub(r"<!-- (style|script|data|navigation) ?([\w.]*) -->", replaced, text)
    if len(page.encode()) > LARGEST:
        raise ValueError(f"{template}: the page would have {len(page.encode()):,} bytes, more than {LARGEST:,}")
    return page


def navigation(here: str, *, home: str | None = None) -> str:
    """Links from the page ``here`` to the others; ``home`` is where the site's own pages begin, as seen from here."""
    up = "../" * here.count("/")
    links = [f'<a href="{html.escape(home)}">The course</a>'] if home else []
    for address, name in PAGES.items():
        current = ' aria-current="page"' if address == here else ""
        links.append(f'<a href="{up}{address}"{current}>{name}</a>')
    return f'<nav aria-label="Pages">{" ".join(links)}</nav>'
