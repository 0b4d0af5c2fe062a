"""Learning to say hidden tokens with softmax attention and with Linformer's: the panels of its Figure 3, in small.

``linattn-ref train mlm`` was run once for each attention, length, ``k``, sharing and seed; ``linattn-ref gather`` made
the record, whose runs say themselves what they are.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 5.1, Figure 3.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref.experiments.learned import seeds
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Line2D, labels, setp, style
from linattn_ref.experiments.publishing.kit import Results as Stored

__all__ = ["SHARINGS", "Curve", "Results", "compute", "draw", "panels", "table_rows"]

SHARINGS = {"none": "each its own", "headwise": "heads share", "key_value": "E = F too", "layerwise": "one for all"}
HEADS, DRAWN = SHARINGS["headwise"], "drawn"


KIND = "attention length k sharing pooled own_rate drawn"  # what a curve's runs have in common


class Curve(Stored):
    """The runs of one `KIND`, all evaluated after the same updates, and what `seeds.put_together` says of them.

    Of softmax attention ``k``, ``sharing``, ``pooled`` and ``own_rate`` are None. ``pooled`` is whether E and F began
    as mean pooling, ``own_rate`` the rate that they learned at, times the others', and ``drawn`` whether the network
    began as drawn. Curves are ``(S, T)``: ``loss`` in nats per hidden token, ``masked`` of those that are shown as
    [MASK], ``accuracy`` the share of the hidden tokens that are told.
    """

    @property
    def rate(self) -> str:
        """What is to be said of the rate of E and F; nothing, if it is the usual, 1 / n of the others'."""
        if self.own_rate is None or math.isclose(self.own_rate * self.length, 1):
            return ""
        return f", E, F rate {self.own_rate:g}" if self.own_rate else ", E, F fixed"

    @property
    def perplexity(self) -> Array:
        """Of the tokens shown as ``[MASK]``, at the end, ``(S,)``."""
        return np.exp(self.masked[:, -1])


class Results(Stored):
    """All runs."""

    curves: tuple[Curve, ...]

    def find(self, **wanted: Any) -> tuple[Curve, ...]:
        """Those whose fields are so, in order: ``find(attention="linformer", length=512)``."""
        return tuple(c for c in self.curves if all(getattr(c, name) == x for name, x in wanted.items()))


def compute(*, record: Path = runs.RECORDS / "mlm.json") -> Results:
    """The curves of the committed runs, or those in another file of `runs.gather`.

    Raises
    ------
    ValueError
        Runs that differ in more than attention, length, ``k``, sharing and seed cannot be compared.
    """
    found = runs.gathered(record)
    first = next(iter(found.values()))
    kinds: dict[tuple[Any, ...], list[runs.Run]] = {}
    for name, run in found.items():
        if _common(run) != _common(first):
            raise ValueError(f"record: {name} is not of the size and length of training of the others")
        kinds.setdefault(_kind(run), []).append(run)
    counted = max(found.values(), key=lambda run: (run.facts["attention"] == "softmax", run.facts["shape"]["length"]))
    fields = f"{KIND} seeds steps cpu_seconds loss masked accuracy"
    curves = [(dict(zip(KIND.split(), kind, strict=True)), kinds[kind]) for kind in sorted(kinds, key=str)]
    return Results(
        shape={name: size for name, size in first.facts["shape"].items() if name != "length"},  # of the networks
        steps=first.facts["steps"],
        peak=first.facts["peak"],
        pieces=first.facts["text"]["pieces"],  # of the training text
        yardsticks=counted.facts["yardsticks"],  # of counts, nats, at the longest length that softmax has
        curves=tuple(Curve(seeds.put_together(fields, mine, **known)) for known, mine in curves),
    )


def _common(run: runs.Run) -> tuple[Any, ...]:
    """What has to be the same."""
    shape = {name: size for name, size in run.facts["shape"].items() if name != "length"}
    return shape, *(run.facts[name] for name in ("steps", "peak", "text", "vocabulary")), run.steps.tolist()


def _kind(run: runs.Run) -> tuple[Any, ...]:
    """What a curve's runs have in common."""
    told = {"drawn": False, **run.facts, "length": run.facts["shape"]["length"]}  # not all could be asked for that
    return tuple(told[name] for name in KIND.split())


