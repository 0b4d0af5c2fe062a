"""Versions of packages in which calls made here are gone or renamed."""

import re

__all__ = ["check_tokenizers"]


def check_tokenizers() -> None:
    """Raise an ImportError unless tokenizers has a version of pyproject.toml; from 1.0 on it cannot train."""
    import tokenizers

    if not (0, 20) <= tuple(map(int, re.findall(r"\d+", tokenizers.__version__)[:2])) < (1, 0):
        raise ImportError(
            f"tokenizers: expected a version from 0.20 to below 1, got {tokenizers.__version__}: pip install"
            " 'tokenizers>=0.20,<1'"
        )
