"""What a mechanism is called with and what it promises (:class:`Case`), and one drawn call of it (:class:`Call`).

The mechanisms themselves are in ``cases.py``. A :class:`Setting` is a case in a kernel room, with or without a key
mask; the tests in ``contract/`` are parametrised over settings, and go through shapes and dtypes themselves::

    for dtype, sizes in product(DTYPES, SHAPES):
        with about(dtype, sizes):
            out, saved, gradients = setting.call(sizes, dtype=dtype).run()
"""

import importlib
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.nested import map_arrays

DTYPES = (np.float64, np.float32)
NOT_IN_FORMULAS = ("kernels", "feature_map", "buckets")  # options that plain loops are not called with
KNOWN: dict[bytes, Any] = {}  # what the last plain loops have given, by what they were called with


class Sizes(NamedTuple):
    """All different, so that a mix-up of two cannot pass."""

    n: int = 5
    n_keys: int = 7
    d: int = 4
    m: int = 3
    leading: tuple[int, ...] = (2,)


# In which rooms are compared: one of everything, within a tile, ragged tiles, many tiles.
SIZES = (Sizes(1, 1, 1, 1, ()), Sizes(7, 17, 4, 3, (2,)), Sizes(35, 70, 19, 34, (2, 2)), Sizes(300, 300, 5, 6, (1,)))


class Bad(NamedTuple):
    """An argument that only this mechanism has, and has to refuse."""

    what: str
    change: Callable[["Call"], "Call"]
    error: type[Exception]
    match: str

    def __str__(self) -> str:
        return self.what.replace(" ", "-")


@dataclass(frozen=True)
class Case:
    """A mechanism, what it is called with, and what it promises."""

    name: str
    module: ModuleType
    # Arguments. The arrays before the ``*`` of ``forward``, in order and by name; an entry may be a tuple of arrays.
    draw: Callable[[np.random.Generator, Sizes, Any], dict[str, Any]]
    # Its output for one head in plain loops, called with the same names: ``plain_loops.py``.
    oracle: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)  # keywords that are always the same
    draw_options: Callable[[np.random.Generator, Sizes, Any], dict[str, Any]] = lambda rng, sizes, dtype: {}
    rooms: tuple[str, ...] = ()  # the backends that it is tested in; none for NumPy alone
    # Promises.
    saved: Callable[[Sizes], int] = lambda sizes: 0  # numbers per head that Saved may keep beyond the inputs
    saved_in: Mapping[str, Callable[[Sizes], int]] = field(default_factory=dict)  # the same in rooms that differ
    shared_bytes: Callable[[Sizes], int] = lambda sizes: 0  # what it may keep for all heads together: who sees whom
    causal: bool = False  # no query sees a later key
    causality: str = "bitwise"  # how little a later key may change: not a bit, or "rounding"
    square: bool = False  # needs N == L
    recurrent: bool = False  # has init_state and step
    any_scale: bool = True  # of the scores; not where equal scores make a matrix singular that is to be inverted
    padding_is_truncation: bool = True  # masking the last keys is the same as not having them
    # Which axis of which array runs over keys, and so has gradient 0 where they are masked; and over queries: the rest
    # that belongs to a position, as a gate.
    query_axes: Mapping[str, int] = field(default_factory=lambda: {"q": -2})
    key_axes: Mapping[str, int] = field(default_factory=lambda: {"k": -2, "v": -2})
    shared: tuple[str, ...] = ()  # arrays without leading axes
    rows: tuple[str, ...] = ()  # arrays with one axis a head, where others have two
    bounded: tuple[str, ...] = ()  # arrays that may not be multiplied by 1e4, as gates between 0 and 1
    constants: tuple[str, ...] = ()  # float arrays that get no gradient, as omega
    optional: tuple[str, ...] = ()  # arrays that may be None
    widths: tuple[int, ...] = (8, 16, 128)  # of its tiles or blocks: lengths around them are tested
    # Results may differ by roundings * eps * max(1, |largest number|). The worst seen here is 12, in sums of up to 300
    # products, with scores of up to 10 (exp() multiplies their error). A wrong formula is off by millions.
    roundings: float = 64
    # Options that hold fixed what is not differentiated through, given a call: a hash.
    hold: Callable[["Call"], dict[str, Any]] = lambda call: {}
    bad: tuple[Bad, ...] = ()
    slow: bool = False  # close to a case that is not: tested with the slow tests
    left_to_slow: tuple[str, ...] = ()  # rooms in which only the mechanism's slow cases are tested

    @property
    def forward(self) -> Callable[..., Any]:
        return self.module.forward

    @property
    def backward(self) -> Callable[..., Any]:
        return self.module.backward

    def takes(self, option: str) -> bool:
        return option in inspect.signature(self.forward).parameters

    def fit(self, sizes: Sizes) -> Sizes:
        """The sizes nearest to these that the mechanism allows."""
        if self.square:
            return sizes._replace(n=sizes.n_keys)
        return sizes._replace(n=min(sizes.n, sizes.n_keys)) if self.causal else sizes

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


