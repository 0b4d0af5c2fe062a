"""``linattn-ref site``: web pages from the executed chapters, the gallery and the source, by Sphinx."""

from collections.abc import Callable
from pathlib import Path

__all__ = ["make"]


def make(out: Path, *, say: Callable[[str], object]) -> None:
    """Build the site into ``out``."""
    raise RuntimeError(f"the site is not built yet: nothing is written to {out}")
