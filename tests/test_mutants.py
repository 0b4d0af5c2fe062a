"""Each mistake in ``mutants.py`` is made in a copy of the package, and the tests that are to find it are run there.

And mistakes drawn by ``mutant_generator.py``: ``python -m pytest -m mutants --mutants 60 --seed 1`` lists those that
README's test command does not notice. Nobody else may edit tests meanwhile; one that is found takes seconds, one that
is not as long as all tests.
"""

import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import mutant_generator
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
@pytest.mark.thorough
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what.replace(" ", "-"))
def test_it_is_found(mutant, copy):
    """A test fails: no error on the way to the tests, and none that a copy alone would have."""
    path = copy / "linattn_ref" / mutant.file
    path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
    done = run(copy, f"tests/{mutant.tests}", "-k", mutant.chosen, *["-m", "slow"] * mutant.slow)
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-1000:]
    assert re.search(r"^FAILED .*::test_", done.stdout, re.MULTILINE), done.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.thorough
def test_nothing_is_found_where_nothing_was_changed(copy):
    done = run(copy, "tests/contract/test_forward.py", "-k", "reference and (softmax or local)")
    assert done.returncode == 0, done.stdout[-2000:]


# --- Drawn ---

COPIED = ("linattn_ref", "tests", "notebooks", "figures", ".github", ".ci")  # and the files beside them
COMPILED = ("kernels/jit/", "attention/sparse/part.py")


def pytest_generate_tests(metafunc):
    if "drawn" in metafunc.fixturenames:
        option = metafunc.config.option
        unwanted = "not mutants" in option.markexpr
        drawn = [] if unwanted else mutant_generator.draw(ROOT / "linattn_ref", option.mutants, option.seed)
        metafunc.parametrize("drawn", drawn, ids=[f"{x.file}:{x.line}-{x.kind.replace(' ', '-')}" for x in drawn])


@pytest.fixture(scope="module")
def whole_copy(tmp_path_factory):
    """Everything that tests read, with Numba's caches; the tests pass there while nothing was changed."""
    folder = tmp_path_factory.mktemp("whole")
    for path in ROOT.iterdir():
        if path.name in COPIED:
            shutil.copytree(path, folder / path.name)
        elif path.is_file():
            shutil.copy2(path, folder)
    code, said = find(folder, [])
    assert code == 0, said[-4000:]
    return folder


def find(folder, near, **environment):
    """The tests near to a mistake, then all: pytest's code, and what it said. What never ends is found too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | environment
    for words in [[*near, "-n", "0"]] * bool(near) + [["-n", "auto", "--dist", "worksteal"]]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--ignore=tests/test_mutants.py",
        ]
        with subprocess.Popen(
            [*command, *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment, "PYTHONPATH": str(folder)},
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=1800)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its workers too
                return -signal.SIGKILL, "no end"
        if process.returncode not in (0, 5):  # 5: none of these tests is a default one
            break
    return process.returncode, said


def files_near(file):
    """First the tests of a file's name, then a few that name it, then those of its folder."""
    *folders, stem = Path(file).with_suffix("").parts
    stem = folders.pop() if stem == "__init__" else stem
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path != Path(__file__)]
    named = [path for path in files if stem in path.stem or re.search(rf"\b{stem}\b", path.read_text(encoding="utf-8"))]
    named.sort(
        key=lambda path: (stem not in path.stem, path.parent.name not in folders, path.parent.name != "contract")
    )
    near = dict.fromkeys([*named[:6], *(path for path in files if folders[0] in path.relative_to(ROOT).parts)])
    return [str(path.relative_to(ROOT)) for path in near]


TEXT = '''"""A sum - of 1."""

__all__ = ["f"]
TILE = 64


def f(x: "1 + 2", n: int | None = None) -> "x - 1":
    """Returns x - 1."""
    if n < 3:
        raise ValueError(f"n - 1: {n - 1}")
    return np.where(x > 0, 2.0 * x, -x).sum(axis=-1) + x[1:n]
'''


def test_what_can_be_drawn(tmp_path):
    """Every kind; and nothing in annotations, messages and what a module says about itself."""
    (tmp_path / "f.py").write_text(TEXT)
    lines, text = TEXT.splitlines(), TEXT.encode()
    mutants = list(mutant_generator.mutants_of(tmp_path / "f.py", "f.py"))
    assert all(mutant_generator.is_another(each, text) for each in mutants)
    changed = {(each.kind, each.apply(text).decode().splitlines()[each.line - 1].strip()) for each in mutants}
    assert changed >= {
        ("comparison", "if n <= 3:"),
        ("constant", "if n < 4:"),
        ("sign", "return np.where(x > 0, 2.0 * x, (x)).sum(axis=-1) + x[1:n]"),
        ("sign", "return np.where(x > 0, 2.0 * x, -x).sum(axis=-1) - x[1:n]"),
        ("mask", "return np.where(~(x > 0), 2.0 * x, -x).sum(axis=-1) + x[1:n]"),
        ("axis", "return np.where(x > 0, 2.0 * x, -x).sum(axis=-2) + x[1:n]"),
        ("off by one", "return np.where(x > 0, 2.0 * x, -x).sum(axis=-1) + x[1:n + 1]"),
        ("dropped term", "return (np.where(x > 0, 2.0 * x, -x).sum(axis=-1))"),
        ("dropped term", "return np.where(x > 0, (x), -x).sum(axis=-1) + x[1:n]"),
    }
    assert {each.line for each in mutants} == {lines.index("    if n < 3:") + 1, len(lines)}


def test_a_seed_draws_the_same_from_every_folder():
    folders = mutant_generator.STRATA
    one, again, other = (mutant_generator.draw(ROOT / "linattn_ref", 2 * len(folders), seed) for seed in (1, 1, 2))
    assert one == again != other
    for folder in folders:
        assert sum(each.file.startswith(f"{folder}/") for each in one) == 2


@pytest.mark.mutants
def test_a_drawn_mistake_is_found(drawn, whole_copy, tmp_path):
    path = whole_copy / "linattn_ref" / drawn.file
    text, times = path.read_bytes(), path.stat()
    # Not a file of the same second: Python would go on with what it compiled of the other. What kernels contain is
    # compiled anew, apart from the caches of the copy.
    caches = {"NUMBA_CACHE_DIR": str(tmp_path)} if drawn.file.startswith(COMPILED) else {}
    try:
        path.write_bytes(drawn.apply(text))
        code, _ = find(whole_copy, files_near(drawn.file), **caches)
    finally:
        path.write_bytes(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    lines = (each.decode().splitlines(keepends=True) for each in (text, drawn.apply(text)))
    difference = "".join(difflib.unified_diff(*lines, drawn.file, drawn.kind, n=2))
    assert code != 0, f"no test finds this:\n{difference}"