@dataclass(frozen=True)
class Setting:
    """A case in one kernel room, with or without a key mask."""

    case: Case
    room: str | None
    masked: bool

    def call(self, sizes: Sizes = Sizes(), *, dtype: Any = np.float64, seed: int = 0) -> "Call":  # noqa: B008
        """Normal numbers, and a mask that is True in two places of three."""
        rng = np.random.default_rng(seed)
        sizes = self.case.fit(sizes)
        arrays = self.case.draw(rng, sizes, dtype)
        options = {**self.case.options, **self.case.draw_options(rng, sizes, dtype)}
        if self.room is not None:
            options["kernels"] = importlib.import_module(f"linattn_ref.kernels.{self.room}")
        if self.masked:
            options["key_mask"] = rng.random((*sizes.leading, sizes.n_keys)) < 2 / 3
        return Call(self.case, sizes, arrays, options)

    def __str__(self) -> str:
        parts = str(self.case), self.room, "masked" if self.masked else None
        return "-".join(part for part in parts if part is not None)


class Result(NamedTuple):
    out: Any
    saved: Any
    gradients: Any

    def named(self) -> dict[str, Any]:
        """The output and every gradient."""
        fields = dict(zip(self.gradients._fields, self.gradients, strict=True))
        return {"out": self.out, **{leaf: x for name, part in fields.items() for leaf, x in float_arrays(name, part)}}


