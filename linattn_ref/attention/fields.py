"""What ``help`` says about the fields of a NamedTuple: the comments beside them, where a reader of the file finds them.

    @documented
    class Saved(NamedTuple):
        \"\"\"What the backward pass needs.\"\"\"

        p: Array  # (..., N, L)
        scale: float

``help(Saved)`` then ends its first text with ``p : Array`` and ``(..., N, L)``, in the form of numpydoc. Without
its source, a class is left as it is.
"""

from __future__ import annotations

import linecache
import re
import sys
from typing import TypeVar

__all__ = ["documented"]

T = TypeVar("T", bound=type)
FIELD = re.compile(r"^    (\w+): (.+?)(?: = .+?)?(?:  # (.+))?$", re.MULTILINE)  # name, type, comment


def documented(kind: T) -> T:
    """``kind``, a NamedTuple at the top of its module, with its fields and their comments in its docstring."""
    fields = [f"{name} : {annotation}\n    {comment}".rstrip() for name, annotation, comment in _fields(kind)]
    if fields:
        kind.__doc__ = "\n".join([f"{kind.__doc__}\n", "Attributes", "----------", *fields])
    return kind


def _fields(kind: type) -> list[tuple[str, str, str]]:
    module = sys.modules[kind.__module__]
    text = "".join(linecache.getlines(module.__file__ or "", vars(module)))
    _, _, rest = text.partition(f"\nclass {kind.__name__}(")
    return FIELD.findall(re.split(r"\n\S", rest, maxsplit=1)[0])
