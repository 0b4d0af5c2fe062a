"""What the gate of random feature attention does: weight against distance, and a gate that learns when to forget.

With one gate ``g`` for all tokens, the token at distance ``d`` has on average the weight

    (1 - g) g^d                                              (1)

so that a share ``1 - g^d`` of all weight lies less than ``d`` tokens back: 90% of it within

    d = log(0.1) / log(g)                                    (2)

A gate that looks at the token can do what no single number can. In the *latch* task some tokens are marked, and the
output should be the value at the last mark. All queries and keys are the same, so that only the gate decides: it has to
close (``g`` near 0: forget all, take this) at a mark and to stay open (``g`` near 1) elsewhere.
"""

from typing import NamedTuple

import numpy as np

from linattn_ref.attention import rfa
from linattn_ref.attention.features.feature_maps import orthogonal_gaussian
from linattn_ref.attention.parts import gate as learned_gate
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, NDArray, Results, labels, style
from linattn_ref.training import adam

__all__ = ["FORMS", "compute", "draw", "latch_loss"]

GATES = (0.5, 0.8, 0.9, 0.95, 0.99)  # g of (1)
DIRECTIONS, WIDTH = 64, 16  # of omega: m and D
SHARE = 0.9  # of the weight, in the middle panel
MARKED = 0.1  # of the tokens of the latch task
VALUES = 4  # M
EXTRA = 2  # entries of a token besides the mark: noise that the gate has to ignore
FORMS = {"none": "no gate", "constant": "one gate for all", "learned": "learned gate"}


QUICK = {"length": 128, "heads": 64, "steps": 80}


def compute(*, seed: int = 0, length: int = 512, heads: int = 512, steps: int = 300) -> Results:
    """Weights of the last query of random heads, and three runs of the latch task.

    Parameters
    ----------
    seed : int
    length, heads : int
        Length of the random sequences, and over how many of them weights are averaged.
    steps : int
        Of gradient descent (Adam).
    """
    rng = np.random.default_rng(seed)
    omega = orthogonal_gaussian(DIRECTIONS, WIDTH, rng)
    without, *weights = (
        np.mean([last_row(omega, gate, length, rng) for _ in range(heads)], axis=0) for gate in (None, *GATES)
    )
    return Results(
        length=length,  # N
        heads=heads,
        gates=np.array(GATES),  # (G,)
        distances=np.arange(length),  # (N,)
        weights=np.array(weights),  # (G, N), mean over the heads, of the last query
        without=without,  # (N,), the same with no gate
        reach=np.array([distance_with(each, SHARE) for each in weights]),  # (G,), the distance with 90% of the weight
        latch={form: train_latch(form, steps, np.random.default_rng(seed + 1)) for form in FORMS},
    )


def last_row(omega: Array, gate: float | None, n: int, rng: Generator) -> Array:
    """The weights ``(N,)`` of the last of ``n`` random tokens, its own first."""
    q, k = rng.standard_normal((2, n, omega.shape[-1]))
    phi = rfa.KINDS["gaussian"](omega).forward
    similarity = phi(q[-1:])[0] @ phi(k)[0].T  # (1, N)
    if gate is not None:
        similarity = similarity * gate_powers(np.full(n, gate))  # as the last row of rfa.matrix, which has N of them
    return (similarity / similarity.sum())[0, ::-1]


def gate_powers(gates: Array) -> Array:
    """The last row of `rfa.recency`, ``(N,)``: ``(1 - g_j) g_{j+1} ... g_N``."""
    after = np.append(np.cumprod(gates[:0:-1])[::-1], 1.0)
    return after * (1 - gates)


def distance_with(weights: NDArray[np.float64], share: float) -> float:
    """The number of tokens that have ``share`` of the weight, interpolated."""
    return float(np.interp(share, np.append(0, np.cumsum(weights)), np.arange(len(weights) + 1)))


# --- The latch task -------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    x: Array  # (B, N, E), the mark and noise
    v: Array  # (B, N, M)
    target: Array  # (B, N, M)
    marked: NDArray[np.bool_]  # (B, N)


def draw_batch(rng: Generator, *, size: int = 16, length: int = 64) -> Batch:
    """Sequences whose first token is marked, and every other with probability `MARKED`."""
    marked = rng.random((size, length)) < MARKED
    marked[:, 0] = True
    v = rng.standard_normal((size, length, VALUES))
    last = np.maximum.accumulate(np.where(marked, np.arange(length), 0), axis=1)  # (B, N), the place of the last mark
    x = np.concatenate([marked[..., None], rng.standard_normal((size, length, EXTRA))], axis=-1)
    return Batch(x, v, np.take_along_axis(v, last[..., None], axis=1), marked)


