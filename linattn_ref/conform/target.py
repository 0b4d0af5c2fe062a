"""What is judged: a function, or a pair ``forward, backward``, and how it wants to be called.

A *pair* follows this package's convention: ``forward(...)`` returns ``(out, saved)`` with the last state as
``saved.state``, and ``backward(d_out, saved)`` the gradients under the names of the inputs, the
target's or the pages', or in their order. A *function* of PyTorch or JAX returns ``out`` or ``(out, state)``, and the
library is asked for the gradients. A function of NumPy offers none.

Arguments are called as on the pages. An option (``causal``, ``scale``, ``key_mask``, ``state``, ``offsets``,
``groups``, ``normalise``) is asked for only where the signature names it or the :class:`Mapping` declares it;
``**kwargs`` declares nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable
from collections.abc import Mapping as Table
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.conform.arrays import LIBRARIES, Library, library_of
from linattn_ref.conform.questions import OPS, Arrays, Question

__all__ = ["Answer", "Mapping", "NotATarget", "Target", "load"]

OPTIONS = "causal", "scale", "key_mask", "state", "offsets", "groups", "normalise"
CHOICES = {"layout": ("BHND", "BNHD", "packed"), "mask": ("BHL", "BL"), "gate": ("head", "channel")}
CHOICES |= {"state": ("CM", "MC"), "widths": ("any", "same"), "arrays": ("", *LIBRARIES)}
# Options that a kernel can have built in, with the type of their values.
BUILT_IN: dict[str, Any] = {"causal": bool, "normalise": bool, "scale": Real, "eps": Real, "groups": Integral}
TYPES = {bool: "true or false", Real: "a number", Integral: "a whole number of at least 1"}


NO_STATE = "a state was given and none came back: return (out, state)"


class NotATarget(ValueError):
    """What was named cannot be called as the mapping says."""


class Mapping(NamedTuple):
    """How a target differs from a page: the content of ``conform.toml``."""

    names: Table[str, str] = {}  # the target's name of an argument, by the page's: {"log_gate": "g"}
    fixed: Table[str, Any] = {}  # options that are built in, and so are not passed: {"scale": 1.0, "causal": True}
    given: Table[str, Any] = {}  # arguments of its own, always passed: {"final_state": True, "kernels": "@module:name"}
    declares: tuple[str, ...] = ()  # options that its signature does not show
    layout: str = "BHND"  # or BNHD; or packed, (tokens, heads, width), with offsets always
    mask: str = "BHL"  # or BL: one mask for all heads
    gate: str = "head"  # or channel
    state: str = "CM"  # or MC: the state transposed
    widths: str = "any"  # or same: its values have to be as wide as its keys
    arrays: str = ""  # numpy, torch, jax or cupy; by default what the target's module imports
    device: str = "cpu"

    def checked(self, op: str) -> Mapping:
        """Return the mapping itself if it makes sense for an operation."""
        for field, allowed in CHOICES.items():
            if (got := getattr(self, field)) not in allowed:
                raise NotATarget(f"{field}: expected one of {', '.join(filter(None, allowed))}, got {got!r}")
        options = options_of(op)
        fixable = [name for name in (*options, *("eps",) * (op == "linear")) if name in BUILT_IN]
        for field, known, what in (
            ("declares", OPTIONS, "an option that a page has"),
            ("names", (*OPS[op].inputs, *options), f"an argument of {op}"),
            ("fixed", fixable, f"an option of {op}"),
        ):
            for name in getattr(self, field):
                if name not in known:
                    raise NotATarget(f"{field}: expected {what} ({', '.join(known)}), got {name!r}")
        for name, x in self.fixed.items():
            kind = BUILT_IN[name]
            if not isinstance(x, kind) or isinstance(x, bool) != (kind is bool) or (kind is Integral and x < 1):
                raise NotATarget(f"fixed: expected {TYPES[kind]} for {name}, got {x!r}")
        return self


def options_of(op: str) -> tuple[str, ...]:
    """The options that a kernel of an operation may have; the delta rule's ``normalise`` too."""
    return *OPS[op].options, *("normalise",) * ("beta" in OPS[op].inputs)


def meant(name: str, value: Any) -> Any:
    """An argument's value; ``@module`` and ``@module:name`` are what they name."""
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    module, _, attribute = value[1:].partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    except (ImportError, AttributeError, ValueError) as error:
        raise NotATarget(f"{name}: expected what {value!r} names: {error}") from None


