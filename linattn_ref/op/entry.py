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
    An array for the output, where the inputs are, for callers that keep one. The output of a backend that cannot write
    there is copied. A backward pass may read it, so it is to stay as it is until then.
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
from typing import Any, NamedTuple, Protocol, TypeVar, overload

import numpy as np

from linattn_ref.op import half
from linattn_ref.op.axes import AXES, check
from linattn_ref.op.backends import IN_FORCE, JIT, PAGES, backend_of, check_backend, code_of, home_of, is_own
from linattn_ref.op.extras import can_be_filled, check_extras, check_out, is_writeable, with_options
from linattn_ref.op.gpu_arrays import is_gpu_call, to_where, with_gpu_arrays
from linattn_ref.op.options import check_dtype, check_flags, check_made, check_options, check_rng, check_sizes, plain
from linattn_ref.op.shapes import rules_of, sizes_of

__all__ = ["op"]

R = TypeVar("R")


class Code(NamedTuple):
    """What computes a call, and the backend in force within it; of calls that were checked, how their options go on."""

    function: Any
    backend: Any
    dropped: tuple[str, ...] = ()  # options that the function does not take
    overwrites: bool = False  # whether it works in a state, which has to be one that can be written to
    by_run: bool = False  # whether there is more to be done than to call it
    checks_values: bool = False  # whether it looks at the numbers in its arrays itself


class Op(Protocol[R]):
    """A page's function as users call it.

    ``page`` is the function alone, ``looks`` what its page checks, and ``check`` makes all checks and nothing else.
    """

    page: Callable[..., R]
    looks: dict[str, Any]
    check: Callable[..., None]

    def __call__(self, *args: Any, **options: Any) -> R: ...


Look = Callable[..., None]
OVERWRITE: ContextVar[bool] = ContextVar("whether a step may work in the arrays of its state", default=False)
REMEMBERED = 1000  # so many kinds of calls, once checked, are not checked again

# Types of options that identify a kind of call.
COMPARED = frozenset({int, float, bool, str, type(None), ModuleType, FunctionType})

COUNTS = ("int", "int | None", int, int | None)  # annotations of what may be a size

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
    entry = Entry(function, look, values)
    state_at = entry.places.get("state", 0)
    latest: Any = (None, None)  # the kind of the last call: most steps are of the kind of the step before

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal latest
        outer = IN_FORCE.get()
        if outer is not None and normal(options.get("kernels", outer)) is outer:  # called by a page: checked already
            return entry.run_within(outer, args, options)
        key = kind_of_call(args, options) if outer is None else None
        if key is not None and "out" in options and not can_be_filled(options["out"], args, options):
            key = None
        kind, code = latest  # together: another thread may call too
        known: Code | None = None if key is None else code if key == kind else entry.known.get(tuple(key))
        if known is None:
            return entry.first_call(None if key is None else tuple(key), args, options)
        latest = key, known
        if values is not None and not known.checks_values:
            entry.check_values(args, options)
        if known.by_run:
            return entry.run_in(known, args, options, entry.taken_out(options))
        for option in known.dropped:
            del options[option]
        if known.overwrites:
            for x in args[state_at] if len(args) > state_at else options["state"]:
                if type(x) is np.ndarray and not x.flags.writeable:
                    options["overwrite_state"] = False
        token = IN_FORCE.set(known.backend)
        try:
            return known.function(*args, **options)
        finally:
            IN_FORCE.reset(token)

    call.__signature__ = entry.whole_signature  # type: ignore[attr-defined]
    call.check, call.page = entry.check_alone, function  # type: ignore[attr-defined]
    call.looks = {"look": look, "values": values}  # type: ignore[attr-defined]
    return call


