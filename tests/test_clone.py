"""The package without its repository, as a wheel installs it: the folder alone, elsewhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import linattn_ref
from linattn_ref import clone

COMMANDS = """
import linattn_ref.lecture.live.head as head
from linattn_ref import cli

head.compute = lambda say: {}  # which reads a network that is fetched
for words in (["live", "--head"], ["live", "--draw", "02"], ["live"], ["slides", "1"]):
    print(*words, "ends with", cli.main(words))
"""
LIBRARY = """
from linattn_ref.experiments.learned import drawing
from linattn_ref.experiments.learned import duplication_attention
from linattn_ref.experiments.learned import mlm_curves
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing import chapter
from linattn_ref.lecture.live import head

def tried(name, call, *given):
    try:
        call(*given)
    except FileNotFoundError as error:
        print(f"{name}: {error}")

tried("chapter.record", chapter.record, "decoding")
tried("compute", mlm_curves.compute)
tried("gathered", runs.gathered, runs.RECORDS / "speech.json")
tried("learned", duplication_attention.learned, "linear")
tried("save", head.save, {}, "a command")
drawing.load()  # is in the package
"""
SAYS = "this needs a clone of the repository, with its notebooks and figures, and linattn_ref was installed without, in"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What both say, run with the package as it lies in a folder of packages; and that folder."""
    folder = tmp_path_factory.mktemp("installed")
    packages, work = folder / "site-packages", folder / "work"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(linattn_ref.__file__).parent, packages / "linattn_ref", ignore=ignored)
    work.mkdir()
    before = set(packages.rglob("*"))
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", COMMANDS + LIBRARY]
    done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done, packages, before


def test_commands_that_need_a_clone_say_so(installed):
    done, packages, _ = installed
    assert done.stdout.splitlines()[:4] == [
        f"{words} ends with 2" for words in ("live --head", "live --draw 02", "live", "slides 1")
    ]
    assert done.stderr.splitlines() == [
        f"linattn-ref: error: {name}: {SAYS} {packages}: run `pip install -e .` in a clone"
        for name in ("live", "live", "live", "slides")
    ]


def test_what_chapters_read_says_that_a_clone_is_needed(installed):
    done, packages, _ = installed
    names = {
        "chapter.record": "figures/decoding.json",
        "compute": "figures/records/mlm.json",
        "gathered": "figures/records/speech.json",
        "learned": "figures/records/duplication-linear-0.safetensors",
        "save": "live --head",
    }
    assert done.stdout.splitlines()[4:] == [
        f"{name}: {file}: {SAYS} {packages}: run `pip install -e .` in a clone" for name, file in names.items()
    ]


def test_nothing_is_written_among_the_packages(installed):
    """``live --head`` wrote its record to ``site-packages/figures``."""
    _, packages, before = installed
    assert {path for path in packages.rglob("*") if "__pycache__" not in path.parts} == before


def test_in_a_clone_nothing_is_said(tmp_path):
    clone.check("this")
    for path in (clone.ROOT / "figures" / "none.json", tmp_path / "none.json"):
        assert clone.needed(path) == path
