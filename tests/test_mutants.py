"""Each mistake in ``mutants.py`` is made in a copy of the package, and the tests that are to find it are run there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path):
    for name in ("linattn_ref", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(copy, *words):
    """The package that is imported is the copy, also by the processes that a test starts."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *words]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what.replace(" ", "-"))
def test_its_text_stands_once_in_its_file(mutant):
    text = (ROOT / "linattn_ref" / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, "it was edited: say in mutants.py where this mistake can be made now"


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, marks=[pytest.mark.thorough] * mutant.thorough) for mutant in MUTANTS],
    ids=lambda mutant: mutant.what.replace(" ", "-"),
)
def test_it_is_found(mutant, copy):
    """A test fails: no error on the way to the tests, and none that a copy alone would have."""
    path = copy / "linattn_ref" / mutant.file
    path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
    done = run(copy, f"tests/{mutant.tests}", "-k", mutant.chosen, *["-m", "slow"] * mutant.thorough)
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-1000:]
    assert re.search(r"^FAILED .*::test_", done.stdout, re.MULTILINE), done.stdout[-2000:]


@pytest.mark.slow
def test_nothing_is_found_where_nothing_was_changed(copy):
    done = run(copy, "tests/contract/test_forward.py", "-k", "reference and (softmax or local)")
    assert done.returncode == 0, done.stdout[-2000:]
