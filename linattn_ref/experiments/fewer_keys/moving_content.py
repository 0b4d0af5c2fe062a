"""Content that moves: a projection that depends on the keys against one fixed by position.

One token of every sequence is marked: its key points along ``u``. Wherever it is, all queries ask for its value. Both
mechanisms are trained, with ``R`` mixtures, on sequences whose mark is anywhere:

``long_short``
    Learns ``W_p (D, R)``. One column along ``u`` finds the mark at any place, so ``R = 1`` will do.
``linformer``
    Learns ``E, F (R, L)``. A mixture is of fixed places. If it holds ``n = L / R`` of them and the softmax finds the
    right mixture, what comes out is ``c`` times the sum of ``n`` values, of which one is asked for: for independent
    values of variance 1 the squared error is ``(1 - c)^2 + (n - 1) c^2``, least at ``c = 1 / n``:

        1 - R / L                                            (1)
"""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import PowerNorm

from linattn_ref.attention import linformer, long_short
from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Generator, Ints, NDArray, Results, labels, style
from linattn_ref.training import adam

__all__ = ["compute", "draw"]

WIDTH, VALUES = 8, 4  # D and M
STRENGTH, NOISE = 4.0, 0.3  # of the mark along u, and of each other entry of a key
WINDOW = 4  # w of long_short; what is near a query it sees directly


QUICK = {"reduced": (1, 4), "length": 32, "steps": 60}


def compute(*, seed: int = 0, reduced: Ints = (1, 2, 4, 8, 16, 32), length: int = 64, steps: int = 400) -> Results:
    """Train both mechanisms at every ``R``.

    Parameters
    ----------
    seed : int
    reduced : sequence of int
        ``R``, at least two; the maps are of 8, or of the last.
    length : int
        ``L``.
    steps : int
        Of Adam, each with sequences of its own.
    """
    if len(reduced) < 2:
        raise ValueError(f"reduced: expected at least two, got {reduced}")
    shown = 8 if 8 in reduced else reduced[-1]
    errors = []
    for r in reduced:
        w_p = train_long_short(r, length, steps, np.random.default_rng(seed))
        e, f = train_linformer(r, length, steps, np.random.default_rng(seed))
        test, longer = (draw_batch(np.random.default_rng(seed + 1), n, size=512) for n in (length, 4 * length))
        losses = long_short_loss(w_p, test), linformer_loss(e, f, test), long_short_loss(w_p, longer)
        errors.append([loss for loss, *_ in losses])
        if r == shown:
            maps = weights_by_place(w_p, e, f, length, np.random.default_rng(seed + 2))
    return Results(
        length=length,  # L
        reduced=np.array(reduced),  # (T,), R
        long_short=np.array(errors)[:, 0],  # (T,), mean squared error; that of answering 0 is 1
        linformer=np.array(errors)[:, 1],  # (T,)
        longer=np.array(errors)[:, 2],  # (T,), of long_short, trained at L, at 4 L
        map_long_short=maps[0],  # (L, L), weights of the last query by place of the mark
        map_linformer=maps[1],  # (L, L)
        shown=shown,  # R of the maps
    )


class Batch(NamedTuple):
    q: Array  # (B, L, D), all along u
    k: Array  # (B, L, D)
    v: Array  # (B, L, M)
    target: Array  # (B, 1, M)


def draw_batch(rng: Generator, length: int, *, size: int = 16, places: Any = None) -> Batch:
    """Sequences with one mark each, anywhere unless ``places (B,)`` are given; ``u`` is the first axis."""
    places = rng.integers(length, size=size) if places is None else np.asarray(places)
    every = np.arange(len(places))
    k = NOISE * rng.standard_normal((len(places), length, WIDTH))
    k[every, places, 0] += STRENGTH
    v = rng.standard_normal((len(places), length, VALUES))
    q = np.zeros_like(k)
    q[..., 0] = STRENGTH
    return Batch(q, k, v, v[every, places][:, None, :])


# --- Training -------------------------------------------------------------------------------------------------------


def long_short_loss(w_p: Array, batch: Batch) -> tuple[float, Array]:
    """The loss and the gradient of ``w_p``."""
    out, saved = long_short.forward(batch.q, batch.k, batch.v, w_p, None, None, window=WINDOW)
    error = out - batch.target
    return float((error**2).mean()), long_short.backward(2 * error / error.size, saved).w_p


