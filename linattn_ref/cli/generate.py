"""``linattn-ref generate``, ``bits`` and ``ship``: what a network that has learned to draw is good for."""

import argparse
import math
from functools import partial
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, at_least, say, tell, watched

__all__ = ["add"]


def run_generate(arguments: argparse.Namespace) -> None:
    """Draw digits, a pixel at a time, or finish one that was begun; by the network that comes with the package.

    Writes a PNG. With --prefix-image the first in it is the image itself, and of the others its first rows are kept.
    """
    import numpy as np

    from linattn_ref.atomic import check_writable
    from linattn_ref.experiments.learned import drawing

    drawing.check_png(arguments.out)  # before minutes of drawing
    network = drawing.load(arguments.weights or drawing.SHIPPED)
    begun = shown = None
    if arguments.prefix_image:
        if arguments.out.resolve() == arguments.prefix_image.resolve():
            raise ValueError(f"--out: {arguments.out} is the image to go on from; give another file")
        shown = drawing.read_image(arguments.prefix_image, network.shape, say=tell)
        rows = network.shape[0] // 2 if arguments.rows is None else arguments.rows
        if rows >= network.shape[0]:
            raise ValueError(f"--rows: expected fewer than the {network.shape[0]} of the image, got {rows}")
        begun = shown[:rows].ravel()
    elif arguments.rows is not None:
        raise ValueError("--rows: those of which image? Give --prefix-image")
    check_writable(arguments.out)
    how = {"begun": begun, "temperature": arguments.temperature, "progress": partial(watched, unit="pixel")}
    drawn = drawing.draw(network, arguments.count, np.random.default_rng(arguments.seed), **how)
    if shown is not None:
        drawn = np.concatenate([shown[None], drawn])
    drawing.write_grid(arguments.out, drawn, math.ceil(math.sqrt(len(drawn))))
    say(f"wrote {arguments.out}")


def run_bits(arguments: argparse.Namespace) -> None:
    """Count the bits per pixel that the test images take by a network; a minute for all of MNIST's.

    Over all pixels and, as in "Transformers are RNNs", without the first, before which nothing has been seen. Writes
    the numbers with their standard errors over the images as JSON.
    """
    from linattn_ref.atomic import check_writable, write_all
    from linattn_ref.experiments.learned import drawing
    from linattn_ref.experiments.learning import runs
    from linattn_ref.experiments.publishing.record import json_text, plain

    weights = arguments.weights or drawing.SHIPPED
    if not weights.is_file():
        raise FileNotFoundError(f"weights: no checkpoint at {weights}")
    runs.check_target(arguments.out, ".json", "out")  # and so never the weights themselves
    check_writable(arguments.out)  # before a minute of counting
    how = {"data": arguments.data, "count": arguments.images, "command": arguments.command_line}
    found = drawing.measure(weights, **how, progress=partial(watched, unit="batch"))
    write_all({arguments.out: json_text(plain(found)) + "\n"})
    say(f"{found.bits:.4f} +- {found.error:.4f} bits per pixel of {found.images} test images, over all pixels")
    say(f"{found.bits_without_first:.4f} +- {found.error_without_first:.4f} without the first pixel")
    say(f"wrote {arguments.out}")


def run_ship(arguments: argparse.Namespace) -> None:
    """Write what a run has learned, its last checkpoint's parameters alone, in half precision."""
    from linattn_ref.experiments.learning import runs

    runs.keep_weights(arguments.source, arguments.target)
    say(f"wrote {arguments.target}")


def add(commands: Any) -> None:
    """The commands and their options."""
    weights = "of `linattn-ref train images`, such as out/images/last.safetensors (default: those of the package)"
    option = add_command(commands, "generate", run_generate).add_argument
    option("--weights", "--checkpoint", type=Path, metavar="FILE", help=weights)
    option("--count", type=at_least(1), default=16, metavar="B", help="number of images (default: %(default)s)")
    told = "below 1 they are more alike (default: %(default)s)"
    option("--temperature", type=float, default=1.0, metavar="T", help=told)
    told = "an image to continue, of the network's size; light on dark"
    option("--prefix-image", type=Path, metavar="FILE", help=told)
    option("--rows", type=at_least(1), metavar="R", help="rows of it that are kept (default: half)")
    option("--seed", type=at_least(0), default=0, help="(default: 0)")
    option("--out", type=Path, default=Path("out/drawn.png"), metavar="FILE.png", help="(default: %(default)s)")

    option = add_command(commands, "bits", run_bits).add_argument
    option("--weights", "--checkpoint", type=Path, metavar="FILE", help=weights)
    option("--data", type=Path, metavar="DIR", help="the original files (default: MNIST's, fetched once)")
    option("--images", type=at_least(2), metavar="S", help="how many, from the first (default: all)")
    option("--out", type=Path, default=Path("out/bits.json"), metavar="FILE.json", help="(default: %(default)s)")

    option = add_command(commands, "ship", run_ship).add_argument
    option("source", type=Path, metavar="DIR", help="folder of a run of `linattn-ref train`")
    option("target", type=Path, metavar="FILE.safetensors", help="the file to write, a sixth as large")
