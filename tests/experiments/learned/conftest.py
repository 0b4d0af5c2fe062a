"""What networks have learned is asked by commands, too."""

from experiments.learning.conftest import _one_parser  # noqa: F401