def panels(results: Results) -> dict[str, dict[str, Curve]]:
    """Which curves each panel has, by the names that stand at their ends.

    Raises
    ------
    ValueError
        A panel would be empty: there is no softmax attention at two lengths, or too little of Linformer.
    """
    lengths = sorted({c.length for c in results.find(attention="softmax")})
    linformer = results.find(attention="linformer", drawn=False)
    if len(lengths) < 2:
        raise ValueError(f"record: expected softmax attention at two lengths, got {lengths}")
    short, *_, long = lengths
    places = Counter((c.length, c.k, c.own_rate) for c in linformer if c.sharing != "headwise")
    if not places:
        raise ValueError("record: expected Linformer with E and F shared in another way than by heads, got none")
    length, k, own_rate = places.most_common(1)[0][0]
    shared = {_shared(c): c for c in linformer if (c.length, c.k, c.own_rate) == (length, k, own_rate)}
    usual = [c for c in linformer if c.k == k and _shared(c) == HEADS and not c.rate]
    if not usual:
        raise ValueError(f"record: expected Linformer whose heads share E and F at k = {k}, got none")
    return {
        "a": _by_k(results.find(length=short)),
        "b": _by_k(results.find(length=long)),
        "c": {name: shared[name] for name in (*SHARINGS.values(), DRAWN) if name in shared},
        "d": {f"n = {c.length}": c for c in sorted(usual, key=lambda c: c.length)},
    }


def _shared(curve: Curve) -> str:
    return SHARINGS[curve.sharing or ""] if curve.pooled else DRAWN


def _by_k(found: Sequence[Curve]) -> dict[str, Curve]:
    """Softmax, and those whose heads share and began as mean pooling."""
    shown = (c for c in found if c.k is None or _shared(c) == HEADS)
    ordered = sorted(shown, key=lambda c: (c.k or 0, c.own_rate or 0, c.drawn))
    return {f"{f'k = {c.k}' if c.k else 'softmax'}{c.rate}{', usual start' * c.drawn}": c for c in ordered}


def table_rows(results: Results, panel: str) -> list[tuple[str, str, str, str]]:
    """Of each curve of a panel, at the end: perplexity at ``[MASK]``, of all hidden tokens, CPU seconds; by seed."""
    found, told = panels(results)[panel].items(), seeds.told
    return [(name, told(c.perplexity), told(np.exp(c.loss[:, -1])), told(c.cpu_seconds[:, -1])) for name, c in found]


def draw(results: Results) -> Figure:
    """Predicting which tokens were hidden, in film reviews that are not trained on, against updates. These are the four
    panels of Linformer's Figure 3 with networks of 2 layers of width 64 and 4,000 updates of 2,048 tokens, where the
    paper's are RoBERTa's and 250,000 updates. Perplexity at the places shown as [MASK]; a line is that of the mean loss
    of two seeds, with a band from one to the other, or one seed: usual start, E and F fixed, the rates of (b), and (c).
    (a), (b): two lengths, softmax and Linformer. Linformer's heads share projections that begin as mean pooling. They
    learn at 1 / n of the rate of all else, unless another is named (dashed), or they are fixed (dotted). Usual start:
    the network does not begin with heads that look at a neighbour. (c): who shares E and F. (d): one k at three
    lengths. Grey, dotted: what the frequencies of pieces alone achieve.
    """
    figure, axes = style.figure(2, 2, height=0.8, sharex=True, sharey=True)
    shown = panels(results)
    a, b, c, d = (next(iter(curves.values())) for curves in shown.values())
    said = (f"n = {a.length}", f"n = {b.length}", f"n = {c.length}, k = {c.k}, sharing", f"k = {d.k}, longer texts")
    titles = [f"({panel}) {what}" for panel, what in zip(shown, said, strict=True)]
    for axis, title, curves in zip(axes.flat, titles, shown.values(), strict=True):
        shades = style.sequence(len(curves) + 1)[1:]  # the first is nearly black, and softmax is
        lines = [
            _draw_curve(axis, curve, style.MECHANISMS["softmax"] if curve.k is None else shade)
            for curve, shade in zip(curves.values(), shades, strict=True)
        ]
        axis.axhline(np.exp(results.yardsticks["pieces alone"]), color=style.GREY, linestyle=":")
        axis.set(title=title)
        labels.at_ends(axis, lines, list(curves), rows=2, width=12)
    setp(axes[1], xlabel="updates")
    setp(axes[:, 0], ylabel="perplexity at [MASK]")
    return figure


def _draw_curve(axes: Axes, curve: Curve, colour: Any) -> Line2D:
    line = ":" if curve.own_rate == 0 else "--" if curve.drawn or curve.rate else "-"
    return seeds.draw(axes, curve.steps, np.exp(curve.masked), colour, line, np.exp(curve.masked.mean(axis=0)))
