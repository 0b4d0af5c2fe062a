"""Mistakes that were shipped, as chapter 25 has them: their own tests passed, and the judge names them."""

import ast
from pathlib import Path

import pytest

from linattn_ref import conform

CHAPTER = Path(__file__).parents[2] / "notebooks" / "25_kernels_that_lied.py"
COUNT = 11


def told(node):
    """Whether a statement of the chapter only shows or checks something."""
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and not is_planting(node))


def is_planting(node):
    return isinstance(node.value, ast.Call) and ast.unparse(node.value).startswith("shipped(")


@pytest.fixture(scope="module")
def shipped():
    """What the chapter calls ``SHIPPED``, up to where it goes on to kernels that are right."""
    text, found, _ = CHAPTER.read_text(encoding="utf-8").partition("# ## What is not a mistake")
    assert found
    module = ast.parse(text)
    module.body = [node for node in module.body if not told(node)]
    space = {}
    exec(compile(module, str(CHAPTER), "exec"), space)
    assert len(space["SHIPPED"]) == COUNT
    return list(space["SHIPPED"].values())


@pytest.mark.shipped_bugs
@pytest.mark.parametrize("number", range(COUNT))
def test_its_own_test_passed_and_the_judge_names_it(shipped, number):
    op, kernel, check, diagnosis, usual_test, mapping = shipped[number]
    assert usual_test(kernel)
    outcome = conform.check(kernel, op, only=(check,), mapping=conform.Mapping(**mapping))[check]
    assert outcome.verdict == "FAILED"
    assert outcome.named[0] == diagnosis
