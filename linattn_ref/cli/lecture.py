"""``linattn-ref site``, ``slides`` and ``live``: what a lecture needs besides the chapters."""

import argparse
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, add_out, say

__all__ = ["add"]


def run_site(arguments: argparse.Namespace) -> None:
    """Build the web pages: chapters, formulas beside code, gallery, API; they need no network and no Python.

    To be run in a clone, whose chapters have been executed. The folder is replaced when the new one is whole.
    """
    from linattn_ref.lecture.site import build

    options = {"run": arguments.run_cells, "sentence": arguments.sentence, "without": arguments.without}
    build.make(arguments.out, **options, say=say)


def run_slides(arguments: argparse.Namespace) -> None:
    """Make slides of chapters, or of the whole course: one HTML file each, with notes for the speaker.

    To be run in a clone. The files need no network. In the browser `s` opens the speaker's window; with `?print-pdf`
    at the end of the address the browser prints them as PDF, one page per slide.
    """
    from linattn_ref.lecture.slides import build

    build.make(arguments.chapters, arguments.out, say=say)


def run_live(arguments: argparse.Namespace) -> None:
    """Write the pages that run in a browser: digits pixel by pixel, a real head token by token, the chapters' sliders.

    To be run in a clone, from whose records and frames they are made. They need neither Python nor a network. With
    --head, --draw or --speed no page is written, but what these options say is done.
    """
    from linattn_ref import clone
    from linattn_ref.lecture.live import build, frames, head, speed

    of_clone, page = arguments.head or arguments.draw, not (arguments.head or arguments.draw or arguments.speed)
    if arguments.networks and of_clone and not arguments.speed:
        raise ValueError("--networks: --head and --draw use none; leave it out")
    if arguments.out and not page:
        raise ValueError("--out: with --head, --draw or --speed no page is written; leave it out")
    if of_clone or page:
        clone.check("live")
    if arguments.head:
        head.save(head.compute(say), arguments.command_line)
        say(f"wrote {head.RECORD}")
    for number in arguments.draw or ():
        say(f"wrote {frames.draw(number, arguments.command_line)}")
    if arguments.speed:
        for line in speed.told(speed.measure(arguments.networks)):
            say(line)
    if page:
        say("wrote", *build.make(arguments.out or Path("out/live"), runs=arguments.networks))


def add(commands: Any) -> None:
    """The commands and their options."""
    command = add_command(commands, "site", run_site)
    add_out(command, Path("out/site"))
    told = "have each chapter's cells run, and changed code of mechanisms checked, in the browser (adds 59 MB)"
    command.add_argument("--run", action="store_true", dest="run_cells", help=told)
    told = "add a page where a pretrained network reads the reader's own text, and shows its attention and how low "
    told += "its rank is (adds 49 MB, nearly all of which --run has too)"
    command.add_argument("--sentence", action="store_true", help=told)
    told = "leave out the decks (12 MB), or the pages that run without Python and the sliders of chapters (5 MB)"
    command.add_argument("--without", nargs="+", default=(), choices=("slides", "live"), help=told)

    command = add_command(commands, "slides", run_slides)
    told = "chapters; all: one deck for the course of two hours; short: one lecture of 90 minutes"
    command.add_argument("chapters", nargs="+", metavar="NN|all|short", help=told)
    add_out(command, Path("out/slides"))

    command = add_command(commands, "live", run_live)
    option = command.add_argument
    add_out(command, None, "out/live")
    told = "runs of `train images`, one linear and one softmax (default: those of the package)"
    option("--networks", type=Path, nargs=2, metavar="PATH", help=told)
    option("--head", action="store_true", help="export the real head again into figures/records")
    option("--draw", nargs="+", metavar="NN", help="draw the frames of these chapters again into figures/frames")
    option("--speed", action="store_true", help="measure pixels per second of both networks in headless Chromium")