def linformer_loss(e: Array, f: Array, batch: Batch) -> tuple[float, Array, Array]:
    """The loss and the gradients of ``e`` and ``f``. All queries are equal here: one is enough."""
    out, saved = linformer.forward(batch.q[:, :1], batch.k, batch.v, e, f)
    error = out - batch.target
    grads = linformer.backward(2 * error / error.size, saved)
    return float((error**2).mean()), grads.e, grads.f


def train_long_short(r: int, length: int, steps: int, rng: Generator) -> Array:
    """``W_p (D, R)`` learned from small random numbers."""
    w_p = 0.1 * rng.standard_normal((WIDTH, r))
    state = adam.init_state(w_p)
    for _ in range(steps):
        _, gradient = long_short_loss(w_p, draw_batch(rng, length))
        state = adam.step(w_p, gradient, state, learning_rate=0.05)
    return w_p


def train_linformer(r: int, length: int, steps: int, rng: Generator) -> tuple[Array, Array]:
    """``E`` and ``F (R, L)``, learned from where (1) comes from: sums over segments for keys, means for values.

    Its steps cost little: it gets four times as many, on batches four times as large, at a rate that falls to 0.
    """
    pool = linformer.mean_pool(r, length)
    params = length / r * pool, pool
    state = adam.init_state(params)
    for step in range(1, 4 * steps + 1):
        _, *grads = linformer_loss(*params, draw_batch(rng, length, size=64))
        state = adam.step(params, tuple(grads), state, learning_rate=0.003 * (1 - step / (4 * steps)))
    return params


def weights_by_place(w_p: Array, e: Array, f: Array, length: int, rng: Generator) -> tuple[Any, Any]:
    """Both mechanisms' weights of the last query, ``(L, L)``: a row for each place of the mark."""
    batch = draw_batch(rng, length, places=range(length))
    near_and_far = long_short.matrix(batch.q, batch.k, w_p, None, None, window=WINDOW)[:, -1]  # (L, L)
    mixed = linformer.matrix(batch.q[:, :1], batch.k, e) @ f  # (L, 1, L)
    return near_and_far, mixed[:, 0]


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """One marked token, anywhere in the sequence, and every query asks for its value. Left and middle: the weights of
    the last query on all keys, one row for each place of the mark, after training with R = 8 (square roots of
    absolute values). Linformer's mixtures are of fixed places; Long-Short's follow the mark. Right: squared error
    after training against R. Linformer's is about 1 - R / L, the error of a mixture of L / R values. Long-Short finds
    the token with R = 1, and with the same parameters in a sequence four times as long.
    """
    figure, (left, middle, right) = style.figure(1, 3, height=0.4)
    _draw_map(left, results.map_linformer, "Linformer")
    _draw_map(middle, results.map_long_short, "Long-Short")
    middle.label_outer()
    one, other = style.MECHANISMS["linformer"], style.MECHANISMS["long_short"]
    right.plot(results.reduced, results.linformer, "o", color=one)
    right.plot(results.reduced, results.long_short, "s", color=other)
    right.plot(results.reduced, results.longer, "^", color=other, mfc="white")
    first, second, *_ = results.reduced
    labels.at(right, first, results.linformer[0], "Linformer", one, ha="left", va="top", xytext=(0, -5))
    labels.at(right, second, results.long_short[1], "Long-Short", other, ha="left", xytext=(0, 5))
    labels.at(right, first, results.longer[0], "4 times as long", other, ha="left", xytext=(0, 5))
    fine = np.geomspace(results.reduced[0], results.reduced[-1], 100)
    right.plot(fine, 1 - fine / results.length, "-", color=style.GREY)  # (1)
    labels.at(right, fine[-30], 1, "1 − R / L", style.GREY, ha="right")
    right.set(xscale="log", yscale="log", xlabel="mixtures R", title="mean squared error", ylim=(1e-4, 3))
    labels.ticks(right, results.reduced)
    return figure


def _draw_map(axes: Axes, weights: NDArray[np.float64], title: str) -> None:
    axes.imshow(abs(weights), norm=PowerNorm(0.5, 0, 1), cmap="viridis")
    axes.grid(False)
    axes.set(title=title, xlabel="key", ylabel="place of the mark")
