"""Figures in their quick size, each computed and drawn once."""

import functools

from linattn_ref.experiments.publishing import catalogue, gallery, style


@functools.cache
def quick(name, seed=0):
    """What the figure of that name found."""
    return gallery.compute(name, quick=True, seed=seed)


@functools.cache
def drawn(name):
    """The figure of that name in its quick size; `test_contract` draws each in every style."""
    with style.use():
        return catalogue.module_of(name).draw(quick(name))
