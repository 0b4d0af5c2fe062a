"""Kernel rooms: the argument ``kernels`` of a mechanism, checked; and how what was saved names its room.

A room is anything with the kernel that is called: a module of ``linattn_ref.kernels``, or a user's own. What a forward
pass saves is data, which can be pickled and sent to another process, so it holds the *name* of the room's module
(:func:`name_of_room`), and the backward pass finds the kernel by that name (:func:`kernel_of`). A room that is no
module has no such name and is kept itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

__all__ = [
    "CausalProductRoom",
    "DeltaProductRoom",
    "LshRoom",
    "PatternSoftmaxRoom",
    "Room",
    "SoftmaxRoom",
    "check_kernels",
    "kernel_of",
    "name_of_room",
    "room_of",
]

ROOMS = ("reference", "jit", "cuda")  # under linattn_ref.kernels
# The functions of a kernel that mechanisms call: these, or of some kernels others.
CALLED = ("forward", "backward")
CALLED_OF = {
    "causal_product": ("normalised_forward", "normalised_backward", "step"),
    "delta_product": ("forward", "backward", "step"),
    "cross_entropy": ("forward",),
    "ctc": ("forward",),
    "adam": ("step",),
}


# --- What a room has ------------------------------------------------------------------------------------------------


class Kernel(Protocol):
    """A hot loop and its gradient; what they take and give, `linattn_ref.kernels.reference` says."""

    @property
    def forward(self) -> Callable[..., Any]: ...
    @property
    def backward(self) -> Callable[..., Any]: ...


class CausalProduct(Protocol):
    """The causal product with its denominator, by all rows at once and by one."""

    @property
    def normalised_forward(self) -> Callable[..., Any]: ...
    @property
    def normalised_backward(self) -> Callable[..., Any]: ...
    @property
    def step(self) -> Callable[..., Any]: ...


class DeltaProduct(Kernel, Protocol):
    """A causal product whose state fades and corrects itself, by all rows at once and by one."""

    @property
    def step(self) -> Callable[..., Any]: ...


class SoftmaxRoom(Protocol):
    """Where softmax attention runs."""

    @property
    def softmax(self) -> Kernel: ...


class CausalProductRoom(Protocol):
    """Where linear attention runs."""

    @property
    def causal_product(self) -> CausalProduct: ...


class DeltaProductRoom(Protocol):
    """Where gated linear attention and the delta rule run."""

    @property
    def delta_product(self) -> DeltaProduct: ...


class PatternSoftmaxRoom(Protocol):
    """Where attention over an allowed set of pairs runs."""

    @property
    def pattern_softmax(self) -> Kernel: ...


class LshRoom(Protocol):
    """Where Reformer's attention runs."""

    @property
    def lsh(self) -> Kernel: ...


Room = SoftmaxRoom | CausalProductRoom | DeltaProductRoom | PatternSoftmaxRoom | LshRoom


# --- Checked, named, found again --------------------------------------------------------------------------------------


def check_kernels(kernels: Any, name: str) -> None:
    """``kernels`` has the kernel called ``name``; never a silent fallback."""
    kernel = getattr(kernels, name, None)
    for function in CALLED_OF.get(name, CALLED):
        if not callable(getattr(kernel, function, None)):
            raise TypeError(f"kernels: {_what_is_lacking(kernels, name, function)}")


def _what_is_lacking(kernels: Any, name: str, function: str) -> str:
    rooms = ", ".join(f"linattn_ref.kernels.{room}" for room in ROOMS)
    needed = ", ".join(CALLED_OF.get(name, CALLED))
    lack = f", whose {name!r} lacks {function}" if hasattr(kernels, name) else ""
    return (
        f"expected a module with a {name!r} kernel (one of {rooms}, or your own with {needed}), got {kernels!r}{lack}"
    )


def name_of_room(kernels: Any) -> Any:
    """The name of a room that can be imported by it; a room that cannot, itself."""
    if isinstance(kernels, ModuleType) and sys.modules.get(kernels.__name__) is kernels:
        return kernels.__name__
    return kernels


def room_of(name: Any) -> Any:
    """The room that :func:`name_of_room` named."""
    if not isinstance(name, str):
        return name
    return sys.modules.get(name) or import_module(name)  # the first half is all that a loop has to pay


def kernel_of(name: Any, kernel: str) -> Any:
    """One kernel of the room that :func:`name_of_room` named."""
    return getattr(room_of(name), kernel)
