"""README.md's examples print what README says, and its commands are the ones that CI runs."""

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_examples_print_what_the_page_says(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes on from the one before, as in one file."""
    examples = re.findall(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", page, re.DOTALL)
    assert len(examples) == page.count("```python") > 0
    file = ModuleType("examples")
    monkeypatch.setitem(sys.modules, file.__name__, file)
    for code, printed in examples:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), vars(file))
        assert out.getvalue() == printed


def test_both_set_up_commands_are_one_line_each() -> None:
    install = "python3 -m venv .venv && .venv/bin/pip install -e '.[all]' && "
    assert f"\n{install}.venv/bin/linattn-ref spectrum\n" in README
    assert f"\n{install}.venv/bin/python -m pytest -n auto --dist worksteal\n" in README


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 160


@pytest.mark.parametrize("name", ["README.md", "MECHANISMS.md", "notebooks/README.md"])
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert targets
    assert [t for t in targets if not (t.startswith("http") or (page.parent / t).exists())] == []


def test_table_of_claims_says_which_chapters_name_them() -> None:
    notebooks = ROOT / "notebooks"
    rows = re.findall(
        r"^\| (\d+) \|.*\| ([^|]*) \|$", (notebooks / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    told = {(int(claim), file) for claim, cell in rows for file in re.findall(r"\((\w+)\.ipynb\)", cell)}
    named = {
        (int(claim), path.stem)
        for path in notebooks.glob("[0-9]*.py")
        for numbers in re.findall(r"[Cc]laims? ((?:\d+(?:, | and )?)+)", path.read_text(encoding="utf-8"))
        for claim in re.findall(r"\d+", numbers)
    }
    assert told == named


def test_nothing_in_capitals_is_left_to_fill_in() -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", README, flags=re.DOTALL)
    assert re.findall(r"\b[A-Z]+_[A-Z]+\b", prose) == []
