"""A block of a transformer, forward, and below it in a mirror the way of the gradients."""

from linattn_ref.experiments.publishing.kit import Results, style
from linattn_ref.experiments.schematics.drawing import Box, Sheet, picture

__all__ = ["block"]

UP, DOWN = 6.5, -6.5  # where the two ways are drawn
NAMES = ("X", "QKV", "O", "H", "U", "Y")
ROLE = {"Q": "queries", "K": "keys", "V": "values", "U": "weights"}
# Between two arrays: what is done, what is kept of it, and which parameters get their gradients there
STEPS = (
    ("norm,\nproduct", "norm\nand rows", "$a, b,$\n$W_{qkv}$"),
    ("attention", "queries, keys,\nvalues", ""),
    ("product", "rows", "$W_o$"),
    ("norm,\nproduct", "norm\nand rows", "$a, b,$\n$W_1$"),
    ("GELU,\nproduct", "slopes\nand units", "$W_2$"),
)
GAP = 7.4  # between two arrays


def sizes() -> Results:
    """How long the side of each letter is drawn."""
    return Results(N=9, E=4, F=9)


@picture("A block, forward and backward", sizes, unit=0.55)
def block(sheet: Sheet) -> None:
    """A block of a transformer, norms first. Above: N rows of E numbers become queries, keys and values, attention
    reads them, and its output is added to the rows that came in. Then the same happens with a feed-forward layer of F
    hidden units. Below, from right to left: the gradients, each as large as the array above it, and those of the
    parameters (a and b are a norm's gain and bias). Where the way forward adds, the way back copies, and where rows
    go two ways, two gradients are added. Dotted: what the forward pass keeps.

    The arrays of a block from left to right, and under each its gradient.
    """
    left, places = 0.0, []
    for name in NAMES:
        for y, d in ((UP, ""), (DOWN, "d")):
            right = left
            for letter in name:
                box = Box(f"${d}{letter}$", "N", "F" if letter == "U" else "E", ROLE.get(letter, "output"))
                right = sheet.box(right, y, box, rows=name == "X")
        places.append((left, right))
        left = right + GAP
    for (_, start), (end, _), step in zip(places, places[1:], STEPS, strict=False):
        _step(sheet, start, end, *step)
    for first, last in ((0, 3), (3, 5)):
        _past(sheet, places[first], places[last])


def _step(sheet: Sheet, start: float, end: float, done: str, kept: str, learned: str) -> None:
    """The arrow forward, the one back, what is kept between them, and which gradients of parameters fall off."""
    middle = (start + end) / 2
    sheet.arrow((start + 0.4, UP), (end - 0.4, UP))
    sheet.text(middle - 0.9, UP + 0.4, done, va="bottom", linespacing=1.0)
    sheet.arrow((end - 0.4, DOWN), (start + 0.4, DOWN))
    for y, towards in ((UP - 0.6, 1.5), (-1.5, DOWN + 0.6)):
        sheet.line((middle, y), (middle, towards), color=style.GREY, linestyle=":")
    sheet.text(middle, 0, kept, linespacing=1.0, color=style.GREY)
    if learned:
        sheet.arrow((middle + 0.9, DOWN - 0.3), (middle + 0.9, DOWN - 1.6))
        sheet.text(middle + 0.9, DOWN - 1.8, learned, va="top", linespacing=1.0)


def _past(sheet: Sheet, first: tuple[float, float], last: tuple[float, float]) -> None:
    """The way past the layers, added before the last array; the gradient's way back, added before the first."""
    half = 0.55 * 9 / 2  # of an array's height
    for y, way, (start, plus) in ((UP, 1, (sum(first) / 2, last[0] - 2)), (DOWN, -1, (sum(last) / 2, first[1] + 1.9))):
        edge, from_box = y + way * 5.4, y + way * (half + (1.6 if way > 0 else 0.0))  # above it stands a letter
        sheet.line((start, from_box), (start, edge), color=style.BLACK)
        sheet.line((start, edge), (plus, edge), color=style.BLACK)
        sheet.arrow((plus, edge), (plus, y + way * 0.8))
        sheet.text(plus, y, "+", size=1.3, bbox={"boxstyle": "circle,pad=0.1", "fc": "white", "ec": "black"})
