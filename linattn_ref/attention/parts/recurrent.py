"""Two functions that every page would write alike: a step, the forward pass of one row; a matrix, that of the identity.

    step = step_of(forward)        # out_t, state = step(q_t, k_t, v_t, state, ...)
    matrix = matrix_of(forward)    # matrix(q, k, ...) @ v == forward(q, k, v, ...)[0]

Their signatures are the forward pass's: of a step, without the axis of tokens, and without ``causal``, ``key_mask`` and
``offsets``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np

from linattn_ref.op import Array, op
from linattn_ref.op.shapes import Axes, notation

__all__ = ["derived", "dressed", "matrix_of", "step_of"]

TOKENS = ("N", "L")  # axes that run over tokens


def step_of(forward: Any) -> Any:
    """The recurrent form of a causal page, one token per call."""
    hints, signature = get_type_hints(forward.page, include_extras=True), inspect.signature(forward.page)
    parameters: dict[str, Any] = {}  # of a step, by those of the forward pass
    for name, parameter in signature.parameters.items():
        if name not in ("causal", "key_mask", "state", "offsets"):
            kind = _of_one_token(hints[name])
            parameters[name] = parameter.replace(name=name + "_t" * (kind is not None), annotation=kind or hints[name])
    state = inspect.Parameter("state", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=get_args(hints["state"])[0])
    own = [*parameters.values()]
    own_signature = signature.replace(parameters=[*own[:3], state, *own[3:]], return_annotation=tuple[Array, Any])
    always = {"causal": True} if "causal" in signature.parameters else {}

    def step(*args: Any, **options: Any) -> tuple[Array, Any]:
        given = own_signature.bind(*args, **options).arguments
        axis = given["q_t"].ndim - 1
        row = {}
        for name, parameter in parameters.items():
            if parameter.name in given:
                x = given[parameter.name]
                row[name] = x if x is None or parameter.name == name else np.expand_dims(x, axis)
        out, saved = forward(**row, **always, state=given["state"])
        return out[..., 0, :], saved.state

    step.__doc__ = "The output for one token, ``(..., M)``, and the state after it; the one before stays as it is."
    return op(**forward.looks)(dressed(step, forward, own_signature))


def matrix_of(forward: Any, without: str = "") -> Any:
    """The dense matrix ``(..., N, L)`` that a page applies to the values, ``without`` what it adds to that."""

    def matrix(**given: Any) -> Array:
        k = given["k" if "k" in given else "qk"]
        identity = np.broadcast_to(np.identity(k.shape[-2], k.dtype, like=k), (*k.shape[:-1], k.shape[-2]))
        return forward(v=identity, **given)[0]

    matrix.__doc__ = "The dense matrix ``(..., N, L)`` that is applied to the values: what becomes of the identity."
    return derived(forward, matrix, Array, "v", "state", without)


def derived(forward: Any, function: Callable[..., Any], returns: Any, *without: str) -> Any:
    """A function of named arguments with the parameters of the forward pass, ``without`` some of them."""
    hints, signature = get_type_hints(forward.page, include_extras=True), inspect.signature(forward.page)
    parameters = [x.replace(annotation=hints[name]) for name, x in signature.parameters.items() if name not in without]
    own_signature = signature.replace(parameters=parameters, return_annotation=returns)

    @functools.wraps(function)
    def with_names(*args: Any, **options: Any) -> Any:
        return function(**own_signature.bind(*args, **options).arguments)

    del with_names.__wrapped__
    return op(**forward.looks)(dressed(with_names, forward, own_signature))


def _of_one_token(hint: Any) -> Any:
    """The annotation without its axis of tokens; None if it has no such axis."""
    for part in (hint, *get_args(hint)):
        for axes in getattr(part, "__metadata__", ()):
            letters = tuple(x for x in axes.letters if x not in TOKENS)
            if letters != axes.letters:
                kind: Any = Annotated[Array, Axes(axes.dtype, axes.leading, letters)]
                return kind | None if type(None) in get_args(hint) else kind
    return None


def dressed(function: Callable[..., Any], forward: Any, signature: inspect.Signature) -> Callable[..., Any]:
    """The function as if it had been written on the page."""
    function.__module__, function.__qualname__ = forward.__module__, function.__name__
    function.__annotations__ = {name: x.annotation for name, x in signature.parameters.items()}
    written = [x.replace(annotation=notation(x.annotation)) for x in signature.parameters.values()]
    function.__signature__ = signature.replace(parameters=written)  # type: ignore[attr-defined]
    return function