@dataclass(frozen=True)
class Call:
    """The arguments of one call."""

    case: Case
    sizes: Sizes
    arrays: dict[str, Any]
    options: dict[str, Any]

    def forward(self, **more: Any) -> Any:
        """``(out, saved)``."""
        return self.case.forward(*self.arrays.values(), **self.options, **more)

    def d_out(self) -> Any:
        """The gradient of the output that `run` takes, before anything is computed."""
        shape = (*self.sizes.leading, self.sizes.n, self.sizes.m)
        return normal_like(np.empty(shape, self.arrays[self.first].dtype))

    def function(self) -> Callable[..., Any]:
        """``forward`` of the arrays alone."""
        return partial(self.case.forward, **self.held().options)

    def held(self) -> "Call":
        """The same call with what is not differentiated through held fixed, whatever becomes of the arrays."""
        return self.change(**self.case.hold(self))

    def run(self, d_out: Any = None) -> Result:
        """Both passes; ``d_out`` is normal unless given."""
        out, saved = self.forward()
        if d_out is None:
            d_out = normal_like(out)
        return Result(out, saved, self.case.backward(d_out, saved))

    def expected(self) -> Any:
        """The output in plain loops, in float64, head by head; once for all rooms that get the same numbers."""
        call = self.astype(np.float64)
        call = replace(call, options={name: x for name, x in call.options.items() if name not in NOT_IN_FORMULAS})
        key = pickle.dumps((self.case.name, call.arrays, call.options))
        if key not in KNOWN:
            if len(KNOWN) == 200:
                del KNOWN[next(iter(KNOWN))]
            KNOWN[key] = call.in_loops()
            KNOWN[key].setflags(write=False)
        return KNOWN[key]

    def in_loops(self) -> Any:
        sizes = self.sizes
        out = np.empty((*sizes.leading, sizes.n, sizes.m))
        for head in np.ndindex(sizes.leading):
            one = self.head(head)
            out[head] = self.case.oracle(**one.arrays, **one.options)
        return out

    def astype(self, dtype: Any) -> "Call":
        def cast(x: Any) -> Any:
            return x.astype(dtype) if x.dtype.kind == "f" else x

        arrays, options = (
            {name: map_arrays(cast, x) for name, x in those.items()} for those in (self.arrays, self.options)
        )
        return replace(self, arrays=arrays, options=options)

    def change(self, *, sizes: Sizes | None = None, arrays: Mapping[str, Any] | None = None, **options: Any) -> "Call":
        """The same call with some arguments in place of its own."""
        arrays, options = {**self.arrays, **(arrays or {})}, {**self.options, **options}
        return replace(self, sizes=sizes or self.sizes, arrays=arrays, options=options)

    def accepted_by(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Those of the options that another function of the mechanism takes too."""
        return {name: x for name, x in self.options.items() if name in inspect.signature(function).parameters}

    # --- Parts of a call ---

    def pattern(self) -> Any:
        """Which query sees which key, ``(N, L)``, without leading axes: whose value moves whose output."""
        before, sees = self.expected(), np.empty((self.sizes.n, self.sizes.n_keys), bool)
        for j in range(self.sizes.n_keys):
            v = self.arrays["v"].copy()
            v[j, 0] += 1
            sees[:, j] = (self.change(arrays={"v": v}).expected() != before).any(axis=-1)
        return sees

    @property
    def axes(self) -> dict[str, int]:
        """The sequence axis of each array that has one."""
        return {**self.case.query_axes, **self.case.key_axes}

    @property
    def first(self) -> str:
        """The name of the first array, that of the queries."""
        return next(iter(self.arrays))

    def positions(self, where: slice | int) -> dict[str, Any]:
        """The arrays, those along a sequence at these positions only. With an int, the axis is gone: one token."""
        return {name: at(x, self.axes[name], where) if name in self.axes else x for name, x in self.arrays.items()}

    def without_last(self, count: int) -> "Call":
        """The same call without its last keys, and without a key mask.

        Where queries are aligned with keys, in causal order or because there has to be one for each, as many go too.
        """
        aligned = self.case.causal or self.case.square
        axes = self.axes if aligned else self.case.key_axes
        arrays = {
            name: at(self.arrays[name], axis, slice(0, self.arrays[name].shape[axis] - count))
            for name, axis in axes.items()
        }
        sizes = self.sizes._replace(n=self.sizes.n - count * aligned, n_keys=self.sizes.n_keys - count)
        return self.change(sizes=sizes, arrays=arrays, key_mask=None)

    def head(self, head: tuple[int, ...]) -> "Call":
        """One head or sequence, without leading axes."""

        def part(name: str, x: Any) -> Any:
            own = x.ndim - (1 if name in self.case.rows else 2)  # leading axes, of which it may have the last ones only
            return x[head[len(head) - own :]]

        arrays = {name: x if name in self.case.shared else part(name, x) for name, x in self.arrays.items()}
        key_mask = self.options.get("key_mask")
        options = {} if key_mask is None else {"key_mask": key_mask[head]}
        return self.change(sizes=self.sizes._replace(leading=()), arrays=arrays, **options)

    # --- The recurrent form ---

    def init_state(self) -> Any:
        """The state before the first token, with room for all of them."""
        init_state = self.case.module.init_state
        dtype, sizes = self.arrays["q"].dtype, self.sizes
        options = self.change(capacity=sizes.n_keys, dtype=dtype).accepted_by(init_state)
        return init_state(sizes.leading, sizes.d, sizes.m, *self.constants(), **options)

    def constants(self) -> list[Any]:
        """The arrays that a state is made for: those that ``init_state`` asks for."""
        asked = inspect.signature(self.case.module.init_state).parameters
        return [x for name, x in self.arrays.items() if name in asked]

    def block(self, start: int, stop: int) -> "Call":
        """The same call for some tokens only."""
        sizes = self.sizes._replace(n=stop - start, n_keys=stop - start)
        return self.change(sizes=sizes, arrays=self.positions(slice(start, stop)))

    def step(self, t: int, state: Any, **more: Any) -> Any:
        """Token ``t``: its output and the state after it."""
        q_t, k_t, v_t, *others = self.positions(t).values()
        step = self.case.module.step
        return step(q_t, k_t, v_t, state, *others, **self.accepted_by(step), **more)


def normal_like(x: Any) -> Any:
    """The same numbers for the same shape, float32 or float64."""
    return np.random.default_rng(1).standard_normal(x.shape).astype(x.dtype)


def at(x: Any, axis: int, where: slice | int) -> Any:
    """``x`` at some positions of one axis, counted from the end."""
    return x[(..., where, *[slice(None)] * (-axis - 1))]


@contextmanager
def about(*what: Any) -> Iterator[None]:
    """Says what was tested, should it fail."""
    try:
        yield
    except Exception as error:
        error.add_note("with " + ", ".join(getattr(x, "__name__", None) or str(x) for x in what))
        raise


def assert_close(actual: Any, expected: Any, case: Case, what: str = "", more: float = 0.0) -> None:
    """Equal up to ``Case.roundings`` of the largest number, and ``more``."""
    largest = max(1.0, float(abs(expected).max()))
    atol = case.roundings * np.finfo(actual.dtype).eps * largest + more
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol, err_msg=what)
