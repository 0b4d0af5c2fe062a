"""Figures in their quick size, each computed once."""

import functools

from linattn_ref.experiments.publishing import gallery


@functools.cache
def quick(name, seed=0):
    """What the figure of that name found."""
    return gallery.compute(name, quick=True, seed=seed)
