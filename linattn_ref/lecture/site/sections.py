"""From a chapter's sections to the slides that quote them, and from its slides to its sliders."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from linattn_ref.lecture.slides.deck import Slide

__all__ = ["link_sliders", "link_slides"]

HEADING = re.compile(r"^#{2,3} .+$", re.MULTILINE)
FOOT = '<p class="foot">'  # of a slide; what follows begins with the chapter's number


def link_slides(cells: list[dict[str, Any]], slides: Sequence[Slide], address: str) -> None:
    """Put below each heading a link to the first of the ``slides`` that quotes its section.

    ``cells`` are those of the executed chapter, each source one text, and are changed; ``address`` is the deck's as
    seen from the chapter.
    """
    where: list[tuple[dict[str, Any], str]] = [({}, "")]  # a cell and a heading in it
    texts = [""]
    for cell in cells:
        if cell["cell_type"] == "markdown":
            first, *rest = HEADING.split(cell["source"])
            texts[-1] += first
            texts += rest
            where += [(cell, heading) for heading in HEADING.findall(cell["source"])]
        for output in cell.get("outputs", ()):
            texts[-1] += "\n" + "".join(output.get("text", output.get("data", {}).get("text/markdown", "")))
    texts = [" ".join(text.split()) for text in texts]
    linked = {0}  # what stands above the first heading has no place for a link
    for number, slide in enumerate(slides):
        for quote in _quotes(slide):
            at = next((i for i, text in enumerate(texts) if quote in text), 0)
            if at not in linked:
                linked.add(at)
                cell, heading = where[at]
                link = f'<a class="to-slide" href="{address}#/{number}">Slide</a>'
                lines = cell["source"].split("\n")
                lines[lines.index(heading)] += f"\n\n{link}\n"
                cell["source"] = "\n".join(lines)


def _quotes(slide: Slide) -> list[str]:
    """What the slide's notes quote of its own chapter."""
    own = (" ".join(source.split()) for source in slide.sources if source.startswith(f"chapter {int(slide.chapter)}: "))
    return [quote for source in own for quote in re.findall(r'"([^"]+)"', source)]


def link_sliders(deck: str, sliders: Mapping[str, str]) -> str:
    """The HTML of a deck whose pictures lead to the chapter's sliders, which open over the slide.

    ``sliders`` has addresses as seen from the site's first page, by a chapter's two digits.
    """
    sections = deck.split("</section>")
    for i, section in enumerate(sections):
        before, foot, after = section.rpartition(FOOT)
        number = re.match(r"\d+", after)
        if 'class="slide picture ' in before and number and number[0].zfill(2) in sliders:
            shown = "Reveal.showPreview(this.href); return false"
            link = f'<a href="../{sliders[number[0].zfill(2)]}" onclick="{shown}">Move it</a> · '
            sections[i] = before + foot + link + after
    return "</section>".join(sections)
