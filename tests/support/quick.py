"""Figures in their quick size, each computed and drawn once; and what their records keep of them."""

import functools
import json

from linattn_ref.experiments.publishing import catalogue, gallery, record, style


@functools.cache
def quick(name, seed=0):
    """What the figure of that name found."""
    return gallery.compute(name, quick=True, seed=seed)


@functools.cache
def drawn(name):
    """The figure of that name in its quick size; `test_contract` draws each in every style."""
    with style.use():
        return catalogue.module_of(name).draw(quick(name))


def assert_comes_back(name, results):
    """The results, from a record of them."""
    text = record.json_text(record.plain(results))
    again = catalogue.results_of(name, {"results": json.loads(text)})
    assert record.json_text(record.plain(again)) == text


def assert_drawn_as_it_comes_back(name, results):
    """Not empty, and with the same texts."""
    again = catalogue.results_of(name, {"results": json.loads(record.json_text(record.plain(results)))})
    with style.use(style.STYLES[-1]):
        figures = [catalogue.module_of(name).draw(each) for each in (results, again)]
        for figure in figures:
            figure.draw_without_rendering()
    for axes, same in zip(*(figure.axes for figure in figures), strict=True):
        assert axes.has_data()
        assert [each.get_text() for each in axes.texts] == [each.get_text() for each in same.texts]
