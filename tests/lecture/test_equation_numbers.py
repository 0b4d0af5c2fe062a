"""A chapter whose equations have the numbers of a page means the same equations by them.

Formulas are compared by their letters, however they are set: of all numbered equations of the page's docstring the one
with the chapter's number has to be the most similar, or as good as that. Displays with one number are compared, and
those with letters, which are the chapter's own, are not.
"""

import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PAGES = {
    "09_performer": "linattn_ref.theory.random_features",
    "14_reformer": "linattn_ref.attention.reformer",
    "19_write_fade_erase": "linattn_ref.attention.delta_rule",
}
SET = "mathrm|operatorname|text|big|bigg|left|right|t?frac|sum|int|top|mathbb|tilde|hat|cdot|[lr]Vert|log|exp|sqrt"
WORDS = r"\b(?:sum|over|the|of|with|from|if|exp|log|sqrt|max|and|not|in|scale|mean)\b"
NUMBER = r"\((\d+)\)"
AS_GOOD = 0.05


def letters(text):
    """How often each letter stands in a formula; of a name, as ``omega`` or ``\\omega``, the first."""
    text = re.sub(rf"\\(?:{SET})(?![a-zA-Z])|{WORDS}", "", text)
    return Counter(re.sub(r"\\?[a-zA-Z]{3,}", lambda name: name.group().lstrip("\\")[0], text)) & Counter(
        dict.fromkeys("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", 99)
    )


def similarity(a, b):
    return sum((a & b).values()) / max(1, sum((a | b).values()))


def of_page(module):
    """The letters of each equation that has a row of the docstring to itself."""
    rows = [row for row in import_module(module).__doc__.splitlines() if row.startswith("    ")]
    found = [(row, re.findall(rf"  {NUMBER}", row)) for row in rows]
    return {int(numbers[0]): letters(re.split(rf"  +{NUMBER}", row)[0]) for row, numbers in found if len(numbers) == 1}


def of_chapter(name):
    text = (NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8")
    prose = "\n".join(line[2:] for line in text.splitlines() if line.startswith("# "))
    for display in re.findall(r"\$\$(.*?)\$\$", prose, re.DOTALL):
        alone = re.fullmatch(rf"(.*)\\qquad {NUMBER}\s*", display, re.DOTALL)
        if alone and not re.search(NUMBER, alone[1]):
            yield int(alone[2]), letters(alone[1])


@pytest.mark.parametrize("name", PAGES)
def test_an_equation_is_that_of_the_page_with_its_number(name):
    page, compared = of_page(PAGES[name]), []
    for number, formula in of_chapter(name):
        if number in page:
            similar = {other: similarity(formula, each) for other, each in page.items()}
            assert similar[number] >= max(similar.values()) - AS_GOOD, (number, similar)
            compared.append(number)
    assert len(compared) >= 5


def test_a_wrong_number_is_found():
    page = of_page("linattn_ref.attention.reformer")
    (ten,) = (formula for number, formula in of_chapter("14_reformer") if number == 10)
    assert similarity(ten, page[10]) > 0.5 > similarity(ten, page[9]) + AS_GOOD
