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
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

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


class Code(NamedTuple):
    """What computes a call, and the backend in force within it; of calls that were checked, how their options go on."""

    function: Any
    backend: Any
    dropped: tuple[str, ...] = ()  # options that the function does not take
    overwrites: bool = False  # whether it works in a state, which has to be one that can be written to
    by_run: bool = False  # whether there is more to be done than to call it
    checks_values: bool = False  # whether it looks at the numbers in its arrays itself


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
    names = [*signature.parameters]
    seen: dict[Any, Code] = {}  # by the kind of a call
    latest: Any = (None, None)  # the last of them: most steps are of the kind of the step before
    elsewhere = {*names} | ({"kernels"} if "model" in names else set())
    elsewhere |= {"overwrite_state"} if "grads" in names else set[str]()  # an optimiser's is always worked in
    if not {"q", "qk"} & {*names}:  # a layer; a part of an attention runs on the backend of that
        elsewhere |= {"out", "kernels"} if ".attention." in function.__module__ and name == "forward" else {"out"}
    here = {option: default for option, default in OPTIONS.get(name, {}).items() if option not in elsewhere}
    position = names.index("saved") if "saved" in names else None
    state_at = names.index("state") if "state" in names else 0
    model_at = names.index("model") if "model" in names else None
    axes = {option: usual for option, usual in AXES.items() if option in names}

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal latest
        outer = IN_FORCE.get()
        if outer is not None and normal(options.get("kernels", outer)) is outer:  # called by a page: checked already
            extras = options_of_entry(options) if options else {}
            extras.pop("kernels", None)
            code = code_for(outer, args, options)
            if code.backend is outer:
                return run(code, args, options, extras)
            token = IN_FORCE.set(code.backend)
            try:
                return run(code, args, options, extras)
            finally:
                IN_FORCE.reset(token)
        key = kind_of_call(args, options) if outer is None else None
        if key is not None and "out" in options and not is_writeable(options["out"]):
            key = None
        known: Code | None = None if key is None else latest[1] if key == latest[0] else seen.get(tuple(key))
        if known is None:
            return first_call(None if key is None else tuple(key), args, options)
        latest = key, known
        if known.by_run:
            return run_alone(known, args, options, options_of_entry(options))
        for option in known.dropped:
            del options[option]
        if values is not None and not known.checks_values:
            values(**dict(zip(names, args, strict=False)), **{name: options[name] for name in options if name in names})
        if known.overwrites:
            for x in args[state_at] if len(args) > state_at else options["state"]:
                if type(x) is np.ndarray and not x.flags.writeable:  # as rows are that share memory
                    options["overwrite_state"] = False
        token = IN_FORCE.set(known.backend)
        try:
            return known.function(*args, **options)
        finally:
            IN_FORCE.reset(token)

    def first_call(key: Any, args: Any, options: Any) -> Any:
        """A call of a kind that is not known."""
        for first in (args,) if position is None else (args, args[position:]):
            while isinstance(first, tuple) and first:  # if the first array is NumPy's, so are all, or the checks say so
                first = first[0]
            if type(first) is not np.ndarray:
                return with_gpu_arrays(enter, *args, **options)
        return check_and_run(key, args, options)

    def enter(*args: Any, **options: Any) -> Any:
        return check_and_run(None, args, options)

    def check_and_run(key: Any, args: Any, options: Any) -> Any:
        given = options_of_entry(options)
        backend, extras = given.get("kernels", PAGES), {option: x for option, x in given.items() if option != "kernels"}
        if model_at is not None and (len(args) > model_at or "model" in options):
            backend = getattr(args[model_at] if len(args) > model_at else options["model"], "kernels", PAGES)
            backend = importlib.import_module(backend) if isinstance(backend, str) else backend
        backend = normal(backend)
        if axes and backend is not PAGES:
            dtype = getattr(args[0] if args else options.get(names[0]), "dtype", None)
            if getattr(dtype, "itemsize", 0) == 2 and dtype.name in half.NAMES:  # type: ignore[union-attr]
                return enter_half(args, options, {**extras, "kernels": backend}, dtype)
        said = options
        args, options, code, as_given = bound(args, options, backend, extras)
        if key is not None and as_given:  # so that the next call of this kind is not checked again
            if len(seen) == REMEMBERED:  # as of a cache that grows with every step
                seen.clear()
            seen[key] = way_of(code, said, given)
        if values is not None and not is_gpu_call():
            values(**dict(zip(names, args, strict=False)), **options)
        return run_alone(code, args, options, extras)

    def run_alone(code: Code, args: Any, options: Any, extras: Any) -> Any:
        extras.pop("kernels", None)
        token, overwrite = IN_FORCE.set(code.backend), OVERWRITE.set(extras.get("overwrite_state", False))
        try:
            return run(code, args, options, extras)
        finally:
            IN_FORCE.reset(token)
            OVERWRITE.reset(overwrite)

    def way_of(code: Code, options: Any, given: Any) -> Code:
        """How options go on: those of the page, and those of the entry that were given."""
        takes, own = parameters_of(code.function), code.function is function
        usual = [x for x in axes if x in options and options[x] is axes[x] and not own]
        untaken = [x for x in given if x not in takes]
        overwrites = given.get("overwrite_state", False)
        by_run = (
            given.get("like") is not None or (own and overwrites) or ("out" in untaken and given["out"] is not None)
        )
        in_state = overwrites and not own and "overwrite_state" in takes
        return Code(*code[:2], (*usual, *untaken), in_state, by_run, getattr(code.function, "checks_values", False))

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

    def bound(args: Any, options: Any, backend: Any, extras: Any) -> Any:
        """Check everything: the arguments, what computes them, and whether they are as they were given."""
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
        as_given = all(x is before[name] for name, x in arguments.items())
        return call.args, call.kwargs, code_for(backend, call.args, call.kwargs), as_given

    def check_alone(*args: Any, **options: Any) -> None:
        extras = options_of_entry(options)
        backend = normal(extras.pop("kernels", PAGES))
        args, options, *_ = bound(args, options, backend, extras)
        if values is not None and not is_gpu_call():
            values(**dict(zip(names, args, strict=False)), **options)

    def options_of_entry(options: Any) -> Any:
        """Those that are on no page, taken out of the others."""
        extras = {}
        for option in here:
            if option in options:
                extras[option] = options.pop(option)
        return extras

    def code_for(backend: Any, args: Any, options: Any) -> Code:
        """What computes a call: the page's function, or the backend's; of a backward pass, as what was saved says."""
        if position is not None:
            saved = args[position] if len(args) > position else options["saved"]
            return Code(home_of(saved, function), backend_of(saved))
        code = function if backend is PAGES else code_of(backend, page, name, function)
        for option, usual in axes.items() if code is not function else ():
            if options.get(option, usual) is not usual and option not in parameters_of(code):
                code = function  # the page cuts the arrays, and the backend runs on the parts
        return Code(code, backend)

    def run(code: Code, args: Any, options: Any, extras: Any) -> Any:
        for option, usual in axes.items() if code.function is not function else ():
            if options.get(option, usual) is usual:
                options.pop(option, None)
        if "overwrite_state" in here and OVERWRITE.get():  # also of a step that is made of another page's
            extras["overwrite_state"] = True
        if not extras:
            return code.function(*args, **options)
        takes, taken = parameters_of(code.function), {}
        for option, x in extras.items():
            if option in takes:
                taken[option] = x
        if taken.get("overwrite_state"):
            for x in args[state_at] if len(args) > state_at else options["state"]:
                if type(x) is np.ndarray and not x.flags.writeable:  # as rows are that share memory
                    taken["overwrite_state"] = False
        result = code.function(*args, **options, **taken)
        if extras.get("out") is not None and "out" not in taken:
            extras["out"][...] = result[0]
            return (extras["out"], *result[1:])
        return result if extras.get("like") is None else to_where(extras["like"], result)

    enter.__signature__ = call.__signature__ = with_options(signature, here)  # type: ignore[attr-defined]
    call.check = check_alone  # type: ignore[attr-defined]
    call.page, call.looks = function, {"look": look, "values": values}  # type: ignore[attr-defined]
    return call


def normal(backend: Any) -> Any:
    """A backend; where it is the pages themselves, their name."""
    return PAGES if getattr(backend, "__name__", None) == PAGES else backend


def kind_of_call(args: Any, options: Any) -> list[Any] | None:
    """What the checks can see of a call: types, shapes, dtypes and options. None where these cannot be compared."""
    found, groups = [*options], [args, options.values()]
    for group in groups:  # which grows
        for x in group:
            kind = type(x)
            if kind is np.ndarray:
                found.append(x.shape)
                found.append(x.dtype)
            elif kind in COMPARED:
                found.append(kind)
                found.append(x)
            elif isinstance(x, (tuple, list)):
                found.append(kind)
                found.append(len(x))
                groups.append(x)
            elif kind is dict:
                found.append((*x,))
                groups.append(x.values())
            else:
                return None
    return found


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
    """Whether ``x`` may be written over: not a read-only array of NumPy's."""
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
