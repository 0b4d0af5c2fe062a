"""Modules are imported when they are first named, and one that lies in a folder has the package's name as well."""

import importlib
import importlib.util
import pickle
import sys
from pathlib import Path

import pytest

INIT = """
from linattn_ref import lazy

__all__ = ["near"]
__getattr__, __dir__ = lazy.modules(__name__, __all__, {"folder": ["far"]})
"""
FAR = "class Kept:\n    pass\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two modules, one of them in a folder; what is imported of it is forgotten afterwards."""
    folder = tmp_path / "two_modules" / "folder"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text(INIT)
    for path, text in ((folder.parent / "near.py", ""), (folder / "__init__.py", ""), (folder / "far.py", FAR)):
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("two_modules")
    for name in [name for name in sys.modules if name.partition(".")[0] == "two_modules"]:
        del sys.modules[name]


def test_nothing_is_imported_before_it_is_named(package):
    assert [name for name in sys.modules if name.startswith("two_modules.")] == []
    assert {"near", "far"} <= {*dir(package)}
    assert package.near is sys.modules["two_modules.near"]
    with pytest.raises(AttributeError, match=r"two_modules.*'other'"):
        _ = package.other


@pytest.mark.parametrize("first", ["two_modules.far", "two_modules.folder.far"])
def test_a_module_in_a_folder_is_one_by_either_name(package, first):
    module = importlib.import_module(first)
    assert module is importlib.import_module("two_modules.far") is importlib.import_module("two_modules.folder.far")
    assert module is package.far is package.folder.far
    assert module.__name__ == module.__spec__.name == "two_modules.folder.far"
    assert module.__spec__.loader.get_source(module.__name__) == FAR
    assert importlib.util.find_spec("two_modules.far") is module.__spec__
    assert type(pickle.loads(pickle.dumps(module.Kept()))) is module.Kept


def test_a_module_that_is_not_there_is_named_as_it_was_asked_for(package):
    with pytest.raises(ModuleNotFoundError, match=r"two_modules\.nowhere"):
        importlib.import_module("two_modules.nowhere")


def test_a_module_that_cannot_be_imported_is_not_taken_for_one_that_is_not_there(package):
    """``hasattr`` is false where an AttributeError is raised, whatever raised it."""
    Path(package.__file__).with_name("near.py").write_text("import sys\nsys.nothing\n")
    with pytest.raises(ImportError, match=r"two_modules\.near: .*'nothing'"):
        hasattr(package, "near")