class Entry:
    """What lies between a caller and a page's function.

    A call of a kind that is not known goes through `first_call`, `check_and_run`, `run_in` and `run`.
    """

    def __init__(self, function: Any, look: Look | None, values: Look | None) -> None:
        self.function, self.look, self.values = function, look, values
        self.name, self.page = function.__name__, function.__module__.rpartition(".")[2]
        self.signature = inspect.signature(function)
        self.places = {name: place for place, name in enumerate(self.signature.parameters)}
        self.axes = {option: usual for option, usual in AXES.items() if option in self.places}
        self.flags = [name for name, x in self.signature.parameters.items() if x.annotation in ("bool", bool)]
        # Not of dropout, whose rng may be None
        self.draws = "rng" in self.places and "None" not in str(self.signature.parameters["rng"].annotation)
        self.scale_or_none = "scale" in self.places and self.signature.parameters["scale"].default is None
        # Sizes of what a draw makes: at least 1, or as they are unless given, which may be 0 or None
        counts = [x for x in self.signature.parameters.values() if self.name == "draw" and x.annotation in COUNTS]
        self.counts = {x.name: x.default for x in counts}
        self.options = self._options()
        self.whole_signature = with_options(self.signature, self.options)
        self.known: dict[Any, Code] = {}  # by the kind of a call

    def _options(self) -> dict[str, Any]:
        """Those that are on no page, each with what it is unless given."""
        names = {*self.places}
        elsewhere = names | ({"kernels"} if "model" in names else set())
        elsewhere |= {"overwrite_state"} if "grads" in names else set[str]()  # an optimiser's is always worked in
        if not {"q", "qk"} & names:  # a layer; a part of an attention runs on the backend of that
            is_part = ".attention." in self.function.__module__ and self.name == "forward"
            elsewhere |= {"out", "kernels"} if is_part else {"out"}
        return {option: usual for option, usual in OPTIONS.get(self.name, {}).items() if option not in elsewhere}

    # --- A call's arguments ---

    def argument(self, name: str, args: Any, options: Any) -> Any:
        """One of them; None where it is not given."""
        place = self.places[name]
        return args[place] if len(args) > place else options.get(name)

    def arguments(self, args: Any, options: Any) -> inspect.BoundArguments:
        """All of them by name."""
        try:
            return self.signature.bind(*args, **options)
        except TypeError as error:
            wrong = str(error)
        if not hasattr(self.function, "__signature__"):
            self.function(*args, **options)  # which raises the error in Python's own words
        raise TypeError(f"{self.name}() {wrong}")

    def taken_out(self, options: Any) -> Any:
        """The options that are on no page, taken out of the others."""
        extras = {}
        for option in self.options:
            if option in options:
                extras[option] = options.pop(option)
        return extras

    # --- Checks ---

    def first_call(self, key: Any, args: Any, options: Any) -> Any:
        """A call of a kind that is not known."""
        for name in [*[*self.places][:1], *["saved"] * ("saved" in self.places)]:
            first = self.argument(name, args, options)  # if it is NumPy's, so are all, or the checks say so
            while isinstance(first, tuple) and first:
                first = next((x for x in first if x is not None), None)
            if type(first) is not np.ndarray:
                whole = functools.partial(self.check_and_run, None)
                return with_gpu_arrays(whole, self.whole_signature, args, options)
        return self.check_and_run(key, args, options)

    def check_and_run(self, key: Any, args: Any, options: Any) -> Any:
        """The whole way of a call; how its options go on is kept under ``key``."""
        given = self.taken_out(options)
        backend, extras = self.backend(args, options, given), {x: given[x] for x in given if x != "kernels"}
        if self.axes and backend is not PAGES:
            dtype = getattr(args[0] if args else options.get(next(iter(self.places))), "dtype", None)
            if getattr(dtype, "name", None) in half.NAMES:
                return self.run_half(args, options, {**extras, "kernels": backend}, dtype)
        said = options
        args, options, as_given = self.checked(args, options, backend, extras)
        code = self.code_for(backend, args, options)
        # The next call of this kind is not checked again. A function of somebody's own may be another by then.
        own = is_own(backend) and (code.function is self.function or is_own(code.function))
        if key is not None and as_given and own:
            if len(self.known) >= REMEMBERED:  # as of a cache that grows with every step
                self.known.clear()
            self.known[key] = self.next_time(code, said, given)
        if not is_gpu_call():
            self.check_values(args, options)
        return self.run_in(code, args, options, extras)

    def backend(self, args: Any, options: Any, given: Any) -> Any:
        """The one that was asked for, of a network by its model."""
        backend = given.get("kernels", PAGES)
        if "model" in self.places:
            backend = getattr(self.argument("model", args, options), "kernels", PAGES)
            try:
                backend = importlib.import_module(backend) if isinstance(backend, str) else backend
            except (ModuleNotFoundError, ValueError) as error:
                known = f"a backend or its name, such as {JIT}"
                raise TypeError(f"model.kernels: expected {known}, got {backend!r}") from error
        return normal(backend)

    def checked(self, args: Any, options: Any, backend: Any, extras: Any) -> tuple[Any, Any, bool]:
        """The arguments after all checks but those of values, and whether they are as they were given."""
        call = self.arguments(args, options)
        check_extras(extras)
        call.apply_defaults()
        arguments, rules = call.arguments, rules_of(self.function)
        sizes = {"D": arguments["key_width"]} if "key_width" in arguments else {}
        before = dict(arguments)
        if "saved" in arguments:
            home_of(arguments["saved"], self.function)
            sizes_of(arguments["saved"], sizes)
        arguments.update({name: plain(x) for name, x in arguments.items() if name not in rules})
        model = arguments.get("model")  # whose numbers become Python's too
        if isinstance(model, tuple) and any(isinstance(x, np.generic) for x in model):
            arguments["model"] = type(model)(*map(plain, model))
        if "leading" in arguments:
            check_made(**arguments)
        check(arguments, rules, sizes)
        check_flags(**{name: arguments[name] for name in self.flags})
        check_options(arguments, sizes.get("dtype", np.float64), scale_or_none=self.scale_or_none)
        if "dtype" in arguments:
            check_dtype(arguments["dtype"])
        if self.draws:
            check_rng(arguments["rng"])
        check_sizes(**{name: arguments[name] for name, usual in self.counts.items() if arguments[name] is not usual})
        if self.look is not None:
            self.look(**arguments)
        if backend is not PAGES:
            check_backend(backend, self.function)
        if extras.get("out") is not None:
            check_out(extras["out"], sizes, [*args, *options.values()])
        return call.args, call.kwargs, all(x is before[name] for name, x in arguments.items())

    def check_values(self, args: Any, options: Any) -> None:
        """The page's own check of the numbers in arrays."""
        if self.values is not None:
            named = {name: x for name, x in options.items() if name in self.places}
            self.values(**dict(zip(self.places, args, strict=False)), **named)

    def check_alone(self, *args: Any, **options: Any) -> None:
        """All checks, and nothing else."""
        extras = self.taken_out(options)
        backend = normal(extras.pop("kernels", PAGES))
        args, options, _ = self.checked(args, options, backend, extras)
        if not is_gpu_call():
            self.check_values(args, options)

    # --- What computes a call ---

    def code_for(self, backend: Any, args: Any, options: Any) -> Code:
        """The page's function, or the backend's; of a backward pass, as what was saved says."""
        if "saved" in self.places:
            saved = self.argument("saved", args, options)
            return Code(home_of(saved, self.function), backend_of(saved))
        code = self.function if backend is PAGES else code_of(backend, self.page, self.name, self.function)
        for option, usual in self.axes.items() if code is not self.function else ():
            if options.get(option, usual) is not usual and option not in parameters_of(code):
                code = self.function  # the page cuts the arrays, and the backend runs on the parts
        return Code(code, backend)

    def next_time(self, code: Code, options: Any, given: Any) -> Code:
        """How the options of a call of this kind go on: those of the page, and those of the entry that were given."""
        takes, own = parameters_of(code.function), code.function is self.function
        usual = [x for x in self.axes if x in options and options[x] is self.axes[x] and not own]
        untaken = [x for x in given if x not in takes]
        overwrites = given.get("overwrite_state", False)
        by_run = (
            given.get("like") is not None or (own and overwrites) or ("out" in untaken and given["out"] is not None)
        )
        in_state = overwrites and not own and "overwrite_state" in takes
        return Code(*code[:2], (*usual, *untaken), in_state, by_run, getattr(code.function, "checks_values", False))

    def run_within(self, outer: Any, args: Any, options: Any) -> Any:
        """A call by a page, on whose backend it runs."""
        extras = self.taken_out(options) if options else {}
        code = self.code_for(outer, args, options)
        if code.backend is not outer:
            return self.run_in(code, args, options, extras)
        extras.pop("kernels", None)
        return self.run(code, args, options, extras)

    def run_in(self, code: Code, args: Any, options: Any, extras: Any) -> Any:
        """With the backend in force, also for the calls that this one makes."""
        extras.pop("kernels", None)
        overwrite = OVERWRITE.set(extras.get("overwrite_state", OVERWRITE.get()))
        token = IN_FORCE.set(code.backend)
        try:
            return self.run(code, args, options, extras)
        finally:
            IN_FORCE.reset(token)
            OVERWRITE.reset(overwrite)

    def run(self, code: Code, args: Any, options: Any, extras: Any) -> Any:
        """Call what computes, with those options that it takes; for the others, do what they ask."""
        for option, usual in self.axes.items() if code.function is not self.function else ():
            if options.get(option, usual) is usual:
                options.pop(option, None)
        if "overwrite_state" in self.options and (OVERWRITE.get() or extras.get("overwrite_state")):
            state = self.argument("state", args, options)
            extras["overwrite_state"] = is_writeable(*state)  # also where another page's step calls
        if not extras:
            return code.function(*args, **options)
        takes = parameters_of(code.function)
        taken = {option: x for option, x in extras.items() if option in takes}
        result = code.function(*args, **options, **taken)
        if extras.get("out") is not None and "out" not in taken:
            extras["out"][...] = result[0]
            return (extras["out"], *result[1:])
        return result if extras.get("like") is None else to_where(extras["like"], result)

    def run_half(self, args: Any, options: Any, extras: Any, dtype: Any) -> Any:
        """The same in float32, which is rounded to the 16 bits of the inputs."""
        buffer = extras.pop("out", None)
        wide = half.widened(self.function, self.arguments(args, options).arguments, dtype)
        out, after = self.check_and_run(None, (), {**wide, **extras})
        out = out.astype(dtype)
        if buffer is not None:
            sizes = {"...": out.shape[:-2], "N": out.shape[-2], "M": out.shape[-1], "dtype": dtype}
            check_out(buffer, sizes, [*args, *options.values()])
            buffer[...] = out
            out = buffer
        backward = sys.modules[self.function.__module__].backward
        return out, half.Saved(after, dtype, backward) if self.name == "forward" else after


def normal(backend: Any) -> Any:
    """A backend; for the pages themselves, as a module or by the name that `help` shows, that name."""
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", None)
    return PAGES if name == PAGES else backend


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
            elif kind is slice:
                found.append((x.start, x.stop, x.step))
            else:
                return None
    return found


@cache
def parameters_of(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
