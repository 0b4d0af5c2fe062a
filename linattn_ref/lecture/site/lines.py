"""What a search shows of the pages that it finds: their paragraphs, as text."""

import html
import json
import re
from pathlib import Path

__all__ = ["write"]

FOLDERS = (".", "chapters", "code", "figures")  # what is found on other pages is a name
SHORTEST = 5  # words
ARTICLE = re.compile(r"<article.*?</article>", re.DOTALL)
PARAGRAPH = re.compile(r"<(p|li)\b[^>]*>(.*?)</\1>", re.DOTALL)
FORMULA = re.compile(r'<span class="math[^>]*>.*?</span>|\\\(.*?\\\)', re.DOTALL)
ANCHOR = re.compile(r'<a class="headerlink".*?</a>', re.DOTALL)


def write(site: Path) -> None:
    """Write ``_static/lines.js`` of the built pages of a site."""
    pages = [path for folder in FOLDERS for path in sorted((site / folder).glob("*.html"))]
    found = {path.relative_to(site).as_posix(): paragraphs(path.read_text(encoding="utf-8")) for path in pages}
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    (site / "_static" / "lines.js").write_text(f"const LINES = {text};\n", encoding="utf-8")


def paragraphs(page: str) -> list[str]:
    """The text of each, with three dots for a formula."""
    article = ARTICLE.search(page)
    found = (match[2] for match in PARAGRAPH.finditer(article[0] if article else ""))
    bare = (re.sub(r"<[^>]*>", "", FORMULA.sub("…", ANCHOR.sub("", text))) for text in found)
    words = (html.unescape(text).split() for text in bare)
    return [" ".join(each) for each in words if len(each) >= SHORTEST]
