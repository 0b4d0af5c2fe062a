"""Formula beside line: where a file is cut, and that numbers lead both ways."""

import inspect
import re
from itertools import pairwise
from pathlib import Path

import pytest

import linattn_ref
from linattn_ref.attention import softmax
from linattn_ref.lecture.site import beside, drawing, markdown, pages, prose

SOURCE = '''"""A mechanism.

    y = 2 x                                                  (1)
    dx = 2 dy                                                (2)

By hand.
"""

import numpy as np


def forward(x):
    """Twice ``x``."""
    if x is None:
        return None
    y = np.multiply(
        2,
        x,
    )  # (1)  (N,)
    return y


def backward(d_y):
    """Its gradient."""
    return 2 * d_y  # (2)
'''


def test_a_file_is_cut_where_functions_begin_and_equations_are_computed():
    found = [(part.lines[0], part.lines[-1], part.numbers, part.docstring) for part in beside.segments(SOURCE)]
    assert found == [
        (8, 11, (), ""),
        (12, 15, (), "Twice ``x``."),
        (16, 19, ("1",), ""),
        (20, 22, (), ""),
        (23, 23, (), "Its gradient."),
        (25, 25, ("2",), ""),
    ]


def test_lines_of_the_same_equation_stand_together():
    source = '"""D.\n\n    y = x                      (1)\n\nE.\n"""\n\na = 1  # (1)\nb = 2  # (1)\nc = 3\n'
    assert [(part.lines, part.numbers) for part in beside.segments(source)] == [((8, 9), ("1",)), ((10,), ())]


def test_equations_of_another_file_are_left_alone():
    source = '"""D.\n\n    y = x                      (5)\n\nE.\n"""\n\na = 1  # linear (5), (6)\nb = 2  # (5)\n'
    assert beside.tags(source) == {9: ["5"]}
    page = beside.page_html(source)
    assert page.count('<a href="#eq-5">(5)</a>') == 1
    assert "# linear (5), (6)" in page


def test_numbers_lead_from_formula_to_line_and_back():
    page = beside.page_html(SOURCE)
    for number, line in (("1", 16), ("2", 25)):
        assert f'<div class="equation" id="eq-{number}" data-equations="{number}">' in page
        assert f'<a href="#line-{line}" title="to the code">({number})</a>' in page
        assert f'<div class="beside" id="line-{line}" data-equations="{number}">' in page
        assert page.count(f'href="#eq-{number}"') == 2  # at the formula beside the line, and in the comment


@pytest.mark.parametrize("name", ["linear", "reformer", "softmax", "delta"])
def test_no_line_of_code_is_lost_or_shown_twice(name):
    source = (Path(linattn_ref.__file__).parent / "attention" / f"{name}.py").read_text(encoding="utf-8")
    shown = [line for part in beside.segments(source) for line in part.lines]
    assert shown == sorted(set(shown))
    page = beside.page_html(source)
    targets = set(re.findall(r'id="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= targets


def test_what_is_emphasised_is_so_on_either_kind_of_page():
    typed = "a *set* of ``2 * x``, 3 * y * z and *args"
    assert prose.inline(typed).startswith("a <em>set</em> of ")
    assert "3 * y * z and *args" in prose.inline(typed)
    assert markdown.plain(typed) == r"a *set* of `2 * x`, 3 \* y \* z and \*args"


def test_a_long_line_goes_on_further_right():
    page = beside.page_html(SOURCE)
    assert '<span class="line" style="--indent: 8ch">' in page
    assert page.count('class="line"') == page.count("\n</span>") > 10


def test_letters_are_compared_without_their_index_and_place():
    assert drawing.letters(r"\tilde{K}_{r} = E\, \phi(k_{j}) + \lfloor L / 2 \rfloor") == {"tilde k", "e", "phi k"}
    assert drawing.letters(r"$\phi(K)^\top$") == {"phi k"}
    assert drawing.letters(r"\mathrm{out}_{i}") == drawing.letters("$O$") == {"o"}
    assert drawing.letters("1") == set()


def test_boxes_of_a_drawing_are_where_they_are_drawn_and_lead_to_their_equations():
    places = list(drawing.places("softmax"))
    assert [drawing.letters(place.name) for place in places] == [{"q"}, {"k"}, {"p"}, {"v"}, {"o"}]
    for one, other in pairwise(places):
        assert 0 < one.left < one.left + one.width < other.left < 1
        assert 0 < one.top < one.top + one.height < 1
    docstring = inspect.getdoc(softmax).partition(pages.GRADIENT)[0]
    made = drawing.drawing("softmax", "Softmax attention", prose.equations(docstring))
    assert re.findall(r'href="#eq-(\d)" .*?data-equations="([\d ]+)"', made) == [
        *(("1", "1"), ("1", "1"), ("2", "2 3"), ("3", "3"), ("3", "3"))
    ]
    assert "Every query meets every key" in made
