"""Numbers of a record, ``figures/NAME.json``, in a text: ``{{decoding: ratio[-1] | .0f}}``.

Before the bar stands where the number is, from ``results`` down: names, places, and in a list of rows the one with
given entries, ``rows[kernel=jit,batch=1].min_ms``; then, perhaps, a factor, ``* 1e6``. After it stands how it is
written, as Python writes numbers.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["fill"]

REFERENCE = re.compile(r"\{\{(\w+): *([^|*{}]+?) *(?:\* *([\d.e-]+) *)?\| *([^{}]+?) *\}\}")
STEP = re.compile(r"(\w+)|\[(-?\d+)\]|\[(\w+=[^\]]+)\]")


def fill(text: str, figures: Path) -> str:
    """The text with each reference replaced by the number it means.

    Raises
    ------
    ValueError
        A record, or a number in it, that is not there.
    """
    return REFERENCE.sub(lambda found: _written(found, figures), text)


def _written(found: re.Match[str], figures: Path) -> str:
    name, path, factor, form = found.groups()
    try:
        value = _record(figures / f"{name}.json")
        for step in STEP.finditer(path):
            value = _one_down(value, step)
        return format(value * float(factor) if factor else value, form)
    except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{found[0]}: no such number in figures/{name}.json ({error!r})") from error


def _one_down(value: Any, step: re.Match[str]) -> Any:
    name, place, row = step.groups()
    if name:
        return value[name]
    if place:
        return value[int(place)]
    wanted = dict(entry.split("=") for entry in re.split(r",(?=\w+=)", row))
    (found,) = (one for one in value if all(str(one[key]) == text for key, text in wanted.items()))
    return found


@cache
def _record(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))["results"]
