"""What a state of ``C x M`` numbers can hold, by the rule that it is written with. Nothing is trained.

Keys are random vectors of length 1, a value is one of a list of 512 random ones, and what a state holds of a key is
read at that key, ``S^T k``. Its *error* is ``|S^T k - v|^2 / |v|^2``, its *recall* the share of keys whose answer is
nearest to the right value of the list. Three rules:

    add      S_i = S_{i-1} + k_i v_i^T                       (1)
    fade     S_i = g S_{i-1} + k_i v_i^T                     (2)
    delta    S_i = S_{i-1} + beta k_i (v_i - S_{i-1}^T k_i)^T     (3)  beta = 1 unless stated

Two unit keys have an inner product of mean 0 and mean square ``1/C``, from which the errors follow. With (1) each of
the ``n - 1`` other values adds ``1/C``, and with (2) the value itself is worth ``g^a`` when ``a`` others came after it,

    add      (n - 1) / C                                     (4)
    fade     (1 - g^a)^2 + (sum of g^(2 b) over the others) / C                               (5)  b: the age of each

With (3) and ``beta = 1`` a later key ``k'`` takes away the part of the state along ``k'`` and puts ``v'`` there. In a
stream that has run for long, with ``q = 1 - 1/C``,

    delta    2 (1 - q^a)                                     (6)

The last key loses nothing. After ``C log 2`` others half of a value is left, and the answer is as wrong as 0 would be;
in the end nothing is left. What is old is not faint, as in (2), but replaced by something else. All this is about new
keys: one that comes back erases along itself alone, and costs the others nothing that it has not cost already.

With a small ``beta`` little is erased, and (3) is nearly ``beta`` times (1). It holds as many keys as the sum, and for
a key that comes back nearly the sum of its values.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from linattn_ref.attention import delta, gated_linear, softmax
from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Generator, Ints, NDArray, Results, labels, style

__all__ = ["RULES", "Tokens", "compute", "draw", "expected_error", "recall", "tokens"]

VALUES = 512  # in the list
WIDTH = 64  # C = M
TIMES = (1, 2, 4, 8, 16, 32)  # how often 8 other keys are written after 8 keys
GATE = 1 - 1 / 32
RULES = {"add": "add", "fade": "fade", "delta": "delta rule"}
SOFTMAX = (*RULES, "softmax")  # compared with softmax attention


QUICK = {"draws": 4, "length": 384, "counts": (8, 64, 192), "betas": (0.1, 1.0)}


def compute(
    *,
    seed: int = 0,
    draws: int = 64,
    length: int = 1024,
    counts: Ints = (8, 16, 32, 64, 96, 128, 192, 256),
    betas: Sequence[float] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0),
) -> Results:
    """Every task by every rule.

    Parameters
    ----------
    seed : int
    draws : int
        Of keys and values, which are averaged over; at each beta, 16 at most.
    length : int
        Of the stream.
    counts : sequence of int
        Keys that are written once.
    betas : sequence of float
        Step sizes of the delta rule.
    """
    ages = np.unique(np.geomspace(1, length // 2, 24).astype(int)) - 1
    draw = partial(tokens, np.random.default_rng(seed), draws, WIDTH)
    ask = [recall(draw([(n, 1)])) for n in counts], [recall(draw([(8, 1), (8, t)]), slice(8)) for t in TIMES]
    once, again = ({rule: np.array([found[rule].recall for found in part]) for rule in RULES} for part in ask)
    k, v, _ = draw([(length, 1)])
    stream = {rule: errors(answers(rule, k, v, k), v).mean(axis=0)[::-1][ages] for rule in RULES}
    draw_few = partial(tokens, np.random.default_rng([seed, 1]), min(draws, 16), WIDTH)
    sets = {n: draw_few([(n, 1)]) for n in (64, 128, 192, 256)}
    three = draw_few([(32, 3)])

    def at_each_beta(written: Tokens, asked: slice = slice(None)) -> NDArray[np.float64]:
        return np.array([recall(written, asked, ("delta",), beta=beta)["delta"].recall for beta in betas])

    return Results(
        width=WIDTH,
        gate=GATE,  # of the rule that fades
        tasks={  # by task, by rule
            "64 keys once": recall(draw([(64, 1)])),
            "128 keys once": recall(draw([(128, 1)])),
            "32 keys, three values each, the last counts": recall(draw([(32, 3)]), slice(-32, None), SOFTMAX),
            "8 keys once, then 8 others 32 times": recall(draw([(8, 1), (8, 32)]), slice(8), SOFTMAX),
            f"the last 16 of a stream of {length}": recall(draw([(length, 1)]), slice(-16, None)),
        },
        counts=np.array(counts),  # of keys written once
        once=once,  # by rule: recall at each count
        times=np.array(TIMES),
        again=again,  # by rule: recall of the first 8, after so many times
        length=length,  # of the stream
        ages=ages,  # keys that came after
        stream=stream,  # by rule: error at each age
        betas=np.array(betas),  # step sizes of the delta rule
        by_beta={n: at_each_beta(written) for n, written in sets.items()},  # by keys written once: recall at each beta
        sums={n: recall(written, rules=("add",))["add"].recall for n, written in sets.items()},  # of the sum, on these
        last=at_each_beta(three, slice(-32, None)),  # recall of the last of three values of 32 keys, at each beta
    )


class Tokens(NamedTuple):
    """Keys and values in the order in which they are written, and the list that values are from."""

    k: Array  # (draws, N, C)
    v: Array  # (draws, N, M)
    listed: Array  # (VALUES, M)


def tokens(rng: Generator, draws: int, width: int, parts: Sequence[tuple[int, int]]) -> Tokens:
    """Parts one after the other, each of so many new keys, written in turn so many times; a value each time."""
    keys = [np.tile(unit(rng.standard_normal((draws, n, width))), (1, times, 1)) for n, times in parts]
    k, listed = np.concatenate(keys, axis=1), unit(rng.standard_normal((VALUES, width)))
    return Tokens(k, listed[rng.integers(VALUES, size=k.shape[:-1])], listed)


def unit(x: Array) -> Array:
    """Rows of length 1."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def recall(
    written: Tokens, asked: slice = slice(None), rules: Sequence[str] = tuple(RULES), beta: float = 1.0
) -> dict[str, Results]:
    """By rule, what is answered at the end for the keys of these tokens."""
    k, v, listed = written
    found = {rule: answers(rule, k, v, k[:, asked], beta) for rule in rules}
    return {
        rule: Results(
            error=float(errors(x, v[:, asked]).mean()),  # mean of |answer - v|^2 / |v|^2, over all draws
            recall=float(is_nearest(x, v[:, asked], listed).mean()),  # share nearest to the right value of the list
        )
        for rule, x in found.items()
    }


