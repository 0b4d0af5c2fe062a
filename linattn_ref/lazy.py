"""Modules that are imported when they are first named: ``linattn_ref.attention`` after ``import linattn_ref``."""

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import ModuleType

__all__ = ["folder", "modules"]


def modules(package: str, names: Sequence[str]) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose modules of these names are imported when they are named."""

    def __getattr__(name: str) -> ModuleType:
        if name in names:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return __getattr__, __dir__


def folder(package: str, path: Iterable[str]) -> tuple[list[str], Callable[[str], ModuleType], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package that has all modules of its folder."""
    import pkgutil  # which `import linattn_ref` does not need

    names = sorted(module.name for module in pkgutil.iter_modules(path))
    return names, *modules(package, names)
