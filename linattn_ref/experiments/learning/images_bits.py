"""How many bits a pixel of the test images takes by a network: ``linattn-ref bits``.

    bits(x) = -1/N sum_i log2 p(x_i | x_1 ... x_i-1)

The mean over the images, and its standard error, which is of the choice of test images alone; of the choice of the
first parameters and of the batches say runs with other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.data import fetch
from linattn_ref.experiments.learning import drawing, runs
from linattn_ref.experiments.learning.images import middle, read
from linattn_ref.op import Array

__all__ = ["Results", "compute"]


class Results(NamedTuple):
    """The numbers, and of what."""

    bits: float  # a pixel, over all of them
    error: float  # standard error over the images
    bits_without_first: float  # over all but the first of each image
    error_without_first: float
    images: int  # the first so many of the test images
    weights: str  # the file
    sha256: str
    step: int  # of training
    attention: str
    head: str
    facts: dict[str, Any]  # what this was computed with


def compute(
    weights: Path,
    *,
    data: Path | None = None,
    images: int | None = None,
    command: str = "",
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Results:
    """Read the network and the images, and count.

    Parameters
    ----------
    weights : Path
        See `drawing.load`.
    data : Path, optional
        See `images.run`.
    images : int, optional
        The first so many; all unless given.
    command : str
        For the record.
    progress : callable
        ``tqdm.tqdm``, say.
    """
    network = drawing.load(weights)
    test = read(data, network.facts.get("collection", "mnist")).test
    pixels = middle(test[: len(test) if images is None else images], network.shape[0])
    each, without_first = drawing.bits(network, pixels, progress=progress)
    return Results(
        *_mean_and_error(each),
        *_mean_and_error(without_first),
        images=len(pixels),
        weights=weights.name,
        sha256=fetch.file_sha256(weights),
        step=network.step,
        attention=network.facts["attention"],
        head=network.head,
        facts=runs.facts(command, network.facts["seed"]),
    )


def _mean_and_error(each: Array) -> tuple[float, float]:
    return float(each.mean()), float(np.std(each, ddof=1) / np.sqrt(len(each)))
