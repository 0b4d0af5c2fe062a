"""How a caller is told what goes on while something takes long."""

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Progress", "Say", "silent"]

Say = Callable[[str], object]  # told in a line each what is done: ``print``
Progress = Callable[[Iterable[Any]], Iterable[Any]]  # wraps what is gone through: ``tqdm.tqdm``; `iter` tells nothing


def silent(line: str) -> None:
    """A `Say` that tells nobody."""