def train_latch(form: str, steps: int, rng: Generator) -> Results:
    """Learn ``w_g`` and ``b_g`` from the squared error, by hand from the loss to the parameters."""
    params = np.zeros(2 + EXTRA)  # gates of 1/2
    w_g, b_g = params[:-1], params[-1:].reshape(())  # views: they move with it
    omega = orthogonal_gaussian(8, 4, rng)
    state = adam.init_state(params)
    losses = []
    for _ in range(steps):
        batch = draw_batch(rng)
        loss, gate, d_w_g, d_b_g = latch_loss(form, w_g, b_g, omega, batch)
        losses.append(loss)
        grads = np.append(d_w_g if form == "learned" else np.zeros_like(w_g), d_b_g)
        state = adam.step(params, grads, state, learning_rate=0.1)
    return Results(
        losses=np.array(losses),  # (S,), mean squared error before each step; that of answering 0 is 1
        gate_marked=float(gate[batch.marked].mean()),  # at marked tokens, at the end
        gate_other=float(gate[~batch.marked].mean()),
    )


def latch_loss(form: str, w_g: Array, b_g: Array, omega: Array, batch: Batch) -> tuple[float, Array, Array, Array]:
    """The loss, the gates, and the gradients of ``w_g`` and ``b_g``."""
    same = np.ones((*batch.v.shape[:-1], omega.shape[-1]))  # one query and one key for all
    gate, gate_saved = learned_gate.forward(batch.x, w_g, b_g)
    gates = () if form == "none" else (gate,)
    out, saved = rfa.forward(same, same, batch.v, omega, *gates, causal=True, eps=0.0)
    error = out - batch.target
    if form == "none":
        return float((error**2).mean()), np.ones_like(gate), np.zeros_like(w_g), np.zeros_like(b_g)
    grads = rfa.backward(2 * error / error.size, saved)
    of_gate = learned_gate.backward(grads.gate, gate_saved)
    return float((error**2).mean()), gate, of_gate.w_g, of_gate.b_g


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """The gate of random feature attention. Left: mean weight of a token against its distance, measured over heads
    with random queries and keys (points), and (1 - g) g^d (lines). Middle: the distance within which 90% of the
    weight lies. Right: learning to output the value at the last marked token; a gate that looks at the token learns
    to forget at a mark and only there, which one number for all tokens cannot.
    """
    figure, (left, middle, right) = style.figure(1, 3, height=0.44)

    some = np.unique(np.geomspace(1, results.length, 30).astype(int)) - 1
    left.plot(some + 1, results.without[some], "s", color=style.GREY, markersize=2)
    left.axhline(1 / results.length, color=style.GREY)
    labels.at(left, 0.16, 1 / results.length, "no gate", style.GREY, ha="left", va="top", xytext=(3, -2))
    for gate, weights, shade in zip(results.gates, results.weights, style.sequence(len(results.gates)), strict=True):
        line = (1 - gate) * gate ** results.distances.astype(float)  # (1)
        left.plot(results.distances + 1, line, "-", color=shade)
        left.plot(some + 1, weights[some], "o", color=shade)
        labels.at(left, 1, line[0], f"{gate:g}", shade, ha="right", va="center", xytext=(-5, 0))  # later they cross
    left.set(title="weight, by gate g", xlabel="distance + 1 (tokens)", ylabel="weight", xscale="log", yscale="log")
    left.set(xlim=(0.16, 1.3 * results.length), ylim=(1e-8, 1))
    labels.ticks(left, [1, 10, 100])

    g = np.linspace(0.3, 0.993, 200)
    middle.plot(g, np.log(1 - SHARE) / np.log(g), "-", color=style.GREY)  # (2)
    labels.at(middle, 0.55, 3.5, "log 0.1 / log g", style.GREY, ha="left", va="top")
    middle.plot(results.gates, results.reach, "o", color=style.BLUE)
    labels.at(middle, results.gates[-1], results.reach[-1], "measured", style.BLUE, ha="right", xytext=(-5, 0))
    middle.set(title="90% of the weight", yscale="log", xlabel="gate g", ylabel="tokens")
    looks = ("-", style.GREY), (":", style.VERMILLION), ("-", style.BLUE)
    for (form, name), (line, colour) in zip(FORMS.items(), looks, strict=True):
        right.plot(results.latch[form].losses, line, color=colour, label=name)
    right.set(title="holding the last mark", yscale="log", xlabel="step", ylabel="mean squared error")
    labels.at_ends(right, width=9)
    return figure
