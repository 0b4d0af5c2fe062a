"""``@op`` makes a page's function the one that users call. The page itself holds nothing else of this layer.

    @op
    def forward(q: Float[Array, "... N D"], ..., *, causal: bool = False) -> tuple[Array, Saved]:

The outermost call checks the arguments by the shapes in the signature, makes NumPy's numbers Python's, and puts the
backend in force. Calls within it, of one page by another, do none of that again. Options that change no number are
accepted here, and are on no page:

kernels
    The backend (`linattn_ref.op.backends`). A backward pass needs no such option, and a network none either: its
    ``Model`` says which one.
out
    An array for the output, for callers that keep one. The output of a backend that cannot write there is copied.
overwrite_state
    Of a step: a backend may work in the arrays of the state, whose content is undefined afterwards.
capacity, like
    Of ``init_state``: the number of tokens that a backend sets memory aside for; an array on a GPU, for a state there.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, Generic, Protocol, TypeVar, overload

import numpy as np

from linattn_ref.op import half
from linattn_ref.op.axes import AXES, check
from linattn_ref.op.backends import IN_FORCE, PAGES, backend_of, check_backend, code_of, home_of
from linattn_ref.op.gpu_arrays import is_gpu_call, to_where, with_gpu_arrays
from linattn_ref.op.options import check_made_for, check_options, check_sizes, plain
from linattn_ref.op.shapes import Sizes, is_array, rules_of, sizes_of

__all__ = ["op"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Op(Protocol, Generic[R_co]):
    """A page's function as users call it.

    ``page`` is the function alone, ``looks`` what its page checks, and ``check`` makes all checks and nothing else.
    """

    @property
    def page(self) -> Callable[..., R_co]: ...
    @property
    def looks(self) -> dict[str, Any]: ...
    @property
    def check(self) -> Callable[..., None]: ...
    def __call__(self, *args: Any, **options: Any) -> R_co: ...


Look = Callable[..., None]
OVERWRITE: ContextVar[bool] = ContextVar("whether a step may work in the arrays of its state", default=False)
REMEMBERED = 1000  # so many kinds of calls, once checked, are not checked again
COMPARED = frozenset(
    {int, float, bool, str, type(None), ModuleType, FunctionType}
)  # types of options that identify a kind of call

# Options of the entry, by the name of the function.
OPTIONS: dict[str, dict[str, Any]] = {
    "forward": {"out": None, "kernels": PAGES},
    "step": {"overwrite_state": False, "kernels": PAGES},
    "init_state": {"capacity": None, "like": None, "kernels": PAGES},
}


@overload
def op(function: Callable[..., R]) -> Op[R]: ...
@overload
def op(*, look: Look | None = None, values: Look | None = None) -> Callable[[Callable[..., R]], Op[R]]: ...
def op(function: Any = None, *, look: Look | None = None, values: Look | None = None) -> Any:
    """The function as users call it.

    Parameters
    ----------
    look : callable, optional
        The page's own check of its arguments, by their names. It looks at shapes and options alone.
    values : callable, optional
        The same for the numbers in arrays. It is not called where these are on a GPU.
    """
    if function is None:
        return functools.partial(op, look=look, values=values)
    signature, name, page = inspect.signature(function), function.__name__, function.__module__.rpartition(".")[2]
    names, seen = [*signature.parameters], set[Any]()
    elsewhere = {*names} | ({"kernels"} if "model" in names else set())
    elsewhere |= {"overwrite_state"} if "grads" in names else set[str]()  # an optimiser's is always worked in
    if not {"q", "qk"} & {*names}:  # a layer; a part of an attention runs on the backend of that
        elsewhere |= {"out", "kernels"} if ".attention." in function.__module__ and name == "forward" else {"out"}
    here = {option: default for option, default in OPTIONS.get(name, {}).items() if option not in elsewhere}
    position = names.index("saved") if "saved" in names else None
    state_at = names.index("state") if "state" in names else 0
    model_at = names.index("model") if "model" in names else None
    axes = {option: usual for option, usual in AXES.items() if option in names}

    def enter(*args: Any, **options: Any) -> Any:
        extras = {option: options.pop(option) for option in here if option in options}
        if OVERWRITE.get() and "overwrite_state" in here:
            extras["overwrite_state"] = True
        backend = extras.pop("kernels", PAGES)
        if model_at is not None and (len(args) > model_at or "model" in options):
            backend = getattr(args[model_at] if len(args) > model_at else options["model"], "kernels", PAGES)
            backend = importlib.import_module(backend) if isinstance(backend, str) else backend
        backend = normal(backend)
        if axes and backend is not PAGES:
            dtype = getattr(args[0] if args else options.get(names[0]), "dtype", None)
            if getattr(dtype, "itemsize", 0) == 2 and dtype.name in half.NAMES:  # type: ignore[union-attr]
                return enter_half(args, options, {**extras, "kernels": backend}, dtype)
        key = kinds_of((args, options, backend, extras, "out" not in extras or is_writeable(extras["out"])))
        if key is None or key not in seen:
            args, options = bound(args, options, backend, extras, key)
        if values is not None and not is_gpu_call():
            values(**dict(zip(names, args, strict=False)), **options)
        token, overwrite = IN_FORCE.set(backend), OVERWRITE.set(extras.get("overwrite_state", False))
        try:
            return run(backend, args, options, extras)
        finally:
            IN_FORCE.reset(token)
            OVERWRITE.reset(overwrite)

    def enter_half(args: Any, options: Any, extras: Any, dtype: Any) -> Any:
        """The same in float32, which is rounded to the 16 bits of the inputs."""
        buffer = extras.pop("out", None)
        out, after = enter(**half.widened(function, arguments_of(args, options).arguments, dtype), **extras)
        out = out.astype(dtype)
        if buffer is not None:
            check_out(buffer, {"...": out.shape[:-2], "N": out.shape[-2], "M": out.shape[-1], "dtype": dtype})
            buffer[...] = out
            out = buffer
        backward = sys.modules[function.__module__].backward
        return out, half.Saved(after, dtype, backward) if name == "forward" else after

    def arguments_of(args: Any, options: Any) -> inspect.BoundArguments:
        try:
            return signature.bind(*args, **options)
        except TypeError as error:
            wrong = str(error)
        if not hasattr(function, "__signature__"):
            function(*args, **options)  # which raises the error in Python's own words
        raise TypeError(f"{name}() {wrong}")

    def bound(args: Any, options: Any, backend: Any, extras: Any, key: Any) -> Any:
        """Check everything, and remember the kind of call, so that the next of this kind is not checked again."""
        call = arguments_of(args, options)
        check_extras(extras)
        call.apply_defaults()
        arguments, rules = call.arguments, rules_of(function)
        sizes = {"D": arguments["key_width"]} if "key_width" in arguments else {}
        before = dict(arguments)
        if position is not None:
            home_of(arguments["saved"], function)
            sizes_of(arguments["saved"], sizes)
        arguments.update({key: plain(x) for key, x in arguments.items() if key not in rules})
        if "leading" in arguments:
            check_made_for(**arguments)
        check(arguments, rules, sizes)
        check_options(arguments)
        if look is not None:
            look(**arguments)
        if backend is not PAGES:
            check_backend(backend, function)
        if extras.get("out") is not None:
            check_out(extras["out"], sizes)
        if all(x is before[name] for name, x in arguments.items()):
            if len(seen) == REMEMBERED:  # as of a cache that grows with every step
                seen.clear()
            seen.add(key)
        return call.args, call.kwargs

    def check_alone(*args: Any, **options: Any) -> None:
        extras = {option: options.pop(option) for option in here if option in options}
        backend = normal(extras.pop("kernels", PAGES))
        args, options = bound(args, options, backend, extras, None)
        if values is not None and not is_gpu_call():
            values(**dict(zip(names, args, strict=False)), **options)

    def run(backend: Any, args: Any, options: Any, extras: Any) -> Any:
        if position is not None:
            return run_backward(args, options)
        code = function if backend is PAGES else code_of(backend, page, name, function)
        for option, usual in axes.items() if code is not function else ():
            if options.get(option, usual) is usual:
                options.pop(option, None)
            elif option not in parameters_of(code):  # then the page cuts the arrays, and the backend runs on the parts
                code = function
        if not extras:
            return code(*args, **options)
        taken = {option: x for option, x in extras.items() if option in parameters_of(code)}
        if taken.get("overwrite_state"):
            state = args[state_at] if len(args) > state_at else options["state"]
            taken["overwrite_state"] = all(map(is_writeable, state))
        result = code(*args, **options, **taken)
        if extras.get("out") is not None and "out" not in taken:
            extras["out"][...] = result[0]
            return (extras["out"], *result[1:])
        return result if extras.get("like") is None else to_where(extras["like"], result)

    def run_backward(args: Any, options: Any) -> Any:
        saved = args[position] if len(args) > position else options["saved"]  # type: ignore[operator]
        token = IN_FORCE.set(backend_of(saved))
        try:
            return home_of(saved, function)(*args, **options)
        finally:
            IN_FORCE.reset(token)

    enter.__signature__ = with_options(signature, here)  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        backend = IN_FORCE.get()
        if backend is not None and "kernels" in options and normal(options["kernels"]) is backend:
            del options["kernels"]
        if backend is not None and "kernels" not in options:  # called by another page: checked already
            extras = {option: options.pop(option) for option in here if option in options}
            if OVERWRITE.get() and "overwrite_state" in here:  # a step that is made of another page's
                extras["overwrite_state"] = True
            return run(backend, args, options, extras)
        if is_numpy(args) and (position is None or is_numpy(args[position:])):
            return enter(*args, **options)
        return with_gpu_arrays(enter, *args, **options)

    call.__signature__ = enter.__signature__  # type: ignore[attr-defined]
    call.check = check_alone  # type: ignore[attr-defined]
    call.page, call.looks = function, {"look": look, "values": values}  # type: ignore[attr-defined]
    return call


def normal(backend: Any) -> Any:
    """A backend; where it is the pages themselves, their name."""
    return PAGES if getattr(backend, "__name__", None) == PAGES else backend


def is_numpy(arguments: Any) -> bool:
    """Whether the first of them is NumPy's, or begins with what is: so is the rest, or the checks say where not."""
    while type(arguments) is not np.ndarray:
        if not isinstance(arguments, tuple) or not arguments:
            return False
        arguments = arguments[0]
    return True


