"""``linattn-ref live``: write the pages that run in the browser."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linattn_ref.atomic import write_all
from linattn_ref.experiments.learned.drawing import Network
from linattn_ref.experiments.learning.runs import commands
from linattn_ref.lecture.live import frames, head, page, weights

__all__ = ["make"]


def make(out: Path, *, runs: Sequence[Path] | None = None, home: str | None = None) -> list[Path]:
    """Write all pages into ``out``.

    Parameters
    ----------
    out : Path
        Made if it is not there. What else is in it stays.
    runs : two paths, optional
        Runs of ``linattn-ref train images``, one with linear and one with softmax attention; the shipped ones unless
        given.
    home : str, optional
        The address of the site's first page as seen from ``out``: then each page links to it.

    Returns
    -------
    list of Path
        The pages.

    Raises
    ------
    FileNotFoundError, ValueError
        A run, a record or a chapter that is not there or does not fit. Nothing is written then.
    """
    data = {"pixels.html": pixels(runs), "sums.html": {"head": head.read()}}
    texts = {name: page.inline(name, its, links=page.navigation(name, home=home)) for name, its in data.items()}
    texts |= frames.pages(home=home)
    return write_all({out / name: text for name, text in texts.items()})


def pixels(runs: Sequence[Path] | None = None) -> dict[str, Any]:
    """The data of ``pixels.html``: both networks, linear first."""
    trained = sorted((weights.read(path) for path in runs or weights.SHIPPED), key=attention_of)
    if [attention_of(one) for one in trained] != ["linear", "softmax"]:
        got = " and ".join(map(attention_of, trained))
        raise ValueError(f"runs: expected one with linear and one with softmax attention, got {got}")
    told = [origin(one) for one in trained]
    if images(trained[0]) != images(trained[1]):
        told.append("They have not seen as many images as each other: compare memory and time, not the drawings.")
    return {"networks": {"origin": " ".join(told), "networks": [weights.packed(one) for one in trained]}}


def attention_of(trained: Network) -> str:
    """The name of its mechanism."""
    return str(trained.facts["attention"])


def images(trained: Network) -> int:
    """How many images it has seen."""
    return trained.step * int(trained.facts["shape"]["batch"])


def origin(trained: Network) -> str:
    """Where a network comes from, for a reader."""
    shape, rounded = trained.facts["shape"], weights.packed(trained)["format"]
    told = ", then ".join(f"“{command}”" for command in commands(trained.facts))
    return (
        f"{attention_of(trained).capitalize()}: {shape['layers']} layers of {shape['width']}, {shape['heads']} heads,"
        f" after {trained.step:,} steps, {images(trained):,} images, of {told}; weights in {rounded}."
    )
