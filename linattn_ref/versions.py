"""Versions of packages in which calls made here are gone or renamed."""

__all__ = ["check_tokenizers"]


def check_tokenizers() -> None:
    """Raise an ImportError if the installed tokenizers is 1.0 or newer, which can neither train nor build one."""
    import tokenizers

    if not tokenizers.__version__.startswith("0."):
        raise ImportError(
            f"tokenizers: expected a version from 0.20 to below 1, got {tokenizers.__version__}: pip install"
            " 'tokenizers<1'"
        )
