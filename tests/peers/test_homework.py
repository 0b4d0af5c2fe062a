"""Sheets that are solved in PyTorch, in JAX, and with kernels in Triton's interpreter: nothing is lost."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from linattn_ref.homework import grade, read, write
from linattn_ref.homework.apart import Apart

WRITTEN = Path(__file__).parent / "homework"
LIBRARIES = {"torch": ["torch"], "jax": ["jax"], "triton": ["torch", "triton"]}


def handed_in(folder, name, library):
    """The handout with the functions of these files behind it: a kernel in Triton stands behind those of PyTorch."""
    for needed in LIBRARIES[library]:
        if not importlib.util.find_spec(needed):
            pytest.skip(f"{needed} is not installed")
    write(read(name), folder)
    with (folder / "answer.py").open("a", encoding="utf-8") as answer:
        for each in LIBRARIES[library]:
            answer.write("\n\n" + (WRITTEN / f"{name}_{each}.py").read_text(encoding="utf-8"))
    return folder


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["softmax", "linear", "delta"])
def test_all_points(name, library, tmp_path):
    with Apart(handed_in(tmp_path / "work", name, library), read(name)) as submission:
        assert [(x.item.name, x.why) for x in grade(read(name), submission) if x.why] == []


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["softmax", "linear", "delta"])
def test_the_handouts_own_tests(name, library, tmp_path):
    folder = handed_in(tmp_path / "work", name, library)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    told = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
    assert not told.returncode, told.stdout
