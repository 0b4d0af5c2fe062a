"""Performer against softmax attention: the error of the output and of the matrix against the number of directions.

For queries and keys that are short (independent normal entries, as in a network before it has learned anything) and for
those of a pretrained network, whose weights stay as they are. Each kind of features is measured with independent
directions and with orthogonal ones. The matrix is what the mechanism makes of the identity.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter
from threadpoolctl import threadpool_limits

from linattn_ref.attention import performer, softmax
from linattn_ref.attention.features import feature_maps
from linattn_ref.experiments.measuring.heads import Heads, Random, Source, heads_from, heads_of, relative_error
from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Generator, Ints, Results, labels, style
from linattn_ref.kernels import jit

__all__ = ["compute", "draw"]

DRAWS: dict[str, Callable[..., Array]] = {  # m, D, rng -> omega (m, D)
    "independent": feature_maps.gaussian,
    "orthogonal": feature_maps.orthogonal_gaussian,
    "regular": partial(feature_maps.orthogonal_gaussian, regular=True),
}
BOTH = ("independent", "orthogonal")
KINDS: dict[performer.Kind, Sequence[str]] = {"trig": BOTH, "positive": [*DRAWS], "hyperbolic": BOTH, "relu": BOTH[1:]}
WAYS = [(kind, draw) for kind, draws in KINDS.items() for draw in draws]
LOOKS = {  # of the ways that are drawn: what is written beside the line, its colour, its look
    "trig, orthogonal": ("trig", style.FEATURES["trig"], "o-"),
    "positive, orthogonal": ("positive", style.FEATURES["positive"], "s-"),
    "positive, regular": ("positive,\nequal lengths", style.FEATURES["positive"], "s:"),
    "hyperbolic, orthogonal": ("hyperbolic", style.FEATURES["hyperbolic"], "^-"),
    "relu, orthogonal": ("ReLU", style.FEATURES["relu"], "D-"),
}
OFF_SCALE = 2.0  # larger errors are written, not drawn


QUICK = {"heads": Random(sentences=1, length=40, deviation=2), "directions": (16, 32, 64), "draws": 2}


def compute(
    *,
    seed: int = 0,
    heads: Heads | Source | Random = Source(sentences=1, length=256, every=6),  # noqa: B008  # a tuple
    directions: Ints = (16, 32, 64, 128, 256, 512, 1024),
    draws: int = 5,
    size: float = 0.5,
) -> Results:
    """Measure every kind and draw at every ``m``.

    Parameters
    ----------
    seed : int
        Of the choice of sentences, the short queries and keys, and the directions.
    heads : Heads, Source or Random
        By default heads of a pretrained network on a text.
    directions : sequence of int
        ``m``.
    draws : int
        Of ``omega``.
    size : float
        Standard deviation of the entries of the short queries and keys.
    """
    rng = np.random.default_rng(seed)
    with threadpool_limits(1):
        found, sources = heads_from(heads, seed, rng)
        q, k, v = rng.standard_normal((3, *found.q.shape), np.float32)
        given = {"short": heads_of(np.float32(size) * q, np.float32(size) * k, v), "pretrained": found}
        panels = {name: _errors(each, directions, draws, rng) for name, each in given.items()}
    _, layers, count, tokens, width = found.q.shape
    return Results(
        directions=tuple(directions),  # (T,), m
        shape=(layers * count, tokens, width),  # (heads, N, D) of the network's
        panels=panels,
        settings={**sources, "draws": draws, "size": size},
    )


def _errors(heads: Heads, directions: Ints, draws: int, rng: Generator) -> Results:
    q, k, v, out = heads.sentence(0)  # (T, H, N, D or M)
    p = softmax.matrix(q, k)  # (T, H, N, N)
    found: dict[str, list[Any]] = {", ".join(way): [] for way in WAYS}
    for m in directions:
        for kind, draw in WAYS:
            drawn = (DRAWS[draw](m, q.shape[-1], rng, dtype=q.dtype) for _ in range(draws))
            pairs = (zip(estimate(q, k, v, omega, kind), (out, p), strict=True) for omega in drawn)
            errors = [[relative_error(mine, exact) for mine, exact in pair] for pair in pairs]  # [draws][2] of (T, H)
            found[f"{kind}, {draw}"].append(np.median(np.array(errors), axis=(0, 2, 3)).astype(float))
    mean = np.broadcast_to(v.mean(axis=-2, keepdims=True), v.shape)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    return Results(
        score_deviation=float(scores.std(axis=-1).mean()),  # of q.k / sqrt D within a row, mean over rows
        output={way: np.array(errors)[:, 0] for way, errors in found.items()},  # (T,), medians over heads and draws
        matrix={way: np.array(errors)[:, 1] for way, errors in found.items()},
        mean_of_values=float(np.median(relative_error(mean, out))),  # error if every query gets the mean of the values
    )


def estimate(q: Array, k: Array, v: Array, omega: Array, kind: performer.Kind) -> tuple[Array, Array]:
    """The Performer's output ``(..., N, M)`` and matrix ``(..., N, L)``, in one pass over ``[v, identity]``."""
    length = k.shape[-2]
    identity = np.broadcast_to(np.eye(length, dtype=v.dtype), (*v.shape[:-1], length))
    both, _ = performer.forward(q, k, np.concatenate([v, identity], axis=-1), omega, kind=kind, kernels=jit)
    return both[..., : v.shape[-1]], both[..., v.shape[-1] :]


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Performer in place of softmax attention: relative error (Frobenius norm, median over heads and draws) of the
    output and of the attention matrix against the number of directions m. Directions are orthogonal; trig and
    hyperbolic features are two per direction. Dotted: orthogonal directions of equal length, an estimate that is
    biased, but spreads less. Left: short normal queries and keys, where all converge, trig first. Right: heads of a
    pretrained network, whose weights were learned with softmax: trig features are useless, so far off that the scale
    ends before, and positive ones gain slowly: a thousand directions halve the error at best. ReLU features estimate
    another similarity, so their error stops falling. Grey: the mean of the values in place of attention. Errors with
    independent directions are in the record.
    """
    figure, axes = style.figure(2, 2, height=0.66, sharex=True, sharey="col")
    for column, (name, panel) in zip(axes.T, results.panels.items(), strict=True):
        what = "short queries and keys" if name == "short" else "a pretrained network"
        column[0].set_title(f"{what}: scores ± {panel.score_deviation:.2g}")
        _draw_errors(column[0], results.directions, panel.output, panel.mean_of_values)
        _draw_errors(column[1], results.directions, panel.matrix)
        column[1].set_xlabel("directions m")
    axes[0, 0].set_ylabel("error of the output")
    axes[1, 0].set_ylabel("error of the matrix")
    return figure


def _draw_errors(axis: Axes, directions: Ints, errors: dict[str, Array], mean: float | None = None) -> None:
    off = [way for way in LOOKS if errors[way].min() > OFF_SCALE]
    for way, (label, colour, look) in LOOKS.items():
        if way in off:
            text = f"↑ {label}: {errors[way].min():.0f} to {errors[way].max():.0f}, off the scale"
            axis.text(0.02, 0.97, text, transform=axis.transAxes, va="top", color=colour)
        else:
            axis.plot(directions, errors[way], look, color=colour, label=label)
    if mean is not None:
        axis.axhline(mean, color=style.GREY, label="mean of\nthe values")
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(directions, [str(m) for m in directions])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(*((0.35, 1.5) if off else (0.04, 1)))
    axis.set_yticks([0.4, 0.6, 0.8, 1.0] if off else [0.05, 0.1, 0.2, 0.5, 1.0])
    labels.at_ends(axis, rows=2)
