"""Pyodide's files: taken by their hash, from whichever source has them."""

import hashlib
import json
from http.client import IncompleteRead

import pytest

from linattn_ref.data import npm, pyodide
from linattn_ref.data.fetch import FetchError

RIGHT = b"a wheel"
FILES = {"a.whl": hashlib.sha256(RIGHT).hexdigest(), "b.whl": hashlib.sha256(RIGHT).hexdigest()}


def test_a_package_comes_with_what_it_depends_on(monkeypatch):
    packages = {"a": {"depends": ["b"]}, "b": {"depends": ["a", "c"]}, "c": {"depends": []}, "d": {"depends": []}}
    monkeypatch.setattr(npm, "read", lambda package, member: json.dumps({"packages": packages}).encode())
    assert list(pyodide.locked(["a"])) == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"wanted: expected packages of Pyodide [\d.]+, got 'nope'"):
        pyodide.locked(["a", "nope"])


def test_the_first_source_whose_bytes_have_the_hash_is_taken(tmp_path):
    asked = []

    def down(name):
        asked.append(name)
        raise OSError("no network")

    sources = [down, lambda name: b"altered", lambda name: RIGHT]
    paths = pyodide.packages(FILES, cache=tmp_path, sources=sources)
    assert [path.name for path in paths] == list(FILES)
    assert {path.read_bytes() for path in paths} == {RIGHT}
    assert asked == ["a.whl"]  # a source that failed is not asked again
    assert pyodide.packages(FILES, cache=tmp_path, sources=[down]) == paths  # nor is any, for what is there
    assert len(asked) == 1
    paths[1].write_bytes(b"cut sho")
    with pytest.raises(FetchError, match=r"cannot fetch b\.whl of Pyodide .*: no network"):
        pyodide.packages(FILES, cache=tmp_path, sources=[down])


def test_pyodides_own_release_is_asked_first(tmp_path, monkeypatch):
    monkeypatch.setattr(pyodide, "RELEASE", f"{tmp_path.as_uri()}/")
    monkeypatch.setattr(pyodide, "_from_mirror", pytest.fail)
    (tmp_path / "a.whl").write_bytes(RIGHT)
    (path,) = pyodide.packages({"a.whl": FILES["a.whl"]}, cache=tmp_path / "cache")
    assert path.read_bytes() == RIGHT


def test_after_a_broken_connection_the_next_source_is_asked(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise IncompleteRead(b"half")

    monkeypatch.setattr(pyodide.urllib.request, "urlopen", broken)
    monkeypatch.setattr(pyodide, "_from_mirror", lambda *_: RIGHT)
    (path,) = pyodide.packages({"a.whl": FILES["a.whl"]}, cache=tmp_path)
    assert path.read_bytes() == RIGHT


def test_what_has_another_hash_is_not_kept(tmp_path):
    with pytest.raises(FetchError, match="another hash"):
        pyodide.packages(FILES, cache=tmp_path, sources=[lambda name: b"altered"])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
