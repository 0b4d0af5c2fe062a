"""The vocabulary of the schematics: boxes with their letters, products, what is summed, and what is never made.

A picture is put on a `Sheet`, in units of a token: an array with ``N`` rows and ``D`` columns is a box as tall as a
toy's ``N`` and as wide as its ``D``. One colour has one meaning (`style.ROLES`)::

    sheet = Sheet()
    q, k = Box("$Q$", "N", "D", "queries"), Box("$K$", "L", "D", "keys")
    x = sheet.row(0, 0, q, PRODUCT, k.T, EQUALS, Box("$A$", "N", "L", "weights"))
    figure = sheet.figure("What stands above it")

A product of boxes whose letters do not fit is an error.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.textpath import TextPath

from linattn_ref.experiments.publishing.kit import PAIRS, Figure, NDArray, Results, style

__all__ = ["LETTER", "TOY", "WIDTH", "Box", "Cells", "Ghost", "Part", "Picture", "Sheet", "Sign", "Stack", "picture"]
__all__ += ["tint"]

WIDTH = 60.0  # units, of every picture: so a token is as large in all of them
GAP = 1.2  # on both sides of a sign
TITLE, SMALL = 1.3, 1.0  # of fonts, in units
TOY = {"N": 9, "L": 9, "D": 3, "M": 3, "C": 4, "m": 4, "R": 2, "1": 1}  # how long a side of a letter is drawn
LETTER = 1.4  # of the font that names an array, in units


# --- What stands on a sheet ---------------------------------------------------------------------------------------


class Box(NamedTuple):
    """An array: its name, the letters of its rows and columns, and what it is."""

    name: str
    rows: str
    columns: str
    role: str  # of style.ROLES

    @property
    def T(self) -> "Box":  # as in NumPy
        """The transposed."""
        return Box(f"{self.name.removesuffix('$')}^\\top$", self.columns, self.rows, self.role)


class Ghost(NamedTuple):
    """The matrix that is never made: a dashed, empty square; perhaps with a box inside, at left."""

    rows: str = "N"
    columns: str = "L"
    inside: Box | None = None
    label: str = "never\nmade"


class Cells(NamedTuple):
    """The same square with the few entries that there are, each in the colour of its kind (`pairs.PAIRS`)."""

    kinds: NDArray[Any]  # (N, L), as `pairs.paint` makes them; 0 is none
    rows: str = "N"
    columns: str = "L"
    strength: NDArray[Any] | None = None  # (N, L), from 0 to 1, how much of the colour
    label: str = ""


class Stack(NamedTuple):
    """Boxes that touch, one below the other."""

    boxes: tuple[Box, ...]


class Sign(NamedTuple):
    """Between two boxes."""

    text: str
    width: float
    product: bool = False
    arrow: bool = False


Part = Box | Ghost | Cells | Stack
Item = Part | Sign | Sequence[Part]  # a list: side by side, touching


def rows_of(item: Any) -> str:
    """The letters of its rows."""
    if isinstance(item, Stack):
        return " + ".join(box.rows for box in item.boxes)
    return str(item[0].rows if isinstance(item, list) else item.rows)


def columns_of(item: Any) -> str:
    """The letters of its columns."""
    if isinstance(item, list):
        return " + ".join(map(columns_of, item))
    return str((getattr(item, "inside", None) or item).columns)


# --- The sheet ----------------------------------------------------------------------------------------------------


class Sheet:
    """What has been put on it, and how far it reaches."""

    def __init__(self, sizes: Mapping[str, int] = TOY, *, unit: float = 1.0) -> None:
        self.sizes, self.unit = {**TOY, **sizes}, unit
        self.boxes: list[Box] = []
        self.low, self.high, self.left, self.right = 0.0, 0.0, 0.0, 0.0
        self.inches = matplotlib.rcParams["figure.figsize"][0] / WIDTH  # all letters and lines grow with the page
        self.points = 72 * self.inches
        self.drawn = Figure()
        self.drawn.set_layout_engine("none")
        self.axes = self.drawn.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def row(self, x: float, y: float, *items: Item) -> float:
        """Put items side by side from ``x`` on, centred on ``y``; the ``x`` where they end.

        Raises
        ------
        ValueError
            A product of boxes whose inner letters differ.
        """
        for before, item, after in zip((None, *items[:-1]), items, (*items[1:], None), strict=True):
            if isinstance(item, Sign):
                middle = x + 0.7 * GAP + item.width / 2  # the rest is room for the letter of the rows that follow
                self._sign(middle, y, item)
                if item.product:
                    self._summed(middle, y, before, after)
                x += item.width + 2 * GAP
            else:
                for i, one in enumerate(item if isinstance(item, list) else [item]):
                    x = self.put(x, y, one, rows=i == 0)
        return x

    def put(self, x: float, y: float, item: Part, *, rows: bool = True) -> float:
        """One of them, its left end at ``x``; its right end. ``rows``: with the letter of its rows."""
        if isinstance(item, Box):
            return self.box(x, y, item, rows=rows)
        if isinstance(item, Ghost):
            return self._ghost(x, y, item)
        if isinstance(item, Cells):
            return self.cells(x, y, item, rows=rows)
        top = y + sum(self.side(box.rows) for box in item.boxes) / 2
        for i, box in enumerate(item.boxes):
            right = self.box(x, top - self.side(box.rows) / 2, box, columns=i == 0)
            top -= self.side(box.rows)
        return right

    def side(self, letter: str) -> float:
        """How long a side with this letter is drawn."""
        return self.unit * self.sizes[letter]

    def box(self, x: float, y: float, box: Box, *, rows: bool = True, columns: bool = True) -> float:
        """One box, with the letters of its rows and columns or without; its right end."""
        width, height = self.side(box.columns), self.side(box.rows)
        self.boxes.append(box)
        colour, share = style.ROLES[box.role], 0.15 if box.role == "output" else 0.4
        self._frame(x, y, width, height, facecolor=tint(colour, share), edgecolor=colour, label=box.name)
        wide = TextPath((0, 0), box.name, size=1).get_extents().width if box.name else 0.0
        self.text(x + width / 2, y, box.name, size=min(LETTER, 0.78 * width / max(wide, 0.1)))
        self._letters(x, y, width, height, box.rows if rows else "1", box.columns if columns else "1")
        return x + width

    def cells(self, x: float, y: float, cells: Cells, *, rows: bool = True) -> float:
        """Squares where there is an entry, in a dashed frame."""
        width, height = self.side(cells.columns), self.side(cells.rows)
        down, across = height / cells.kinds.shape[0], width / cells.kinds.shape[1]
        colours = list(PAIRS.values())
        for i, j in np.argwhere(cells.kinds):
            left, middle = x + j * across, y + height / 2 - (i + 0.5) * down
            colour = tint(colours[cells.kinds[i, j]], 1.0 if cells.strength is None else cells.strength[i, j])
            self._frame(left, middle, across, down, facecolor=colour, edgecolor="white", line=0.05)
        self._frame(x, y, width, height, fill=False, edgecolor=style.GREY, linestyle=(0, (4, 2)))
        self._letters(x, y, width, height, cells.rows if rows else "1", cells.columns)
        if cells.label:
            self.text(x, y - height / 2 - 0.35, cells.label, ha="left", va="top")
            self._reach(x, y - height / 2 - 1.4)
        return x + width

    def square(self, x: float, y: float, colour: Any, *, size: float = 1.0) -> None:
        """One token or one pair, its middle at ``(x, y)``."""
        self._frame(x - size / 2, y, size, size, facecolor=colour, edgecolor=style.BLACK, line=0.08)

    def line(self, start: tuple[float, float], end: tuple[float, float], **look: Any) -> None:
        """From one point to another, without a head."""
        self.axes.plot(*zip(start, end, strict=True), linewidth=0.08 * self.points, **look)

    def text(self, x: float, y: float, text: str, *, size: float = SMALL, **look: Any) -> None:
        """Text in the middle of ``(x, y)``, unless told otherwise."""
        self._reach(x, y - 0.6, y + 0.6)
        self.axes.text(x, y, text, fontsize=size * self.points, **{"ha": "center", "va": "center", **look})

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """From one point to another."""
        self._reach(start[0], start[1], end[1])
        patch = FancyArrowPatch(start, end, arrowstyle="-|>", color="black", shrinkA=0, shrinkB=0)
        patch.set(mutation_scale=1.3 * self.points, linewidth=0.15 * self.points)
        self.axes.add_patch(patch)

    def figure(self, title: str) -> Figure:
        """The picture under its title."""
        low, high = self.low - 0.5, self.high + 3.2
        if self.right - self.left > WIDTH - 1:
            raise ValueError(f"the picture is {self.right - self.left:.1f} wide, the page {WIDTH - 1}")
        left = (self.left + self.right - WIDTH) / 2
        self.drawn.set_size_inches(WIDTH * self.inches, (high - low) * self.inches)
        self.axes.set(xlim=(left, left + WIDTH), ylim=(low, high), aspect="equal")
        self.text(left + 0.7, high - 0.4, title, size=TITLE, ha="left", va="top", fontweight="bold")
        return self.drawn

    # --- What they are made of --------------------------------------------------------------------------------------

    def _reach(self, x: float, *ys: float) -> None:
        self.left, self.right = min(self.left, x), max(self.right, x)
        self.low, self.high = min(self.low, *ys), max(self.high, *ys)

    def _frame(self, x: float, y: float, width: float, height: float, *, line: float = 0.15, **look: Any) -> None:
        self._reach(x, y - height / 2, y + height / 2)
        self._reach(x + width, y)
        self.axes.add_patch(Rectangle((x, y - height / 2), width, height, linewidth=line * self.points, **look))

    def _letters(self, x: float, y: float, width: float, height: float, rows: str, columns: str) -> None:
        """The lengths of the sides, at the left and above; a side of 1 goes without saying."""
        if rows != "1":
            self.text(x - 0.25, y, rows, ha="right", color=DIM)
        if columns != "1":
            self.text(x + width / 2, y + height / 2 + 0.2, columns, va="bottom", color=DIM)
            self._reach(x, y + height / 2 + 1.3)

    def _ghost(self, x: float, y: float, ghost: Ghost) -> float:
        width, height = self.side(ghost.columns), self.side(ghost.rows)
        self._frame(x, y, width, height, fill=False, edgecolor=style.GREY, linestyle=(0, (4, 2)))
        self._letters(x, y, width, height, ghost.rows, ghost.columns)
        inside = 0.0
        if ghost.inside is not None:
            inside = self.side(ghost.inside.columns)
            self.box(x, y, ghost.inside, rows=False)
        self.text(x + (width + inside) / 2, y, ghost.label, color=DIM)
        return x + width

    def _sign(self, x: float, y: float, sign: Sign) -> None:
        if not sign.arrow:
            self.text(x, y, sign.text, size=1.3 * LETTER, fontweight="bold")
            return
        half = sign.width / 2
        self.arrow((x - half, y), (x + half, y))
        self.text(x, y + 0.35, sign.text, va="bottom", linespacing=1.0)

    def _summed(self, x: float, y: float, before: Any, after: Any) -> None:
        """Under a product, the letter that is summed over."""
        left, right = columns_of(before), rows_of(after)
        if left != right:
            raise ValueError(f"no product of {before} and {after}: {left} columns, {right} rows")
        if left != "1":
            depth = max(sum(map(self.side, rows_of(item).split(" + "))) for item in (before, after)) / 2
            self.text(x, y - depth - 0.35, f"sum over {left}", va="top", color=style.BLACK)
            self._reach(x, y - depth - 1.4)


DIM = "#555555"  # of the letters of sides


def tint(colour: str, share: float) -> tuple[float, ...]:
    """The colour with white: black letters can be read on it, in print too."""
    return tuple(1 - share * (1 - x) for x in to_rgb(colour))


# --- Pictures -------------------------------------------------------------------------------------------------------


def toy_sizes() -> Results:
    """The results of a picture that needs nothing else: how long the side of each letter is."""
    return Results(TOY)


class Picture(NamedTuple):
    """A figure, as the `catalogue` takes it."""

    compute: Callable[..., Any]
    draw: Callable[[Any], Figure]


def picture(
    title: str, compute: Callable[..., Any] = toy_sizes, *, unit: float | None = None
) -> Callable[[Callable[..., None]], Picture]:
    """Make a picture of a function that puts on a `Sheet` what stands there; its docstring begins with the caption.

    Parameters
    ----------
    title : str
    compute : callable
        Returns the sizes of the letters; or those as ``sizes``, and arrays, which the function takes.
    unit : float, optional
        How large a token is drawn; by default 9 of them, or as many as there are queries, are as tall as a toy.
    """

    def of(put: Callable[..., None]) -> Picture:
        def draw(results: Any) -> Figure:
            arrays = dict(results)
            sizes = arrays.pop("sizes", None) or results
            sheet = Sheet(sizes, unit=unit or TOY["N"] / sizes["N"])
            put(sheet, *(arrays.values() if "sizes" in results else ()))
            return sheet.figure(title)

        draw.__doc__ = put.__doc__
        return Picture(compute, draw)

    return of
