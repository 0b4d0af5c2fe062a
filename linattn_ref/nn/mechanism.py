"""An attention mechanism as `multi_head` takes it: its functions, and what they are always called with.

    linear = mechanism.of(attention.linear, causal=True)
    linformer = mechanism.of(attention.linformer)           # E and F are learned: Params.own
    performer = mechanism.of(attention.performer, omega=omega, causal=True)
    gates = {"gate": linattn_ref.attention.parts.gate}
    rfa = mechanism.of(attention.rfa, gates=gates, omega=omega, causal=True)

>>> from linattn_ref.attention import longformer, softmax
>>> [of(module).step is not None for module in (softmax, longformer)], of(longformer).reads
([True, False], 6)

A gate is an argument that another pair makes from what keys and values are made from: the layer's input, or the memory.
Its parameters are learned too.

Constants, such as ``omega``, rotations or random blocks, are options: to draw them anew is to make another
:class:`Mechanism`. What is learned, such as Linformer's ``e`` and ``f``, stands among the layer's parameters. An option
``kernels`` is the mechanism's own backend; without it the mechanism runs on that of the layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op.options import check_sizes, plain

__all__ = ["Mechanism", "of", "shared"]

PROJECTED = ("q", "k", "v", "qk")  # what queries, keys and values are called; Longformer's `q_global` is a query too


class Mechanism(NamedTuple):
    """A pair, its recurrent form if it has one, and options."""

    forward: Callable[..., tuple[Any, Any]]
    backward: Callable[..., Any]
    step: Callable[..., tuple[Any, Any]] | None  # None without a recurrent form
    init_state: Callable[..., Any] | None
    options: Mapping[str, Any]  # of forward
    reads: int  # arrays (..., H, N, D) that forward takes first: 3 for q, k, v
    # Found out once, by `of`: names of the arguments of forward, step and init_state, and the options of step.
    accepts: Mapping[str, tuple[str, ...]]
    step_options: Mapping[str, Any]
    gates: Mapping[str, ModuleType]  # arguments of forward, (B, H, L), and the pairs that make them
    is_causal: bool  # no token sees later ones


def of(
    module: ModuleType, *, reads: int | None = None, gates: Mapping[str, ModuleType] | None = None, **options: Any
) -> Mechanism:
    """Return a mechanism of `linattn_ref.attention`, or of another module with such a pair.

    Parameters
    ----------
    module : module
        With ``forward`` and ``backward``, and ``step`` and ``init_state`` if it has a recurrent form. If it is causal,
        and has neither these nor an option ``causal``, it says so by ``ALWAYS_CAUSAL = True``.
    reads : int, optional
        How many projections of a token its ``forward`` takes first; unless given, as many as are called queries, keys
        or values.
    gates : mapping from str to module, optional
        Arguments of ``forward`` that are made from what keys and values are made from; their parameters stand last in
        ``multi_head.Params.own``.
    **options
        Of ``forward``, each time: ``causal``, ``kernels``, ``omega``, ``window`` ...

    Raises
    ------
    TypeError, ValueError
        A constant has numbers that the mechanism refuses. What is written into its array later is not looked at.
    """
    options = {name: plain(value) for name, value in options.items()}
    check_constants(module, options)
    step, init_state = getattr(module, "step", None), getattr(module, "init_state", None)
    functions = {"forward": module.forward, "step": step, "init_state": init_state}
    accepts = {name: tuple(inspect.signature(each).parameters) if each else () for name, each in functions.items()}
    count = sum(name.partition("_")[0] in PROJECTED for name in accepts["forward"]) if reads is None else reads
    check_sizes(reads=count)
    left_out = {f"{name}_t": None for name, value in options.items() if value is None}  # a row of nothing is nothing
    step_options = {name: value for name, value in {**options, **left_out}.items() if name in accepts["step"]}
    always = getattr(module, "ALWAYS_CAUSAL", step is not None or "state" in accepts["forward"])
    is_causal = bool(options.get("causal")) if "causal" in accepts["forward"] else always
    return Mechanism(
        module.forward, module.backward, step, init_state, options, count, accepts, step_options, gates or {}, is_causal
    )


def check_constants(module: ModuleType, options: Mapping[str, Any]) -> None:
    """Check the numbers in arrays as the page does, for a layer whose calls are known does not do so again."""
    constants = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    check_values = getattr(module.forward, "looks", {}).get("values")
    if not constants or check_values is None:
        return
    takes = inspect.signature(check_values).parameters.values()
    needs = {x.name for x in takes if x.default is x.empty and x.kind is not x.VAR_KEYWORD}
    if needs <= {*constants}:  # what is learned, or lies on a GPU, is not among them
        check_values(**constants)


def shared(mechanism: Mechanism, groups: int) -> Mechanism:
    """The mechanism with ``groups`` heads of queries for each head of keys; itself for 1.

    Raises
    ------
    ValueError
        It has no such option.
    """
    if groups == 1:
        return mechanism
    if "groups" not in mechanism.accepts["forward"]:
        raise ValueError(f"groups: expected 1, for {mechanism.forward.__module__} shares no heads, got {groups}")
    options, of_steps = ({**options, "groups": groups} for options in (mechanism.options, mechanism.step_options))
    return mechanism._replace(options=options, step_options=of_steps)
