"""Backends: the pages themselves, or modules with functions of the same names that compute the same numbers faster.

A backend is a module, or anything with attributes, that has pages by their names: ``jit.linear.forward`` is what
``linear.forward(..., kernels=jit)`` runs. A page that it lacks runs as it stands, and the pages that this one is made
of are looked up likewise: Linformer is fast wherever softmax attention is. A backend that has neither is refused, so
that nothing is slow in silence.

The class of what a forward pass saved identifies the backend, and so the backward pass that goes with it: that of the
module in which the class stands. So each page of a backend is a module of its own.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from functools import cache
from os.path import dirname, exists
from types import ModuleType
from typing import Any, get_args, get_type_hints

from linattn_ref.op.shapes import name_of

__all__ = ["IN_FORCE", "JIT", "PAGES", "backend_of", "check_backend", "code_of", "home_of", "is_own"]

PAGES = "linattn_ref.kernels.reference"  # the backend that is the pages themselves
JIT = "linattn_ref.kernels.jit"  # that of a network unless its model says another; imported when it is first used
PACKAGE = __name__.partition(".")[0]
KERNELS = f"{dirname(dirname(__file__))}/kernels"

IN_FORCE: ContextVar[Any] = ContextVar("the backend within a call; None outside", default=None)


def is_own(x: Any) -> bool:
    """Whether a backend or a function is the package's."""
    x = getattr(x, "func", x)  # of a partial function
    name = x if isinstance(x, str) else str(getattr(x, "__module__", None) or getattr(x, "__name__", ""))
    return name.partition(".")[0] == PACKAGE


def code_of(backend: Any, page: str, name: str, function: Any) -> Any:
    """The function that the backend has in place of a page's; the page's own, where it has none."""
    found = getattr(getattr(backend, page, None), name, function)
    if ".loops." in getattr(found, "__module__", ""):  # the loop of a layer that is no page yet, of the same name
        return function
    return getattr(found, "page", found)


def check_backend(backend: Any, function: Any) -> None:
    """The backend has the function's page, or one of the pages that this page is made of."""
    if getattr(backend, "__name__", None) == PAGES:
        return
    pages = pages_of(function.__module__)
    if not any(hasattr(getattr(backend, page, None), name) for page in pages for name in ("forward", "step")):
        needed = " or ".join(repr(page) for page in pages)
        have = [name for name in ("jit", "cuda") if any(exists(f"{KERNELS}/{name}/{page}.py") for page in pages)]
        names = ", ".join((PAGES, *(f"{PACKAGE}.kernels.{name}" for name in have)))  # found without importing them
        got = f"the name {backend!r} alone" if isinstance(backend, str) else repr(backend)
        raise TypeError(f"kernels: expected a backend with the page {needed} ({names}, or your own), got {got}")


@cache
def pages_of(module: str) -> tuple[str, ...]:
    """The name of a page, and those of the pages that it is made of."""
    found = {module.rpartition(".")[2]: None}
    for part in vars(sys.modules[module]).values():
        if isinstance(part, ModuleType) and part.__name__ != module and hasattr(getattr(part, "forward", None), "page"):
            found.update(dict.fromkeys(pages_of(part.__name__)))
    return tuple(found)


def home_of(saved: Any, function: Any) -> Any:
    """``backward`` of the module, a page or a backend's, whose forward pass saved this.

    Raises
    ------
    TypeError
        ``saved`` is not what the forward pass of this page returned.
    """
    module, name = type(saved).__module__, function.__name__
    own = module.partition(".")[0] == PACKAGE  # then another page's is not this one's
    is_saved = hasattr(saved, "_fields") and (type(saved).__name__ == "Saved" or not own)
    if module == function.__module__ and is_saved:
        return function
    found = getattr(sys.modules.get(module), name, None)
    if getattr(getattr(saved, "page_backward", None), "page", None) is function:  # of packed sequences, or shared heads
        return found
    kinds = saved_by(function)
    if found is None and type(saved).__name__ == "Saved":
        raise TypeError(f"saved: {module} has no function {name} that goes with its class Saved")
    if not callable(found) or not is_saved or (own and module.rpartition(".")[2] not in kinds):
        raise TypeError(f"saved: expected what forward returned second, {kinds[0]}.Saved, got {name_of(type(saved))}")
    return getattr(found, "page", found)


@cache
def saved_by(function: Any) -> tuple[str, ...]:
    """The pages whose ``Saved`` a backward pass takes, by its signature."""
    hint = get_type_hints(function)["saved"]
    return tuple(kind.__module__.rpartition(".")[2] for kind in get_args(hint) or (hint,))


def backend_of(saved: Any) -> Any:
    """The backend whose forward pass saved this: what a backward pass computes again, it computes there."""
    package = type(saved).__module__.rpartition(".")[0]
    return sys.modules[package] if package.startswith(f"{PACKAGE}.kernels.") and package != PAGES else PAGES
