"""What the network that comes with the package draws, and how it finishes test images of which it is given half.

Nothing is chosen: the images are the first that are drawn from the seed, and of the test set the first of each digit.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", appendix D, figures 6 and 7.
"""

import numpy as np

from linattn_ref.experiments.learned import drawing
from linattn_ref.experiments.learning import images, runs
from linattn_ref.experiments.publishing.kit import Figure, Generator, NDArray, Results, style

__all__ = ["compute", "draw", "from_text", "to_text"]

SAMPLES, COLUMNS, COMPLETIONS = 50, 10, 3

Bytes = NDArray[np.uint8]


def compute(*, rng: Generator, quick: bool = False) -> Results:
    """Draw, and go on.

    Parameters
    ----------
    rng : numpy.random.Generator
    quick : bool
        A few, and in place of test images, which are fetched, those drawn before: for tests.
    """
    network = drawing.load()
    samples = drawing.draw(network, 4 if quick else SAMPLES, rng)
    originals = samples[:2] if quick else _first_of_each()
    side, rows = network.shape[0], network.shape[0] // 2
    given = np.repeat(originals[:, :rows].reshape(len(originals), -1), COMPLETIONS, axis=0)
    completions = drawing.draw(network, len(given), rng, begun=given)
    bits, _ = drawing.bits(network, originals.reshape(-1, side * side))
    return Results(  # images are text: two hexadecimal digits per pixel, row by row
        samples=to_text(samples),  # drawn from nothing
        originals=to_text(originals),  # test images, the first of each digit
        bits=bits,  # per pixel of each original, by the network
        completions=to_text(completions),  # COMPLETIONS of the first original, then of the next
        rows=rows,  # of each original that were given
        commands=runs.commands(network.facts),  # that trained the network, each going on from the one before
        step=network.step,
    )


def _first_of_each() -> Bytes:
    found = images.read(None)
    return found.test[[int(np.argmax(found.test_labels == digit)) for digit in range(10)]]


def to_text(drawn: Bytes) -> tuple[str, ...]:
    """Images ``(count, side, side)`` as text."""
    return tuple(one.tobytes().hex() for one in drawn)


def from_text(text: tuple[str, ...]) -> Bytes:
    """The images of :func:`to_text`."""
    flat = np.array([np.frombuffer(bytes.fromhex(one), np.uint8) for one in text])
    side = round(flat.shape[1] ** 0.5)
    return flat.reshape(-1, side, side)


def draw(results: Results) -> Figure:
    """Digits drawn a pixel at a time by the network of 4 layers of linear attention that comes with this package.
    Left: the first 50, from nothing. Right: test images, the first of each digit; below each, what was given of it,
    and three ways in which the network went on.
    """
    figure, (left, right) = style.figure(1, 2, height=0.275)
    samples, originals = from_text(results.samples), from_text(results.originals)
    completions = from_text(results.completions).reshape(len(originals), COMPLETIONS, *originals.shape[1:])
    given = originals.copy()
    given[:, results.rows :] = drawing.GREY
    pages = np.concatenate([originals[:, None], given[:, None], completions], axis=1).swapaxes(0, 1)
    for axes, drawn, columns, title in (
        (left, samples, min(COLUMNS, len(samples)), "drawn from nothing"),
        (right, pages.reshape(-1, *originals.shape[1:]), len(originals), "originals, halves, completions"),
    ):
        axes.imshow(drawing.grid(drawn, columns), cmap="gray", vmin=0, vmax=255, interpolation="none")
        axes.set(title=title, xticks=[], yticks=[])
        axes.spines[["left", "bottom"]].set_visible(False)
    return figure