class Answer(NamedTuple):
    """What came back, in float64 and our layout."""

    arrays: Arrays
    state: Any = None  # as the target gave it, to be handed back
    altered: tuple[str, ...] = ()  # inputs that the call changed
    dtypes: tuple[tuple[str, str], ...] = ()  # of the output and of the gradients of inputs


class Target(NamedTuple):
    """A function or a pair, ready to be asked."""

    op: str
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None
    mapping: Mapping
    library: Library
    dtype: str
    forward_alone: bool = False  # whether gradients are not asked for, though there may be some
    interrupted: bool = False  # whether each call is followed by one of other numbers, before anything is made of it

    @classmethod
    def of(cls, function: Any, op: str, dtype: str = "float32", mapping: Mapping | None = None) -> Target:
        """What ``function`` is: itself callable, a pair, or a module with ``forward`` and ``backward``."""
        if op not in OPS:
            raise NotATarget(f"op: expected one of {', '.join(OPS)}, got {op!r}")
        mapping = (mapping or Mapping()).checked(op)
        mapping = mapping._replace(given={name: meant(name, x) for name, x in mapping.given.items()})
        if not callable(function) and hasattr(function, "forward"):
            function = function.forward, getattr(function, "backward", None)
        forward, backward = function if isinstance(function, tuple) else (function, None)
        if not callable(forward) or not (backward is None or callable(backward)):
            raise NotATarget(f"target: expected a function or a pair of functions, got {function!r}")
        library = LIBRARIES[mapping.arrays] if mapping.arrays else library_of(forward)
        target = cls(op, forward, backward, mapping, library, dtype)
        try:
            library.check(dtype, mapping.device)
        except ImportError as error:
            name = "dtype" if library.extra == "half" else "arrays"
            raise NotATarget(f"{name}: {error}: pip install 'linattn-ref[{library.extra}]'") from None
        except ValueError as error:
            raise NotATarget(str(error)) from None
        for name in OPS[op].inputs[3:]:
            if not target.open_ended and (called := target.name_of(name)) not in target.named:
                raise NotATarget(f"the target has no argument {called!r}; say which is {name}: --map {name}=...")
        by_position, by_name = target.arguments(dict.fromkeys(OPS[op].inputs))
        known = {*by_name, *mapping.given, *map(target.name_of, OPTIONS)}
        lacking = [name for name in target.required[len(by_position) :] if name not in known]
        if lacking:
            told = f"--give {lacking[0]}=VALUE, or --map OURS={lacking[0]} where it is an option of ours"
            raise NotATarget(f"the target needs {', '.join(lacking)}; say what that is: {told}")
        return target

    @property
    def named(self) -> list[str]:
        """The names in the signature."""
        return [x.name for x in parameters(self.forward)]

    @property
    def required(self) -> list[str]:
        """Those without a default."""
        kinds = *POSITIONAL, inspect.Parameter.KEYWORD_ONLY
        return [x.name for x in parameters(self.forward) if x.default is x.empty and x.kind in kinds]

    @property
    def open_ended(self) -> bool:
        """Whether it takes arguments of other names."""
        return any(x.kind is x.VAR_KEYWORD for x in parameters(self.forward))

    def name_of(self, name: str) -> str:
        """The target's name of an argument."""
        return self.mapping.names.get(name, name)

    def offers(self, name: str) -> bool:
        """Whether an option may be asked for; ``gradients`` and ``d_state`` are no options, but may be offered."""
        if name == "gradients":
            return not self.forward_alone and (self.backward is not None or self.library.differentiates)
        if name == "d_state":
            takes = self.backward is None or any(x.name == "d_state" for x in parameters(self.backward))
            return takes and self.offers("gradients") and self.offers("state")
        if name in self.mapping.fixed or name not in options_of(self.op):
            return False
        if name == "offsets" and self.mapping.layout == "packed":
            return True
        return name in self.mapping.declares or name in self.mapping.names or name in self.named

    def answer(self, question: Question, gradients: bool = True, state: Any = None) -> Answer:
        """Ask it. ``state`` is one that it gave before, and goes back as it came."""
        lib, gradients = self.library, gradients and self.offers("gradients")
        given = {name: self.array(self.outward(question, name, x)) for name, x in question.inputs.items()}
        if question.state is not None and state is None:
            state = self.state_of(question.state)
        options = self.options(question)
        d_out = self.array(self.outward(question, "d_out", question.d_out))
        states = state if isinstance(state, tuple) else () if state is None else (state,)
        watched = {**given, "d_out": d_out, **dict(zip(OPS[self.op].state, states, strict=False))}
        watched |= {name: options.get(self.name_of(name)) for name in ("key_mask", "offsets")}
        before = {name: lib.numpy(x) for name, x in watched.items() if x is not None}
        d_state = None if question.d_state is None else self.state_of(question.d_state)
        wanted = state if question.state is not None and self.offers("d_state") else None

        def call(given: dict[str, Any], state: Any = state) -> tuple[Any, Any]:
            """The output and the last state, if any."""
            first = {} if state is None else {self.name_of("state"): state}

            def called(given: dict[str, Any]) -> Any:
                by_position, by_name = self.arguments(given)
                return self.forward(*by_position, **by_name, **{**first, **options})

            returned = called(given)
            if self.interrupted:
                called({**given, "q": -given["q"], "v": -given["v"]})
            out, last = returned[:2] if isinstance(returned, tuple) and len(returned) > 1 else (returned, None)
            if not hasattr(out, "shape"):
                raise ValueError(f"expected an array, or an array and what is kept, got {type(out).__name__}")
            if tuple(out.shape) != tuple(d_out.shape):
                raise ValueError(f"out: expected shape {tuple(d_out.shape)}, got {tuple(out.shape)}")
            return out, last if self.offers("state") or self.backward is not None else None

        if self.backward is not None:
            out, last, grads = self.by_pair(call, given, d_out, d_state, gradients)
        else:
            out, last, grads = lib.ask(call, given, wanted, (d_out, d_state) if gradients else None)
        if last is None and d_state is not None and grads is not None:
            raise ValueError(NO_STATE)
        asked = [*given, *["state"] * (wanted is not None)]
        if grads is not None and (lacking := [name for name in asked if name not in grads]):
            raise ValueError(f"backward gave no gradient of {', '.join(lacking)}")
        after = {name: lib.numpy(watched[name]) for name in before}
        altered = tuple(name for name, x in before.items() if not np.array_equal(x, after[name], equal_nan=True))
        found = {"out": self.inward(question, "out", lib.numpy(out)), **self.state_arrays(last, "")}
        dtypes = [("out", lib.dtype(out))]
        for name, x in (grads or {}).items():
            if name == "state":
                found |= self.state_arrays(x, "d_")
            else:
                dtypes += [] if x is None else [(f"d_{name}", lib.dtype(x))]
                x = np.zeros_like(before[name]) if x is None else lib.numpy(x)
                found[f"d_{name}"] = self.inward(question, name, x)
        return Answer(found, last, altered, tuple(dtypes))

    def array(self, x: np.ndarray, dtype: str = "") -> Any:
        """An array of the target's library, of its own dtype unless another is asked for."""
        return self.library.array(x, dtype or self.dtype, self.mapping.device)

    def arguments(self, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arrays by position, and by name; q, k and v go to the first arguments of no known name, if need be."""
        expected, named = parameters(self.forward), self.named
        ours = {*map(self.name_of, (*OPS[self.op].inputs, *OPTIONS)), *self.mapping.given}
        free = (x.name for x in expected if x.name not in ours and x.kind in POSITIONAL)
        by_name = {}
        for name in OPS[self.op].inputs:
            called = self.name_of(name)
            if called not in named and name in ("q", "k", "v"):
                called = next(free, called)
            by_name[called] = given[name]
        if not self.open_ended and not {*by_name} <= {*named}:  # *arrays
            return [*by_name.values()], {}
        return [by_name.pop(x.name) for x in expected if x.kind is x.POSITIONAL_ONLY and x.name in by_name], by_name

    def by_pair(self, call: Any, given: Any, d_out: Any, d_state: Any, gradients: bool) -> tuple[Any, Any, Any]:
        """A pair's output, last state and gradients."""
        out, saved = call(given)
        last = getattr(saved, "state", None)
        if not gradients or self.backward is None:
            return out, last, None
        more = {} if d_state is None else {"d_state": d_state}
        grads = self.backward(d_out, saved, **more)
        names = (*given, "state")
        grads = grads._asdict() if hasattr(grads, "_fields") else grads
        if isinstance(grads, (tuple, list)):
            return out, last, dict(zip(names, grads, strict=False))
        if not isinstance(grads, Table):
            got = type(grads).__name__
            raise ValueError(f"backward: expected gradients by their names or in order, got {got}")
        found = {name: grads.get(self.name_of(name), grads.get(name)) for name in names}
        return out, last, {name: x for name, x in found.items() if x is not None}

    def options(self, question: Question) -> dict[str, Any]:
        """What is passed besides the arrays of tokens and the state."""
        found = {self.name_of(name): x for name, x in question.options.items() if self.offers(name)}
        if self.offers("causal"):  # a kernel's own default may be the other one
            found[self.name_of("causal")] = question.causal
        if self.offers("scale") and self.name_of("scale") in self.required:
            found[self.name_of("scale")] = question.scale
        mask = question.options.get("key_mask")
        if mask is not None:
            mask = self.outward(question, "key_mask", mask)
            if self.mapping.mask == "BL":
                mask = mask.take(0, -2 if self.mapping.layout == "BHND" else -1)
            found[self.name_of("key_mask")] = self.array(mask, "bool")
        offsets = question.options.get("offsets")
        if offsets is None and self.mapping.layout == "packed":
            offsets = [0, question.inputs["q"].shape[-2]]
        if offsets is not None:
            found[self.name_of("offsets")] = self.array(np.asarray(offsets, np.int64), "int64")
        return {**found, **self.mapping.given}

    def state_of(self, arrays: tuple[np.ndarray, ...]) -> Any:
        """A state as the target takes it: a page's for a pair; an array, or a tuple of some, for a function."""
        dtype = self.dtype if self.dtype in ("float64", "float32") else "float32"  # in which it is kept
        pairs = zip(arrays, OPS[self.op].state, strict=True)
        found = [self.array(self.turned(x, name), dtype) for x, name in pairs]
        if self.backward is not None:
            return OPS[self.op].page.State(*found)
        return found[0] if len(found) == 1 else tuple(found)

    def state_arrays(self, state: Any, prefix: str) -> Arrays:
        """The arrays of a state that the target gave."""
        if state is None or not OPS[self.op].state:
            return {}
        arrays = state if isinstance(state, tuple) else (state,)
        pairs = zip(OPS[self.op].state, arrays, strict=False)
        return {prefix + name: self.turned(self.library.numpy(x), name) for name, x in pairs if x is not None}

    def turned(self, x: np.ndarray, name: str) -> np.ndarray:
        return x.swapaxes(-1, -2) if self.mapping.state == "MC" and name == "s" else x

    def outward(self, question: Question, name: str, x: np.ndarray) -> np.ndarray:
        """From our layout to the target's."""
        if self.mapping.layout == "BHND":
            return x
        axis = -1 if name == "key_mask" else question.axis(name)
        x = np.moveaxis(x, axis, axis - 1) if x.ndim >= 1 - axis else x  # tokens before heads
        if self.mapping.layout == "packed":
            return x if "offsets" in question.options else x[0]
        return x[None] if "offsets" in question.options else x

    def inward(self, question: Question, name: str, x: np.ndarray) -> np.ndarray:
        """And back."""
        if self.mapping.layout == "BHND":
            return x
        packed = "offsets" in question.options
        if packed != (self.mapping.layout == "packed"):
            x = x[0] if packed else x[None]
        axis = question.axis("d_out" if name == "out" else name)
        return np.moveaxis(x, axis - 1, axis)


POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Those of the signature; of a compiled function without one, arguments of any name."""
    if not inspect.isroutine(function):  # a module of PyTorch shows its own at `forward`
        function = getattr(function, "forward", function)
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return (inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD),)


def load(text: str) -> Any:
    """What ``module:function`` or ``file.py:function`` names; ``:forward,backward`` is a pair, no colon a module."""
    place, _, names = text.partition(":")
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise NotATarget(f"target: no such file: {place}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # where pickles and dataclasses look for it
        sys.path.insert(0, str(path.parent))
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, "")
        module = importlib.import_module(place)
    if not names:
        return module
    try:
        found = tuple(operator.attrgetter(name.strip())(module) for name in names.split(","))
    except AttributeError as error:
        raise NotATarget(f"target: {error}") from None
    return found if len(found) > 1 else found[0]
