"""A network that has learned to draw: loaded, drawing, finishing what was begun, and its bits on a test set.

What is loaded is a checkpoint of ``linattn-ref train images``, or what `runs.keep_weights` makes of one: its parameters
alone, in half precision. :data:`SHIPPED` is such a file, a network with linear attention that comes with this package;
its ``facts`` hold the command that trained it.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import linattn_ref.data
from linattn_ref.atomic import write_all
from linattn_ref.data import fetch
from linattn_ref.experiments.learning import images, runs
from linattn_ref.experiments.learning.images import Pixels, Shape
from linattn_ref.experiments.publishing.restore import Results
from linattn_ref.models.causal import Model, Params
from linattn_ref.models.generate import check_temperature, generate, pick
from linattn_ref.nn import logistic_mixture
from linattn_ref.nn.embedding import check_tokens
from linattn_ref.op import Array
from linattn_ref.op.options import check_sizes
from linattn_ref.telling import Progress, Say, silent
from linattn_ref.training import checkpoint

__all__ = ["SHIPPED", "Network", "bits", "check_png", "draw", "load", "measure", "read_image", "write_grid"]

SHIPPED = Path(linattn_ref.data.__file__).with_name("digits_linear.safetensors")
GAP = 2  # pixels between two images of a grid
GREY = 128
ORIENTATION = 0x0112  # the EXIF tag

Bytes = NDArray[np.uint8]


class Network(NamedTuple):
    """What has learned to draw."""

    params: Params
    model: Model
    head: str  # "softmax" or "mixture"
    shape: tuple[int, ...]  # of an image: (side, side) or (side, side, 3)
    step: int  # steps after which it was kept, with those of the runs that it went on from
    facts: dict[str, Any]  # of the run


def load(path: Path = SHIPPED) -> Network:
    """Read a checkpoint, or a file of `runs.keep_weights`; in float32.

    Raises
    ------
    FileNotFoundError, ValueError
        There is none, it is damaged, or not one of images.
    """
    found = checkpoint.load(path)
    try:
        facts, step = found.facts["facts"], found.facts["step"]
        attention, head, side = facts["attention"], facts["head"], facts["side"]
        shape = Shape(**facts["shape"])
        places, width = found.arrays["params.positions.table"].shape
        colours = places // side**2
        if (places, width) != (side**2 * colours, shape.width) or colours not in (1, 3):
            raise ValueError(f"{places} places of {width} columns, side {side}, width {shape.width}")
        if head not in images.HEADS:
            raise KeyError(f"head {head!r}")
        steps = runs.steps_in_all(facts, step)
        rng = np.random.default_rng(0)
        params = images.start(attention, head, shape, side, rng, colours=colours)
        model = images.model_of(attention, shape, places, rng)
    except (AttributeError, KeyError, MemoryError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path}: no checkpoint of `linattn-ref train images` ({error})") from error
    runs.kept_weights(path, params)
    return Network(params, model, head, (side, side) if colours == 1 else (side, side, colours), steps, facts)


def bits(network: Network, pixels: Pixels, *, progress: Progress = iter) -> tuple[Array, Array]:
    """Bits per dimension of each of the images ``(images, N)``: over all pixels, and without the first."""
    attention, shape = network.facts["attention"], Shape(**network.facts["shape"])
    return images.bits(network.params, attention, network.head, shape, pixels, progress=progress)


def draw(
    network: Network,
    count: int,
    rng: np.random.Generator,
    *,
    begun: Pixels | None = None,
    temperature: float = 1.0,
    way: str | None = None,
    progress: Progress = iter,
) -> Bytes:
    """Draw images, each pixel from what the network predicts after those before it.

    Parameters
    ----------
    network : Network
    count : int
    rng : numpy.random.Generator
    begun : ndarray of int ``(count, n)`` or ``(n,)``, optional
        The first ``n`` pixels of each, or of all.
    temperature : float
        Below 1 what is likely becomes likelier; 0 takes the likeliest, of scores alone.
    way : str, optional
        See `linattn_ref.models.generate`.
    progress : callable
        ``tqdm.tqdm``, say.

    Returns
    -------
    ndarray of uint8 ``(count, side, side)``, or with colours ``(count, side, side, 3)``

    Raises
    ------
    TypeError, ValueError
        ``count``, ``begun`` or ``temperature`` does not fit: it is named before anything is drawn.
    """
    check_sizes(count=count)
    of_mixture = logistic_mixture.check_temperature, logistic_mixture.sample
    check, sample = of_mixture if network.head == "mixture" else (check_temperature, pick)
    check(temperature)
    pixels = int(np.prod(network.shape))
    first = np.full((count, 1), images.BEGIN)
    if begun is not None:
        check_tokens("begun", begun, images.BEGIN)
        if begun.ndim not in (1, 2) or begun.shape[:-1] not in ((), (count,)) or begun.shape[-1] >= pixels:
            raise ValueError(
                f"begun: expected shape (n,) or ({count}, n) with n less than {pixels} pixels, got {begun.shape}"
            )
        first = np.concatenate([first, np.broadcast_to(begun, (count, begun.shape[-1]))], axis=1)
    options: dict[str, Any] = {"sample": sample, "temperature": temperature, "way": way, "progress": progress}
    drawn = generate(first, pixels + 1 - first.shape[1], network.params, network.model, rng=rng, **options)
    return drawn[:, 1:].reshape(count, *network.shape).astype(np.uint8)


# --- On a test set ----------------------------------------------------------------------------------------------------


def measure(
    weights: Path, *, data: Path | None = None, count: int | None = None, command: str = "", progress: Progress = iter
) -> Results:
    """Read the network and the images, and count bits, with standard errors over the images.

    How much depends on the first parameters and on the batches, only runs with other seeds can show.

    Parameters
    ----------
    weights : Path
        See :func:`load`.
    data : Path, optional
        See `images.begin`.
    count : int, optional
        The first so many, at least 2; all unless given.
    command : str
        For the record.
    progress : callable
        ``tqdm.tqdm``, say.
    """
    network = load(weights)
    test = images.read(data, network.facts.get("collection", "mnist")).test
    pixels = images.middle(test[:count], network.shape[0])
    if len(pixels) < 2:
        raise ValueError(f"count: expected at least 2 images, got {len(pixels)}")
    each, without_first = bits(network, pixels, progress=progress)
    (mean, error), (without, error_without) = map(_mean_and_error, (each, without_first))
    return Results(
        bits=mean,  # per pixel, over all of them
        error=error,  # standard error over the images
        bits_without_first=without,  # over all but the first of each image
        error_without_first=error_without,
        images=len(pixels),  # the first so many of the test images
        weights=weights.name,
        sha256=fetch.file_sha256(weights),
        step=network.step,  # of training
        attention=network.facts["attention"],
        head=network.head,
        facts=runs.facts(command, network.facts["seed"]),  # what this was computed with
    )


def _mean_and_error(each: Array) -> tuple[float, float]:
    return float(each.mean()), float(np.std(each, ddof=1) / np.sqrt(len(each)))


# --- Files ----------------------------------------------------------------------------------------------------------


def read_image(path: Path, shape: tuple[int, ...], say: Say = silent) -> Bytes:
    """An image file's pixels, ``(side, side)`` or ``(side, side, 3)``, as a viewer shows them on black.

    Parameters
    ----------
    path : Path
    shape : tuple of int
    say : callable
        Told, a line each, how the pixels differ from those in the file: see `_as_shown`.

    Raises
    ------
    OSError
        There is none, or it may not be read.
    ValueError
        It is no image, a damaged one, one of another size, or a grey one with more than 8 bits, which would be clipped.
    """
    import PIL.Image

    try:
        with PIL.Image.open(path) as image:
            mode, (shown, notes) = image.mode, _as_shown(image, grey=len(shape) == 2)
            pixels = np.array(shown.convert("L" if len(shape) == 2 else "RGB"))
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        if getattr(error, "errno", None):  # of the system: it names the file
            raise
        raise ValueError(f"{path}: not an image, or a damaged one ({error})") from error
    if mode[0] in "IF":  # what Pillow clips at 255
        raise ValueError(f"{path}: expected 8 bits per pixel, got more (Pillow's mode {mode})")
    if pixels.shape != shape:
        raise ValueError(f"{path}: expected {shape[1]} x {shape[0]} pixels, got {pixels.shape[1]} x {pixels.shape[0]}")
    for note in notes:
        say(f"{path}: {note}")
    return pixels


def _as_shown(image: Any, *, grey: bool) -> tuple[Any, list[str]]:
    """A Pillow image the right way up and without see-through parts, and what had to be done."""
    import PIL.Image
    import PIL.ImageOps

    notes = []
    if getattr(image, "n_frames", 1) > 1:
        notes.append(f"the first of {image.n_frames} images is taken")
    if image.getexif().get(ORIENTATION, 1) != 1:
        notes.append("turned as its EXIF data say")
    image = PIL.ImageOps.exif_transpose(image)
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        if layer.getextrema()[3][0] < 255:
            notes.append("parts that can be seen through are put on black")
            image = PIL.Image.new("RGBA", image.size, "black")
            image.alpha_composite(layer)
    if grey and image.mode not in ("1", "L", "LA") and image.mode[0] not in "IF":
        red, green, blue = np.moveaxis(np.array(image.convert("RGB")), -1, 0)
        if (red != green).any() or (green != blue).any():
            notes.append("colours are taken as grey")
    return image, notes


def write_grid(path: Path, drawn: Bytes, columns: int) -> None:
    """A PNG of images ``(count, side, side)`` or with colours, row by row."""
    import PIL.Image

    check_png(path)
    picture = PIL.Image.fromarray(grid(drawn, columns))
    write_all({path: partial(picture.save, format="PNG")})


def check_png(path: Path) -> None:
    """What :func:`write_grid` can write."""
    if path.suffix.lower() != ".png":
        raise ValueError(f"out: expected a file name that ends in .png, got {path.name}")


def grid(drawn: Bytes, columns: int) -> Bytes:
    """The images side by side, row by row, as one with grey between."""
    (height, width), colours = drawn.shape[1:3], drawn.shape[3:]
    rows = -(-len(drawn) // columns)
    page = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, *colours), GREY, np.uint8)
    for i, one in enumerate(drawn):
        top, left = i // columns * (height + GAP), i % columns * (width + GAP)
        page[top : top + height, left : left + width] = one
    return page
