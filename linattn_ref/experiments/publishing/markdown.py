"""Tables as Markdown. By hand, since libraries pad the columns: a diff of a record would be all of the table."""

from collections.abc import Iterable, Sequence

__all__ = ["table"]


def table(header: Sequence[str], rows: Iterable[Sequence[object]], aligned: str = "lr") -> list[str]:
    """The lines of a table; a column is at its left or right as its letter says, those without one as the last."""
    letters = aligned.ljust(len(header), aligned[-1])
    rule = [{"l": "---", "r": "---:"}[letter] for letter in letters]
    return [f"| {' | '.join(map(str, line))} |" for line in (header, rule, *rows)]
