"""What stands on a sheet of `drawing`: boxes, squares that are never made or have few entries, signs between them; and
the arrays that several pictures have."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

__all__ = ["ABOUT", "EQUALS", "LETTER", "OF_SUMS", "PHI_K", "PHI_Q", "PLUS", "PRODUCT", "TOY"]
__all__ += ["Box", "Cells", "E", "F", "Ghost", "Item", "K", "O", "Part", "Q", "Sign", "Stack", "V"]
__all__ += ["becomes", "column", "columns_of", "row", "rows_of", "state", "sums"]

TOY = {"N": 9, "L": 9, "D": 3, "M": 3, "C": 4, "m": 4, "R": 2, "1": 1}  # how long a side of a letter is drawn
LETTER = 1.4  # of the font that names an array, in units


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


PRODUCT, EQUALS, ABOUT, PLUS = Sign("·", 0.4, product=True), Sign("=", 1.0), Sign("≈", 1.0), Sign("+", 1.0)


def becomes(text: str = "", width: float = 3.5) -> Sign:
    """An arrow with what is done written over it."""
    return Sign(text, width, arrow=True)


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


# --- Arrays ---------------------------------------------------------------------------------------------------------

Q = Box("$Q$", "N", "D", "queries")
K = Box("$K$", "L", "D", "keys")
V = Box("$V$", "L", "M", "values")
O = Box("$O$", "N", "M", "output")
OF_SUMS = [V, Box("1", "L", "1", "values")]  # what S and z are sums of: the values, and a column of ones
PHI_Q = Box("$\\phi(Q)$", "N", "C", "weights")
PHI_K = Box("$\\phi(K)$", "L", "C", "weights")
# Linformer's, learned
E = Box("$E$", "R", "L", "fixed")
F = Box("$F$", "R", "L", "fixed")


def state(index: str) -> Box:
    """``S`` after one token."""
    return Box(f"$S_{{{index}}}$", "C", "M", "state")


def sums(index: str = "") -> list[Box]:
    """``S`` and ``z``, side by side; the index is that of ``S``."""
    return [state(index) if index else Box("$S$", "C", "M", "state"), Box("$z$", "C", "1", "state")]


def column(role: str) -> Box:
    """Of one token: its ``C`` features."""
    return Box("", "C", "1", role)


def row(role: str, width: str = "M") -> Box:
    """Of one token: a row of what it has."""
    return Box("", "1", width, role)