def answers(rule: str, k: Array, v: Array, asked: Array, beta: float = 1.0) -> Array:
    """What is held after all tokens of the keys ``asked (draws, A, C)``; of softmax attention: what it answers."""
    if rule == "softmax":  # so sharp that keys are told apart; of equal ones it answers the mean
        return softmax.forward(asked, k, v, scale=float(k.shape[-1]))[0]
    if rule == "delta":
        _, saved = delta.forward(k, k, v, np.full(k.shape[:-1], beta), normalise=False)  # (3)
        return asked @ saved.state.s
    log_gate = np.full(k.shape[:-1], np.log(GATE) if rule == "fade" else 0.0)
    return asked @ gated_linear.forward(k, k, v, log_gate)[1].state.s  # (1), (2)


def errors(answer: Array, right: Array) -> Array:
    """``(draws, A)``; values have length 1."""
    return ((answer - right) ** 2).sum(axis=-1)


def is_nearest(answer: Array, right: Array, listed: Array) -> NDArray[np.bool_]:
    """Whether the nearest of the list, all of length 1, is the right one: ``(draws, A)``."""
    return (listed[(answer @ listed.T).argmax(axis=-1)] == right).all(axis=-1)


def expected_error(rule: str, age: Array, n: int, width: int, gate: float = GATE) -> Array:
    """Equations (4)-(6) for a key with ``age`` others after it, of ``n``."""
    if rule == "delta":
        return 2 * (1 - (1 - 1 / width) ** age)  # (6)
    if rule == "add":
        return np.full(np.shape(age), (n - 1) / width)  # (4)
    others = (1 - gate ** (2 * n)) / (1 - gate**2) - gate ** (2 * age)
    return (1 - gate**age) ** 2 + others / width  # (5)


