"""The clone of the repository that this package is run from: chapters, figures and records are in no wheel."""

from pathlib import Path

__all__ = ["ROOT", "check", "needed"]

ROOT = Path(__file__).parents[1]  # in an installed package, site-packages
PARTS = ("pyproject.toml", "notebooks", "figures")


def check(wanted: str) -> None:
    """See that there is a clone.

    Parameters
    ----------
    wanted : str
        What needs it, for the error.

    Raises
    ------
    FileNotFoundError
        The package was installed without one, as from a wheel.
    """
    missing = [name for name in PARTS if not (ROOT / name).exists()]
    if missing:
        raise FileNotFoundError(
            f"{wanted}: this needs a clone of the repository, with its notebooks and figures, and linattn_ref was "
            f"installed without, in {ROOT}: run `pip install -e .` in a clone"
        )


def needed(path: Path) -> Path:
    """A path that may be one of the repository's own files.

    Raises
    ------
    FileNotFoundError
        It is, and there is no clone.
    """
    if path.is_relative_to(ROOT) and not path.exists():
        check(str(path.relative_to(ROOT)))
    return path
