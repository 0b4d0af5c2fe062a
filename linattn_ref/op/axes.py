"""The check of a call's arrays, also where leading axes differ: heads that are shared, and sequences that are packed.

Otherwise all arrays of a call have the same leading axes ``...`` (`shapes`). With ``groups=G`` queries have ``G`` times
as many heads as keys, and states are those of keys. With ``offsets (P + 1,)`` states have a first axis of length ``P``.
"""

from __future__ import annotations

from typing import Any

from linattn_ref.op import shapes
from linattn_ref.op.options import check_sizes
from linattn_ref.op.shapes import Rule, Sizes, is_array, sizes_of

__all__ = ["AXES", "check"]

AXES: dict[str, Any] = {"offsets": None, "groups": 1}  # the two options, and what they are unless given
QUERIES, STATES = ("q", "q_t", "d_out"), ("state", "d_state")


def check(arguments: dict[str, Any], rules: dict[str, Rule], sizes: Sizes) -> None:
    """Every array in ``arguments`` is as its rule says; else an error names the first that is not."""
    offsets, groups = (arguments.get(name, usual) for name, usual in AXES.items())
    saved = arguments.get("saved")
    check_sizes(groups=groups)
    if not {*QUERIES} & {*rules} or (offsets is None and groups == 1 and not hasattr(saved, "sizes")):
        return shapes.check(arguments, rules, sizes)
    queries, states, others = (
        {name: rule for name, rule in rules.items() if (name in QUERIES, name in STATES) == kind}
        for kind in ((True, False), (False, True), (False, False))
    )
    shapes.check(arguments, queries, sizes)
    leading = sizes["..."]
    if saved is not None:
        return shapes.check(arguments, states, sizes_of(saved.state, {}) if saved.state else sizes)
    if groups != 1:
        (name,) = queries
        _check_groups(groups, leading, name, arguments[name].ndim, arguments.get("k", arguments.get("k_t")))
        sizes["..."] = *leading[:-1], leading[-1] // groups
    shapes.check(arguments, others, sizes)
    if offsets is not None:
        _check_offsets(offsets, arguments["q"], arguments["k"])
        sizes["..."] = len(offsets) - 1, *sizes["..."]
    shapes.check(arguments, states, sizes)
    sizes["..."] = leading


def _check_groups(groups: int, leading: tuple[int, ...], name: str, axes: int, k: Any) -> None:
    """There are ``groups`` times as many heads of queries as of keys, if those are an array of as many ``axes``."""
    if not leading:
        raise ValueError(f"groups: expected an axis of heads before the tokens of {name}, got none")
    heads = k.shape[len(leading) - 1] if is_array(k) and k.ndim == axes else leading[-1] // groups
    if heads * groups != leading[-1]:
        raise ValueError(
            f"groups: expected G = H / K for the H = {leading[-1]} heads of {name} and the K = {heads} of the keys,"
            f" got {groups}"
        )


def _check_offsets(offsets: Any, q: Any, k: Any) -> None:
    """They are those of at least one sequence, all tokens of which are queries and keys, in one row per head."""
    if len(offsets) < 2:
        raise ValueError(f"offsets: expected P + 1 integers for P >= 1 sequences, got {len(offsets)}")
    if q.ndim > 3:
        raise ValueError(f"offsets: expected q (N, D) or (H, N, D) of packed sequences, got shape {q.shape}")
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(f"offsets: expected N = L of packed sequences, got N = {q.shape[-2]} and L = {k.shape[-2]}")