# --- The figure -----------------------------------------------------------------------------------------------------

LOOKS = {"add": ("s", style.GREY), "fade": ("^", style.ORANGE), "delta": ("o", style.BLUE)}


def draw(results: Results) -> Figure:
    """What a state of 64 x 64 numbers holds: random keys of length 1, values from a list of 512, read at the key.
    Above, left: keys written once; the delta rule has beta = 1. Above, right: recall of the delta rule for each beta.
    Blue is for that many keys written once; the short grey lines are the sum's recall of the same keys. Orange is for
    the last of three values of each of 32 keys. Below, left: 8 keys are written once, and then 8 others again and
    again, with new values; the first are read. Below, right: a stream of 1024 keys; the error of the answer for a key
    by the number of keys written after it, measured (points) and by formula (lines). The answer 0 has the error 1.
    With a small beta the delta rule holds as many keys as the sum. With beta = 1 it holds fewer, and only what comes
    back is replaced.
    """
    figure, ((left, over_beta), (middle, right)) = style.figure(2, 2, height=0.75)
    _draw_recall(left, results.counts, results.once)
    left.set(title="written once", xlabel="keys", ylabel="recall")

    for n, found in results.by_beta.items():
        over_beta.plot(results.betas, found, "o-", color=style.BLUE, markersize=3, label=f"{n} keys")
        over_beta.plot(results.betas[:1] * (0.8, 1.0), [results.sums[n]] * 2, color=style.GREY)
    over_beta.plot(results.betas, results.last, "D-", color=style.ORANGE, markersize=3, label="last of 3")
    over_beta.set(title="the delta rule by beta", xlabel="beta", ylabel="recall", xscale="log", ylim=(0, 1.05))
    ticks = [beta for beta in (0.02, 0.1, 0.3, 1.0) if beta >= results.betas[0]]
    labels.ticks(over_beta, ticks, [f"{beta:g}" for beta in ticks])
    labels.at_ends(over_beta)

    _draw_recall(middle, results.times, results.again)
    middle.set(title="then others, again", xlabel="times they are written", ylabel="recall")
    ages = np.geomspace(0.01, results.ages[-1], 400)
    for rule, (mark, colour) in LOOKS.items():
        right.plot(results.ages + 1, results.stream[rule], mark, color=colour, markersize=3)
        error = expected_error(rule, ages, results.length, results.width, results.gate)
        right.plot(ages + 1, error, "-", color=colour, label=RULES[rule])
    right.axhline(1, color=style.BLACK, linewidth=0.5)
    right.set(title=f"a stream of {results.length}", xscale="log", yscale="log", ylim=(0.02, 40))
    right.set(xlabel="age + 1 (keys)", ylabel="error")
    labels.at_ends(right)
    return figure


def _draw_recall(axes: Axes, x: NDArray[np.int64], by_rule: dict[str, NDArray[np.float64]]) -> None:
    for rule, (mark, colour) in LOOKS.items():
        axes.plot(x, by_rule[rule], f"{mark}-", color=colour, label=RULES[rule])
    axes.set(xscale="log", ylim=(0, 1.05))
    labels.ticks(axes, [times for times in x if times & (times - 1) == 0])  # powers of 2
    labels.at_ends(axes)
