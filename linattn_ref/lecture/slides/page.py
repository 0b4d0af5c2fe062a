"""One HTML file of a deck: its slides, the style, reveal.js, MathJax and the letters, all inside."""

import base64
import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from linattn_ref.data import fetch, npm
from linattn_ref.lecture.slides import markup, pictures, records
from linattn_ref.lecture.slides.deck import KINDS, Deck, Slide

__all__ = ["in_script", "libraries", "page", "plan"]

HERE = Path(__file__).parent
SOURCES = 900  # letters of quotations on one slide
TALL_ENOUGH = 1.25  # width over height of a picture that stands beside the text, not below it
FONTS = {
    "source-sans-pro-regular": "font-style: normal; font-weight: 400",
    "source-sans-pro-italic": "font-style: italic; font-weight: 400",
    "source-sans-pro-semibold": "font-style: normal; font-weight: 600",
}


LICENCES = (
    *((package, "LICENSE") for package in (npm.MATHJAX, npm.REVEAL)),
    (npm.REVEAL, "dist/theme/fonts/source-sans-pro/LICENSE"),
)


def libraries() -> dict[str, str]:
    """The style, scripts and licences of all decks, by their places in ``frame.html``; npm's packages are fetched once.

    Raises
    ------
    FetchError
        They are not there, and cannot be had.
    """
    faces = []
    for name, look in FONTS.items():
        letters = base64.b64encode(npm.read(npm.REVEAL, f"dist/theme/fonts/source-sans-pro/{name}.woff")).decode()
        source = f"src: url(data:font/woff;base64,{letters})"
        faces.append(f"@font-face {{font-family: 'Source Sans Pro'; {look}; {source}}}")
    own = (HERE / "slides.css").read_text(encoding="utf-8")
    styles = [_text(npm.REVEAL, "dist/reset.css"), _text(npm.REVEAL, "dist/reveal.css"), *faces, own]
    licences = "\n\n".join(f"{one.name} {one.version}, {path}\n\n{_text(one, path)}" for one, path in LICENCES)
    return {
        "style": "\n".join(styles) + markup.CODE_STYLE,
        "typeset": in_script(_text(npm.MATHJAX, "es5/tex-svg.js")),  # MathJax: formulas as SVG, which asks for no font
        "reveal": in_script(_text(npm.REVEAL, "dist/reveal.js")),
        "notes": in_script(_text(npm.REVEAL, "plugin/notes/notes.js")),  # the window for the speaker
        "licences": html.escape(licences),
    }


def page(deck: Deck, titles: dict[str, str], root: Path, found: dict[str, str]) -> str:
    """The file: ``titles`` are the chapters' by number, ``root`` is the checkout, ``found`` the `libraries`.

    Raises
    ------
    ValueError
        A number, picture or excerpt that there is not (any more).
    """
    parts = {
        **found,
        "title": html.escape(re.sub(r"[*$\\]", "", deck.title)),
        "slides": "\n".join([*(_section(slide, deck, titles, root) for slide in deck.slides), *_provenance(deck)]),
        "start": (HERE / "start.js").read_text(encoding="utf-8"),
    }
    frame = (HERE / "frame.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], frame)


def _section(slide: Slide, deck: Deck, titles: dict[str, str], root: Path) -> str:
    text = plan(deck.slides) if slide.kind == "plan" else ""
    text = markup.to_html(records.fill(slide.text, root / "figures")) + text
    note = markup.to_html(records.fill(slide.spoken, root / "figures"))
    picture, layout = "", "plain"
    if slide.picture is not None:
        drawn = pictures.of(slide.picture.source, root)
        layout = "beside" if drawn.ratio < TALL_ENOUGH else "below"
        picture = f'<figure><img src="{drawn.address}" alt="{html.escape(slide.picture.alt)}"></figure>'
    above = KINDS[slide.kind] and f'<p class="kind">{KINDS[slide.kind]}</p>'
    below = f"{int(slide.chapter)} · {titles[slide.chapter]}" if slide.chapter != "00" else deck.title
    dark = ' data-background-color="#12263a"' * (slide.kind in ("title", "part", "question"))
    number = f'<p class="number">{int(slide.chapter)}</p>' * (slide.kind == "title" and slide.chapter != "00")
    return (
        f'<section data-timing="{60 * slide.minutes}"{dark}><div class="slide {slide.kind} {layout}">'
        f'<div class="text">{number}{above}{text}</div>{picture}<p class="foot">{markup.to_inline(below)}</p></div>'
        f'<aside class="notes">{note}</aside></section>'
    )


def _provenance(deck: Deck) -> Iterator[str]:
    """The slides behind the last one: where the numbers of each were measured."""
    pages: list[list[str]] = []
    room = 0
    for slide in deck.slides:
        for source in slide.sources:
            title = re.sub(r"^#+ ", "", slide.text.partition("\n")[0])
            plain = html.escape(re.sub(r"[$*`\\]", "", source))
            row = f"<tr><td>{markup.to_inline(title)}</td><td>{plain}</td></tr>"
            if room < len(source):
                pages.append([])
                room = SOURCES
            pages[-1].append(row)
            room -= max(len(source), 90)
    for rows in pages:
        yield (
            '<section data-timing="1"><div class="slide sources plain"><div class="text">'
            f"<h2>Where the numbers come from</h2><table><tbody>{''.join(rows)}</tbody></table></div>"
            f'<p class="foot">{markup.to_inline(deck.title)}</p></div>'
            '<aside class="notes">Not part of the talk: the places where each number was measured.</aside></section>'
        )


def plan(slides: Sequence[Slide]) -> str:
    """A table of the course: its parts, and their minutes."""
    rows: list[tuple[str, int, int]] = []  # title, begins at, minutes
    at = 0
    for slide in slides:
        heading = re.search(r"^# (.+)$", slide.text, re.MULTILINE)
        if heading and slide.kind in ("title", "part"):
            rows.append((heading[1], at, 0))
        rows[-1] = (*rows[-1][:2], rows[-1][2] + slide.minutes)
        at += slide.minutes
    lines = "".join(
        f"<tr><td>{begin // 60}:{begin % 60:02}</td><td>{markup.to_inline(title)}</td><td>{minutes} min</td></tr>"
        for title, begin, minutes in rows
    )
    return f"<table><tbody>{lines}</tbody></table>"


def _text(package: fetch.Package, member: str) -> str:
    return npm.read(package, member).decode("utf-8")


def in_script(code: str) -> str:
    """Code that does not end the element it stands in."""
    return re.sub(r"</(script)", r"<\\/\1", code, flags=re.IGNORECASE).replace("<!--", r"<\!--")
