"""Modules that are imported when they are first named: ``linattn_ref.attention`` after ``import linattn_ref``.

Modules of a package that lie in a folder of it have its name as well, ``linattn_ref.attention.local`` for
``linattn_ref.attention.sparse.local``: one module, by whichever name it is imported.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["at_once", "folder", "modules"]

PLACES: dict[str, str] = {}  # where a module lies that has another name as well, by that name


def modules(
    package: str, names: Sequence[str], folders: Mapping[str, Sequence[str]] | None = None
) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose modules of these names are imported when they are named.

    ``folders`` has, by the name of a folder, the modules in it that the package has too.
    """
    places = {name: f"{folder}.{name}" for folder, inside in (folders or {}).items() for name in inside}
    PLACES.update({f"{package}.{name}": f"{package}.{place}" for name, place in places.items()})

    def __getattr__(name: str) -> ModuleType:
        if name in names or name in places:
            try:
                return import_module(f"{package}.{name}")
            except AttributeError as error:  # of its own, which hasattr would take for there being no such module
                raise ImportError(f"{package}.{name}: {error}") from error
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names, *places})

    return __getattr__, __dir__


def folder(package: str, path: Iterable[str]) -> tuple[list[str], Callable[[str], ModuleType], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package that has all modules of its folder."""
    import pkgutil  # which `import linattn_ref` does not need

    names = sorted(module.name for module in pkgutil.iter_modules(path))
    return names, *modules(package, names)


def at_once(package: str, path: Iterable[str]) -> list[str]:
    """``__all__`` of a package that has all modules of its folder, and imports them with itself."""
    names, load, _ = folder(package, path)
    for name in names:
        load(name)
    return names


class OtherNames:
    """Finds and loads the modules in ``PLACES``: a name of one in ``sys.modules`` is all that is new."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, OtherNames, origin=PLACES[name]) if name in PLACES else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        module = import_module(PLACES[spec.name])
        spec.loader_state = module.__spec__
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # its own, which the import has replaced


sys.meta_path.append(OtherNames)
