"""npm's packages: what is checked, kept, taken out and said. No test here needs a network, but the one marked so."""

import base64
import hashlib
import io
import subprocess
import tarfile
from http.client import IncompleteRead
from pathlib import Path

import pytest

from linattn_ref.data import npm
from linattn_ref.data.fetch import FetchError, fetch

FILES = {"LICENSE": b"may be used", "dist/a.js": b"a()", "dist/css/b.css": b"b{}", "test/c.js": b"c()"}


def archive(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


ARCHIVE = archive(FILES)
INTEGRITY = "sha512-" + base64.b64encode(hashlib.sha512(ARCHIVE).digest()).decode()
DEMO = npm.pinned("@some/demo", "1.0", INTEGRITY, 1)


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A registry on this disk that serves ``DEMO``; there is no npm."""
    served = tmp_path / "registry" / "@some" / "demo" / "-" / "demo-1.0.tgz"
    served.parent.mkdir(parents=True)
    served.write_bytes(ARCHIVE)
    monkeypatch.setenv(npm.REGISTRY_VARIABLE, f"{(tmp_path / 'registry').as_uri()}/")
    monkeypatch.setattr(npm.shutil, "which", lambda name: None)
    return served


def test_what_is_altered_or_not_pinned_is_fetched_anew_or_discarded(tmp_path, registry):
    """As wheels are: once, and offline afterwards."""
    told = []
    path = fetch(DEMO, cache=tmp_path / "cache", progress=told.append)
    assert (path.name, len(told)) == ("some-demo-1.0.tgz", 1)
    assert "@some/demo 1.0, 1 MB" in told[0]
    path.write_bytes(b"altered")
    assert fetch(DEMO, cache=tmp_path / "cache").read_bytes() == ARCHIVE
    registry.write_bytes(ARCHIVE + b"more")
    assert fetch(DEMO, cache=tmp_path / "cache") == path
    path.unlink()
    with pytest.raises(FetchError, match=r"not the pinned file: expected SHA-512 .*, got .*; it was discarded"):
        fetch(DEMO, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_registry_in_reach_says_what_to_do(tmp_path, registry):
    registry.unlink()
    with pytest.raises(FetchError, match=r"run `npm pack @some/demo@1\.0`, and copy some-demo-1\.0\.tgz into"):
        fetch(DEMO, cache=tmp_path / "cache")


@pytest.mark.parametrize("error", [IncompleteRead(b"half"), ConnectionResetError("reset")], ids=repr)
@pytest.mark.usefixtures("registry")
def test_a_broken_connection_is_told(error, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(npm.urllib.request, "urlopen", broken)
    with pytest.raises(FetchError, match="run `npm pack"):
        fetch(DEMO, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_npm_is_asked_where_it_is(tmp_path, monkeypatch):
    def run(command, *, cwd, **options):
        assert command == ["/bin/npm", "pack", "--loglevel=error", "--ignore-scripts", "@some/demo@1.0"]
        (cwd / DEMO.filename).write_bytes(ARCHIVE)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(npm.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(npm.subprocess, "run", run)
    assert fetch(DEMO, cache=tmp_path).read_bytes() == ARCHIVE


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ("code ENOVERSIONS", "No versions available for demo", "A complete log is in x"),
            "No versions available for demo",
        ),
        (
            ("code ENOTFOUND", "syscall getaddrinfo", "errno ENOTFOUND", "network request to x failed"),
            "network request to x",
        ),
    ],
)
def test_what_npm_says_is_told(lines, told, tmp_path, monkeypatch):
    said = "".join(f"npm error {line}\n" for line in lines)
    monkeypatch.setattr(npm.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(npm.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", said))
    with pytest.raises(FetchError, match=told):
        fetch(DEMO, cache=tmp_path)


def test_files_are_read_by_their_names(tmp_path, registry):
    assert {name: npm.read(DEMO, name, cache=tmp_path) for name in FILES} == FILES
    with pytest.raises(FetchError, match=r"has no file 'd\.js'"):
        npm.read(DEMO, "d.js", cache=tmp_path)


@pytest.mark.network
@pytest.mark.parametrize("package", [npm.MATHJAX, npm.REVEAL], ids=lambda package: package.name)
def test_the_registry_has_what_is_pinned(package, tmp_path):
    assert isinstance(fetch(package, cache=tmp_path), Path)
    assert npm.read(package, "LICENSE", cache=tmp_path)
