"""Text of others, shown and not obeyed."""

import re

__all__ = ["visible"]


def visible(text: str) -> str:
    """A text whose control characters, line feeds and tabs excepted, are written as Python writes them.

    A terminal would obey them: with some, a text renames its window, with others it clears the screen. Bytes of a file
    name that are not UTF-8, which no file takes and no letter shows, are written so too.

    >>> visible("a film\\x1b[2J")
    'a film\\\\x1b[2J'
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: repr(found[0])[1:-1], text)
