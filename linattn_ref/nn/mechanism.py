"""An attention mechanism as `multi_head` takes it: its functions, and what they are always called with.

    linear = mechanism.of(attention.linear, causal=True, kernels=jit)
    linformer = mechanism.of(attention.linformer)           # E and F are learned: Params.own
    performer = mechanism.of(attention.performer, omega=omega, causal=True)
    gates = {"gate": linattn_ref.attention.parts.gate}
    rfa = mechanism.of(attention.rfa, gates=gates, omega=omega, causal=True)

>>> from linattn_ref.attention import longformer, softmax
>>> [of(module).step is not None for module in (softmax, longformer)], of(longformer).reads
([True, False], 6)

A gate is an argument that is made of the layer's own input, by another pair, whose parameters are learned too.

Constants, such as ``omega``, rotations or random blocks, are options: to draw them anew is to make another
:class:`Mechanism`. What is learned, such as Linformer's ``e`` and ``f``, stands among the layer's parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from linattn_ref.attention.fields import documented

__all__ = ["Mechanism", "of", "unchecked"]

# Of each head, what a mechanism is given: queries, keys and values, unless it is one of these.
READS = {"reformer": 2, "longformer": 6}  # shared queries and keys; projections of their own for global tokens


@documented
class Mechanism(NamedTuple):
    """A pair, its recurrent form if it has one, and options."""

    forward: Callable[..., tuple[Any, Any]]
    backward: Callable[..., Any]
    step: Callable[..., tuple[Any, Any]] | None  # None without a recurrent form
    init_state: Callable[..., Any] | None
    options: Mapping[str, Any]  # of forward
    reads: int  # arrays (..., H, N, D) that forward takes first: 3 for q, k, v
    # Found out once, by `of`: names of the arguments of each of the four, and the options that step takes.
    accepts: Mapping[str, tuple[str, ...]]
    step_options: Mapping[str, Any]
    gates: Mapping[str, ModuleType]  # arguments of forward, (B, H, N), and the pairs that make them of x


def of(
    module: ModuleType, *, reads: int | None = None, gates: Mapping[str, ModuleType] | None = None, **options: Any
) -> Mechanism:
    """A mechanism of `linattn_ref.attention`, or another module with such a pair.

    Parameters
    ----------
    module : module
        With ``forward`` and ``backward``, and ``step`` and ``init_state`` if it has a recurrent form.
    reads : int, optional
        How many projections of a token its ``forward`` takes first; of the package's own it is known.
    gates : mapping from str to module, optional
        Arguments of ``forward`` that are made of ``x``; their parameters stand last in ``multi_head.Params.own``.
    **options
        Of ``forward``, each time: ``causal``, ``kernels``, ``omega``, ``window`` ...
    """
    name = module.__name__.rpartition(".")[2]
    step, init_state = getattr(module, "step", None), getattr(module, "init_state", None)
    count = READS.get(name, 3) if reads is None else reads
    functions = {"forward": module.forward, "backward": module.backward, "step": step, "init_state": init_state}
    accepts = {name: _parameters(function) for name, function in functions.items()}
    step_options = {name: value for name, value in options.items() if name in accepts["step"]}
    return Mechanism(
        module.forward, module.backward, step, init_state, options, count, accepts, step_options, gates or {}
    )


def unchecked(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is behind the function's door, if it has one."""
    return getattr(function, "unchecked", function)


def _parameters(function: Callable[..., Any] | None) -> tuple[str, ...]:
    return () if function is None else tuple(inspect.signature(function).parameters)
