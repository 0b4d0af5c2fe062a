"""``linattn-ref live``: pages on which networks run in the browser, and what they are made of."""

import argparse
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, say

__all__ = ["add_live"]


def run_live(arguments: argparse.Namespace) -> None:
    """Write the pages that run in a browser: digits pixel by pixel, a real head token by token, the chapters' sliders.

    To be run in a clone, from whose records and frames they are made. They need neither Python nor a network. With
    --head, --draw or --speed no page is written, but what these options say is done.
    """
    from linattn_ref import clone
    from linattn_ref.lecture.live import build, frames, head, speed

    if arguments.head or arguments.draw or not arguments.speed:
        clone.check("live")
    if arguments.head:
        head.save(head.compute(say), arguments.command_line)
        say(f"wrote {head.RECORD}")
    for number in arguments.draw or ():
        say(f"wrote {frames.draw(number, arguments.command_line)}")
    if arguments.speed:
        for line in speed.told(speed.measure(arguments.networks)):
            say(line)
    if not (arguments.head or arguments.draw or arguments.speed):
        say("wrote", *build.make(arguments.out, runs=arguments.networks))


def add_live(commands: Any) -> None:
    """The command and its options."""
    command = add_command(commands, "live", run_live)
    option = command.add_argument
    option("--out", type=Path, default=Path("out/live"), metavar="DIR", help="where to write (default: %(default)s)")
    option(
        "--networks",
        type=Path,
        nargs=2,
        metavar="PATH",
        help="runs of `train images`, one linear and one softmax (default: those of the package)",
    )
    option("--head", action="store_true", help="export the real head again into figures/records")
    option("--draw", nargs="+", metavar="NN", help="draw the frames of these chapters again into figures/frames")
    option("--speed", action="store_true", help="measure pixels per second of both networks in headless Chromium")