def kinds_of(arguments: Any) -> Any:
    """What the checks can see of arguments: types, shapes, dtypes and options. None where this cannot be compared."""
    found: list[Any] = []
    for x in arguments:
        kind = type(x)
        if kind is np.ndarray:
            found.append((x.shape, x.dtype))
        elif kind in COMPARED:
            found.append((kind, x))
        elif isinstance(x, (tuple, list, dict)):
            inner = kinds_of([*x, *x.values()] if isinstance(x, dict) else x)
            if inner is None:
                return None
            found.append((kind, inner))
        else:
            return None
    return tuple(found)


@cache
def parameters_of(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def with_options(signature: inspect.Signature, options: dict[str, Any]) -> inspect.Signature:
    """The signature with the options of the entry."""
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=x) for name, x in options.items()]
    parameters = [*signature.parameters.values()]
    at = len(parameters) - (parameters[-1:] != [] and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    return signature.replace(parameters=[*parameters[:at], *more, *parameters[at:]])


def check_extras(extras: dict[str, Any]) -> None:
    """``overwrite_state`` is True or False, and ``capacity`` a count, which is made Python's."""
    if not isinstance(extras.get("overwrite_state", False), bool):
        raise TypeError(f"overwrite_state: expected True or False, got {extras['overwrite_state']!r}")
    if extras.get("capacity") is not None:
        extras["capacity"] = plain(extras["capacity"])
        check_sizes(capacity=extras["capacity"])


def is_writeable(x: Any) -> bool:
    """Whether ``x`` may be written over: not a read-only array of NumPy's, which rows that share memory are."""
    return not isinstance(x, np.ndarray) or x.flags.writeable


def check_out(out: Any, sizes: Sizes) -> None:
    """``out`` can be written to and is like the output.

    Raises
    ------
    TypeError, ValueError
    """
    shape, dtype = (*sizes["..."], sizes["N"], sizes["M"]), sizes["dtype"]
    if not isinstance(out, np.ndarray) or not is_array(out) or out.dtype != dtype:
        got = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"out: expected a numpy.ndarray of {dtype}, got {got}")
    if out.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {out.shape}")
    if not is_writeable(out):
        raise ValueError("out: expected an array that can be written to, got a read-only one")
