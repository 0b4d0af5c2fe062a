"""The drawing of a mechanism on its page: each box is a link to the equations in which its letter occurs.

Letters are compared without their index. Where no equation has a box's letter with its accent or as a feature, those
are taken that have the letter alone.
"""

import html
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from linattn_ref.experiments.publishing import catalogue, style
from linattn_ref.lecture.site import prose
from linattn_ref.lecture.site.markdown import raw

__all__ = ["Place", "drawing", "letters", "places"]

LETTER = re.compile(
    r"""\\(tilde|bar|hat)\ ?\{?([A-Za-z]) | \\(phi)\(([A-Za-z])? |
    \\(?:mathrm|text|operatorname)\{([^}]*)\} | \\?([A-Za-z]+)""",
    re.VERBOSE,
)
PARTS = re.compile(r"_\{[^{}]*\}|_\w|\\lfloor.*?\\rfloor")  # that are about places, not arrays
SAME = {"out": "o"}


class Place(NamedTuple):
    """A box: what stands in it, and where it is, in parts of the picture, from its left and upper edge."""

    name: str
    left: float
    top: float
    width: float
    height: float


def drawing(name: str, title: str, equations: Mapping[str, prose.Equation]) -> str:
    """Markdown of the drawing, which is ``figures/schematic_<name>.svg``, with its caption."""
    said = {number: letters(equation.tex) for number, equation in equations.items()}
    boxes = []
    for place in places(name):
        (letter,) = letters(place.name)
        bare = letter.split()[-1]
        numbers = [number for number in said if letter in said[number]] or [
            number for number in said if bare in {each.split()[-1] for each in said[number]}
        ]
        if numbers:
            sides = zip(("left", "top", "width", "height"), place[1:], strict=True)
            style = "; ".join(f"{side}: {part:.2%}" for side, part in sides)
            label = f"{letter}, in equation{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
            attributes = f'style="{style}" aria-label="{label}"{prose.about(numbers)}'
            boxes.append(f'<a class="box" href="#eq-{numbers[0]}" {attributes}></a>')
    picture = f"```{{image}} /figures/schematic_{name}.svg\n:alt: {title}, drawn\n```\n"
    caption = f'<p class="caption">{html.escape(catalogue.caption_of(f"schematic_{name}"))}</p>'
    return f"::::{{div}} drawing\n{picture}\n{raw(''.join(boxes))}::::\n\n{raw(caption)}"


def places(name: str) -> Iterator[Place]:
    """The boxes of the drawing that have a letter."""
    made = catalogue.module_of(f"schematic_{name}")
    random = {"rng": np.random.default_rng(0)} if "rng" in inspect.signature(made.compute).parameters else {}
    with style.use():
        figure = made.draw(made.compute(**random))
    width, height = figure.bbox.size
    for patch in figure.axes[0].patches:
        if letters(patch.get_label()) and not patch.get_label().startswith("_"):  # Matplotlib's own, of what has none
            box = patch.get_window_extent()
            left, top = box.x0 / width, 1 - box.y1 / height
            yield Place(patch.get_label(), left, top, box.width / width, box.height / height)


def letters(tex: str) -> set[str]:
    """The arrays in a formula or a box, whatever their index: ``k_j``, ``K`` and ``K^T`` are one."""
    found = set()
    for accent, accented, phi, of, word, letter in LETTER.findall(PARTS.sub("", tex)):
        name = accented or of or word or letter
        found.add(" ".join(filter(None, [accent or phi, SAME.get(name, name).lower()])))
    return found - {"top"}
