"""What the tests of a handout need: expected values, and finite differences. Needs NumPy alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref.homework.values import arrays_of, call, decode, finder, pack

__all__ = ["Questions", "flatten", "off", "slope"]


def flatten(x: Any, name: str = "") -> list[tuple[str, np.ndarray]]:
    """The arrays in a value, in order, with their names; what is None is left out."""
    if x is None:
        return []
    fields = zip(x._fields, x, strict=True) if hasattr(x, "_fields") else x.items() if isinstance(x, dict) else None
    if fields is not None:
        return [pair for field, y in fields for pair in flatten(y, f"{name}.{field}".strip("."))]
    if isinstance(x, (list, tuple)):
        return [pair for i, y in enumerate(x) for pair in flatten(y, f"{name}[{i}]")]
    return [(name, np.asarray(x, np.float64))]


def off(got: Any, expected: Any, tolerance: float) -> str:
    """What is wrong with a value: nothing where each array is within ``tolerance`` of its own largest number."""
    try:
        ours, theirs = flatten(expected), flatten(got)
    except (TypeError, ValueError, OverflowError) as error:
        return f"this is no array of numbers ({error})"
    if len(ours) != len(theirs):
        return f"expected {len(ours)} array(s), got {len(theirs)}"
    for (name, right), (_, x) in zip(ours, theirs, strict=True):
        title = f"{name}: " if name else ""
        if x.shape != right.shape:
            return f"{title}expected shape {right.shape}, got {x.shape}"
        with np.errstate(invalid="ignore"):
            distance = np.where((x == right) | (np.isnan(x) & np.isnan(right)), 0.0, abs(x - right))
        bad = ~(distance <= tolerance * abs(right[np.isfinite(right)]).max(initial=0.0))
        if bad.any():
            at = tuple(map(int, np.argwhere(bad)[0]))
            where = f"at {list(at)} " if at else ""
            return f"{title}{where}expected {right[at]:.6g}, got {x[at]:.6g} ({bad.mean():.0%} of the numbers are off)"
    return ""


def slope(f: Callable[[Any], Any], x: Any, d: Any, step: float = 1e-6) -> np.ndarray:
    """The gradient of ``sum(d * f(x))`` with respect to ``x``, by central differences, number by number."""
    x, found = np.array(x, np.float64), np.zeros(np.shape(x))
    for at in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[at] += sign * step
            ends.append((np.asarray(d) * np.asarray(f(moved))).sum())
        found[at] = (ends[0] - ends[1]) / (2 * step)
    return found


class Questions:
    """The expected values of a handout."""

    def __init__(self, folder: Path, module: Any, sizes: dict[str, int], allowed: list[str]) -> None:
        self.expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        self.module, self.find, self.sizes, self.peak = module, finder(lambda: [module]), sizes, 0.0
        self.array = arrays_of(module, allowed)

    def wrapped(self, name: str) -> Callable[..., Any]:
        """A function of the answer, called with NumPy's arrays and answering with them."""

        def function(*args: Any, **options: Any) -> Any:
            return decode(call(self.module, pack(name, args, options, self.peak), self.find, self.array), self.find)

        return function

    def ask(self, number: int, name: str, check: Callable[..., Iterator[Any]], hint: str, peak: float) -> None:
        """Compare with the expected values."""
        here, self.peak = self.expected[name], peak
        before = iter([decode(x, self.find) for x in here["given"]])
        rng = np.random.default_rng([0, number, 0])
        results = check(
            rng=rng, draw=lambda *shape: rng.standard_normal(shape), given=lambda *_, **__: next(before), **self.sizes
        )
        for count, (got, expected) in enumerate(zip(results, here["yields"], strict=True), 1):
            wrong = off(got, decode(expected, self.find), 1e-4)
            assert not wrong, f"{name}, comparison {count}: {wrong}. Hint: {hint}"

    def differences(self, check: Callable[..., Iterator[Any]], hint: str) -> None:
        """Compare a gradient with the differences of the student's own forward pass."""
        rng, self.peak = np.random.default_rng(0), 0.0
        for got, numbers in check(rng=rng, draw=lambda *shape: rng.standard_normal(shape), slope=slope, **self.sizes):
            wrong = off(got, numbers, 1e-5)
            assert not wrong, f"against finite differences of your own forward pass: {wrong}. Hint: {hint}"
