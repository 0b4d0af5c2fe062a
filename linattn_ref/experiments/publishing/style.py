"""Two looks for every figure, ``paper`` and ``projector``, with colours that a colour-blind reader can tell apart.

Every ``draw(results)`` runs inside one of them and takes its size, fonts and line widths from it::

    with style.use("projector"):
        figure, axes = style.figure(1, 2, height=0.4)

References
----------
.. [1] M. Okabe and K. Ito, "Color Universal Design", 2008 (the eight colours).
.. [2] Web Content Accessibility Guidelines 2.2, "relative luminance" and "contrast ratio".
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure

__all__ = ["BLACK", "BLUE", "BROWN", "FEATURES", "GREEN", "GREY", "MECHANISMS", "ORANGE", "PURPLE", "ROLES", "SKY"]
__all__ += ["VERMILLION", "figure", "sequence", "text_colour", "use"]

STYLES = ("paper", "projector")
PRINTED_HEIGHT = 0.38  # the paper style's height over width

# Okabe and Ito's colours [1] by name; the styles' colour cycle is these, in another order.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
BLACK = "#000000"
GREY = "#7F7F7F"  # for what is only there to compare with
BROWN = "#8C510A"

# A mechanism has the same colour in every figure: a family is a hue.
MECHANISMS = {
    "softmax": BLACK,  # with its matrix
    "softmax online": VERMILLION,
    "linear": BLUE,
    "performer": SKY,
    "rfa": "#003B5C",
    "linformer": GREEN,
    "nystromformer": "#00563F",
    "long_short": "#7CB342",
    "local": ORANGE,
    "longformer": "#C1272D",
    "bigbird": "#6B0F3A",
    "sparse_transformer": "#8A8A00",
    "reformer": PURPLE,
}
# Random features by kind.
FEATURES = {"trig": VERMILLION, "positive": BLUE, "hyperbolic": GREEN, "relu": ORANGE}
# In the schematics: what an array is.
ROLES = {
    "queries": BLUE,
    "keys": VERMILLION,
    "values": GREEN,
    "weights": ORANGE,  # scores, weights and features: what is made of queries and keys, one row per token
    "state": PURPLE,  # sums over the tokens
    "fixed": GREY,  # learned or drawn beforehand
    "output": BLACK,
}


@contextmanager
def use(name: str = "paper") -> Iterator[None]:
    """Draw in the style ``name``, ``"paper"`` or ``"projector"``; the settings from before come back at the end."""
    if name not in STYLES:
        raise ValueError(f"style must be one of {', '.join(STYLES)}, got {name!r}")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own matplotlibrc must not change what is drawn
        matplotlib.style.use(Path(__file__).with_name(f"{name}.mplstyle"))
        yield


def figure(rows: int = 1, columns: int = 1, *, height: float = PRINTED_HEIGHT, **options: Any) -> tuple[Figure, Any]:
    """A figure as wide as the style's page, and its axes.

    It is not registered with ``pyplot``, so it is freed with its last reference and never drawn twice in a notebook.

    Parameters
    ----------
    rows, columns : int
        The grid of axes.
    height : float
        Height over width in print. The projector's figures are a third taller, to have room for larger letters.
    **options
        Passed on to ``Figure.subplots`` (``sharey``, ``width_ratios``, ``squeeze``, ...).

    Returns
    -------
    figure : matplotlib.figure.Figure
    axes : matplotlib.axes.Axes or ndarray of them
        As ``Figure.subplots`` gives them.
    """
    page_width, page_height = matplotlib.rcParams["figure.figsize"]
    drawn = Figure(figsize=(page_width, page_height * height / PRINTED_HEIGHT))
    return drawn, drawn.subplots(rows, columns, **options)


def sequence(count: int, cmap: str = "viridis") -> Sequence[tuple[float, float, float, float]]:
    """``count`` colours in order, dark to light, for lines that have an order (layers, lengths, ranks).

    They stop before the colour map's pale end, which cannot be read on white.
    """
    return [matplotlib.colormaps[cmap](0.88 * i / max(count - 1, 1)) for i in range(count)]


def text_colour(rgba: Iterable[float]) -> str:
    """Black or white, whichever stands out more from the colour ``rgba`` (numbers in the cells of a heat map) [2]."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in rgba]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Contrast is (lighter + 0.05) / (darker + 0.05); black's luminance is 0, white's 1.
    return "black" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "white"
