"""Shapes, said once: in the signature, where a reader, ``help`` and the check at the entry all find them.

    def forward(q: Float[Array, "... N D"], k: Float[Array, "... L D"], v: Float[Array, "... L M"], ...)

A letter stands for one length throughout a call, which may be 0 only if the letter is a small one. A digit stands for
itself; ``C?`` is an axis that may be missing, ``1|C`` one of length 1 or ``C``. ``...`` are the leading axes of all
arrays, ``#...`` leading axes that broadcast to them, and ``*...`` leading axes of an array's own. ``Constant`` is an
array of either precision, such as random directions, that is used in the precision of the others. The notation is
jaxtyping's. To a type checker an annotation is the array alone. (jaxtyping's own errors do not name the argument, so
the check is ours, and nothing has to be installed for it.)

A NamedTuple of arrays has its own letters, which are those of the call where it is an argument. Inside another one,
``Of`` says what they are called there, in the order in which they first appear:

    class Params(NamedTuple):
        inner: Of[affine.Params, "E F"]
        outer: Of[affine.Params, "F E"]
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from linattn_ref.op.gpu_arrays import is_inside

__all__ = ["FLOATS", "Array", "Axes", "Bool", "Constant", "Float", "Int", "Integers", "Mask", "Of"]
__all__ += ["check", "check_array", "is_array", "name_of", "notation", "rules_of", "sizes_of"]

Array = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
KINDS = {"bool": ("an array of bool", "b"), "int": ("an array of integers", "iu")}  # and the letters of their dtypes

Sizes = dict[str, Any]  # lengths by letter, the leading axes under "...", and the dtype


class Axes(NamedTuple):
    """What an annotation says of an array."""

    dtype: str  # "float", "constant", "bool" or "int"
    leading: str  # "...", "#...", "*..." or ""
    letters: tuple[str, ...]

    def __str__(self) -> str:
        letters = [*filter(None, (self.leading.strip("#*"), *self.letters))]
        return f"({', '.join(letters)}{',' * (not self.leading and len(letters) == 1)})"


def notation(hint: Any) -> Any:
    """The annotation of an array as it is written; any other annotation as it is."""
    for part in (hint, *get_args(hint)):
        for axes in getattr(part, "__metadata__", ()):
            if isinstance(axes, Axes):
                kind = "Integers" if axes.dtype == "int" else "Array"
                text = " ".join(filter(None, (axes.leading, *axes.letters)))
                return f"{axes.dtype.capitalize()}[{kind}, {text!r}]{' | None' * (type(None) in get_args(hint))}"
    return hint


class Rule(NamedTuple):
    """What an argument has to be: an array, or a NamedTuple of arrays."""

    kind: Any  # Axes, or the class
    optional: bool
    names: tuple[tuple[str, str], ...] = ()  # of the class's letters that are called otherwise here


class _Shaped:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __getitem__(self, item: tuple[Any, str]) -> Any:
        kind, text = item
        leading, *letters = text.split() if "..." in text else ("", *text.split())
        return Annotated[kind, Axes(self.dtype, leading, tuple(letters))]


class _Renamed:
    def __getitem__(self, item: tuple[Any, str]) -> Any:
        return Annotated[item[0], tuple(item[1].split())]  # what the letters of this NamedTuple are called in another


if TYPE_CHECKING:
    from typing import Annotated as Bool
    from typing import Annotated as Constant
    from typing import Annotated as Float
    from typing import Annotated as Int
    from typing import Annotated as Of
else:
    Float, Bool, Constant, Int, Of = *map(_Shaped, ("float", "bool", "constant", "int")), _Renamed()


@cache
def rules_of(owner: Any, names: tuple[tuple[str, str], ...] = ()) -> dict[str, Rule]:
    """The parameters of a function, or the fields of a NamedTuple, that are arrays or NamedTuples, in order."""
    found, defaults, here = {}, getattr(owner, "_field_defaults", {}), dict(names)
    for name, hint in get_type_hints(owner, include_extras=True).items():
        of_one = hasattr(hint, "__metadata__") or get_origin(hint) is tuple
        parts = (hint, *(() if of_one else get_args(hint)))  # ``Float[...] | None`` too
        optional = type(None) in parts or defaults.get(name, hint) is None
        for part in parts if name not in ("return", "saved") else ():
            kind, (said, *_) = getattr(part, "__origin__", part), getattr(part, "__metadata__", (None,))
            if isinstance(said, Axes):
                letters = tuple(here.get(letter, letter) for letter in said.letters)
                found[name] = Rule(said._replace(letters=letters), optional)
            elif isinstance(kind, type) and hasattr(kind, "_fields"):
                own = letters_of(kind)
                inside = tuple((a, here.get(b, b)) for a, b in zip(own, said or own, strict=True))
                found[name] = Rule(kind, optional, tuple(pair for pair in inside if pair[0] != pair[1]))
    return found


def letters_of(kind: Any) -> tuple[str, ...]:
    """The letters of a NamedTuple, in the order in which they first appear."""
    found: dict[str, None] = {}
    for part, _, names in rules_of(kind).values():
        if isinstance(part, Axes):
            found.update(dict.fromkeys(letter for letter in part.letters if not letter.isdecimal()))
        else:
            found.update(dict.fromkeys(dict(names).get(letter, letter) for letter in letters_of(part)))
    return tuple(found)


def check(arguments: dict[str, Any], rules: dict[str, Rule], sizes: Sizes, prefix: str = "") -> None:
    """Every array in ``arguments`` is as its rule says; else an error names the first that is not.

    Constants are replaced: they are used in the dtype of the other arrays.
    """
    for name, (kind, optional, names) in rules.items():
        x = arguments[name]
        if x is None and optional:
            continue
        if isinstance(x, np.generic):  # what indexing leaves of a row
            x = arguments[name] = np.asarray(x)
        if isinstance(kind, Axes):
            _check_array(prefix + name, x, kind, sizes)
            if kind.dtype == "constant":
                arguments[name] = np.asarray(x, sizes.get("dtype"), like=x)
        elif not isinstance(x, kind):
            raise TypeError(f"{prefix}{name}: expected {name_of(kind)}, got {name_of(type(x))}")
        else:
            check(x._asdict(), rules_of(kind, names), sizes, f"{prefix}{name}.")


def check_array(name: str, x: Any, ndim: int = 2, dtype: Any = None) -> None:
    """``x`` is float32 or float64 (``dtype``, if given) with at least ``ndim`` axes, none of them empty."""
    sizes = {"...": ()} if dtype is None else {"...": (), "dtype": dtype}
    _check_array(name, x, Axes("float", "*...", tuple("ABCDEFGH"[:ndim])), sizes)


def _check_array(name: str, x: Any, axes: Axes, sizes: Sizes) -> None:
    kind, letters = KINDS.get(axes.dtype, ("a numpy.ndarray", ""))
    if not is_array(x):
        raise TypeError(f"{name}: expected {kind}, got {type(x).__name__}")
    if letters:
        if x.dtype.kind not in letters:
            raise TypeError(f"{name}: expected {kind}, got {x.dtype}")
    elif x.dtype not in FLOATS and x.dtype != sizes.get("dtype"):  # 16 bits are what a forward pass was given
        raise TypeError(f"{name}: expected float32 or float64, got {x.dtype}")
    elif axes.dtype == "float" and x.dtype != sizes.setdefault("dtype", x.dtype):
        raise TypeError(f"{name}: expected {sizes['dtype']} like the other arrays, got {x.dtype}")
    if axes.letters[-1:] and axes.letters[-1][-1] == "?":
        there = x.ndim == len(sizes["..."]) + len(axes.letters)
        axes = axes._replace(letters=(*axes.letters[:-1], *[axes.letters[-1][:-1]] * there))
    if x.ndim < len(axes.letters):
        raise ValueError(f"{name}: expected at least {len(axes.letters)} axes, got shape {x.shape}")
    count = x.ndim - len(axes.letters)
    leading, lengths = x.shape[:count], x.shape[count:]
    if 0 in leading or any(not x and not letter.islower() for x, letter in zip(lengths, axes.letters, strict=True)):
        raise ValueError(f"{name}: every axis needs at least one entry, got shape {x.shape}")
    wanted: tuple[int, ...] = ()
    if axes.leading:
        wanted = sizes.setdefault("...", leading) if axes.leading == "..." else sizes["..."]
    expected = tuple(_length(*pair, sizes) for pair in zip(axes.letters, lengths, strict=True))
    if axes.leading == "*..." or (axes.leading == "#..." and _broadcasts(leading, wanted)):
        wanted = leading
    if lengths != expected or leading != wanted:
        raise ValueError(f"{name}: expected shape {axes} = {(*wanted, *expected)}, got {x.shape}")


def _length(letter: str, length: int, sizes: Sizes) -> int:
    if letter.startswith("1|") and length == 1:
        return 1
    return int(letter) if letter.isdecimal() else sizes.setdefault(letter.removeprefix("1|"), length)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape[::-1], to[::-1], strict=False))


def name_of(kind: type) -> str:
    """What to call a type in a message: its name after that of its module, for several are called ``State``."""
    module = kind.__module__.rpartition(".")[2]
    return kind.__name__ if module == "builtins" else f"{module}.{kind.__name__}"


def sizes_of(saved: Any, sizes: Sizes, names: tuple[tuple[str, str], ...] = ()) -> Sizes:
    """The lengths that letters stand for in what a forward pass saved, added to ``sizes``."""
    if hasattr(saved, "sizes"):  # it says so itself
        for letter, length in saved.sizes().items():
            sizes.setdefault(letter, length)
        return sizes
    kinds: Any = type(saved)
    rules = rules_of(kinds, names)
    for name, (kind, _, inside) in rules.items():
        x = getattr(saved, name)
        if x is None:
            continue
        if not isinstance(kind, Axes):
            sizes_of(x, sizes, inside)
        elif kind.dtype == "float" or ("dtype" not in sizes and kind.dtype != "constant"):  # masks alone say it too
            count = x.ndim - len(kind.letters)
            if kind.dtype == "float":
                sizes.setdefault("dtype", x.dtype)
            if kind.leading == "...":
                sizes.setdefault("...", x.shape[:count])
            for letter, length in zip(kind.letters, x.shape[count:], strict=True):
                _length(letter, length, sizes)
    for name, x in zip(saved._fields, saved, strict=True):  # lastly, what the pages within this one saved
        if name not in rules and hasattr(x, "_fields"):
            sizes_of(x, sizes)
    return sizes


def is_array(x: Any) -> bool:
    """Whether ``x`` is an array of NumPy's, or one on a GPU; to a masked array or a matrix ``*`` is something else."""
    if type(x) is np.ndarray:
        return True
    if isinstance(x, np.ndarray):  # only now, since np.ma is imported when it is first named
        return not isinstance(x, (np.ma.MaskedArray, np.matrix))
    return is_inside(x)
