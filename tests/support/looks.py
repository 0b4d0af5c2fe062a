"""The styles that figures are drawn in."""

import pytest

from linattn_ref.experiments.publishing import style

each_look = pytest.mark.parametrize(
    "look", [pytest.param(name, marks=[pytest.mark.slow] * (name != style.STYLES[0])) for name in style.STYLES]
)
"""What is on a figure is the same in all of them: the slow tests draw it in the others too."""
