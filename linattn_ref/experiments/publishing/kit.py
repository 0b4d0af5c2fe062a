"""What the modules of figures are made of, in one line of imports: types, what a figure found, and how it is drawn."""

from collections.abc import Sequence

from matplotlib.artist import setp
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.random import Generator
from numpy.typing import NDArray

from linattn_ref.experiments.publishing import labels, markdown, style
from linattn_ref.experiments.publishing.labels import over_reduced, with_range
from linattn_ref.experiments.publishing.pairs import PAIRS, paint
from linattn_ref.experiments.publishing.restore import Results
from linattn_ref.op import Array, Mask

__all__ = ["PAIRS", "Array", "Axes", "Figure", "Generator", "Ints", "Line2D", "Mask", "NDArray", "Results", "labels"]
__all__ += ["markdown", "over_reduced", "paint", "setp", "style", "with_range"]

Ints = Sequence[int]
