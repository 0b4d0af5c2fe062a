"""The checks: each a name, one sentence why, and the questions that it asks.

A check is a generator of trials, which a :class:`~linattn_ref.conform.judge.Judge` answers. What a kernel must be,
beyond equal numbers (inputs unaltered, the same numbers twice, one pass equal to pieces), is a few lines here.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.conform.budget import UNIT, allowed
from linattn_ref.conform.judge import Judge, Trial
from linattn_ref.conform.questions import ALL, DELTAS, GATED, OPS, PAIRS, RULES, STATES, Question, answer, rounded
from linattn_ref.conform.target import NO_STATE, Answer

__all__ = ["CHECKS", "Check"]


class Check(NamedTuple):
    name: str
    why: str
    needs: tuple[str, ...]  # options, or "gradients", without which there is nothing to check
    run: Callable[[Judge], Iterator[Trial]]
    ops: tuple[str, ...]
    whole: bool = False  # whether all its trials are asked, also after one that failed: a figure shows them together
    called: bool = False  # whether the kernel has to be called: not one of the cases that are written to files


CHECKS: dict[str, Check] = {}


def check(*needs: str, ops: tuple[str, ...] = ALL, name: str = "", **how: bool) -> Callable[[Any], Any]:
    """Make a check of a generator of trials, with its name unless another is given; its docstring is why."""

    def register(function: Callable[[Judge], Iterator[Trial]]) -> Callable[[Judge], Iterator[Trial]]:
        title, why = name or function.__name__, " ".join((function.__doc__ or "").split())
        CHECKS[title] = Check(title, why, needs, function, ops, **how)
        return function

    return register


def causals(judge: Judge) -> tuple[bool | None, ...]:
    """False and True if the kernel has the option, otherwise None alone."""
    return (False, True) if judge.target.offers("causal") else (None,)


def noted(note: str, causal: bool | None) -> str:
    """The note, with ``causal`` where it can be chosen."""
    return ", ".join(filter(None, [note, f"causal={causal}" if causal is not None else ""]))


LENGTH = 130  # longer than two chunks of 64, or one of 128


def long(judge: Judge, **options: Any) -> Question:
    """A question of several chunks, with gates so weak that what comes before a chunk is still there after it."""
    question = judge.ask(**{"n": LENGTH, "leading": (1, 2), "causal": True, **options})
    gate = question.inputs.get("log_gate")
    return question if gate is None else question.change(log_gate=gate / 64)


@check()
def output(judge: Judge) -> Iterator[Trial]:
    """The output is the formula's, at ordinary inputs."""
    for causal in causals(judge):
        yield judge.trial(noted("", causal), judge.ask(causal=causal), ("out",))


@check(called=True)
def output_dtype(judge: Judge) -> Iterator[Trial]:
    """What comes out has the dtype of what went in."""
    trial = judge.trial("", judge.ask(n=3), ())
    others = ", ".join(f"{name} in {dtype}" for name, dtype in trial.got.dtypes if dtype != judge.target.dtype)
    trial = trial._replace(note=others)
    yield judge.same(trial, f"is_{judge.target.dtype}", np.array([float(not others)]), np.ones(1))


@check("gradients")
def gradients(judge: Judge) -> Iterator[Trial]:
    """Every gradient is right under a random cotangent."""
    for causal in causals(judge):
        trial = judge.trial(noted("", causal), judge.ask(causal=causal))
        yield trial._replace(places=[place for place in trial.places if place.array.startswith("d_")])


@check("gradients")
def gradient_of_one_row(judge: Judge) -> Iterator[Trial]:
    """A cotangent that is zero on all but one row shows what a sum over rows hides."""
    question = judge.ask(causal=True)
    for row in (1, 11, 19) if judge.full else (11,):
        one = np.zeros_like(question.d_out)
        one[..., row, :] = question.d_out[..., row, :]
        yield judge.trial(f"row {row}", question.change(d_out=one))


@check("scale")
def scale(judge: Judge) -> Iterator[Trial]:
    """A scale that is given replaces the default; it does not multiply it."""
    yield judge.trial("scale=0.37", judge.ask(scale=0.37))


@check(ops=RULES, name="causality", called=True)
@check("causal", called=True)
def causal(judge: Judge) -> Iterator[Trial]:
    """A huge change of the future leaves the outputs before it as they are."""
    question, size = judge.ask(causal=True), 30.0 if judge.target.dtype == "float16" else 1e4
    inputs = {name: question.inputs[name].copy() for name in ("qkv" if judge.target.op != "softmax" else "kv")}
    for name, x in inputs.items():
        if name != "k" or "beta" not in question.inputs or question.normalise:
            x[..., 12:, :] *= size
    changed = question.change(**inputs)
    before, got = (judge.target.answer(x, gradients=False) for x in (question, changed))
    budget = allowed(question, answer(question), judge.target.dtype)["out"]
    trial = Trial("tokens from 12 on times a large number", changed, got, answer(changed), [])
    rows = np.s_[..., :12, :]
    yield judge.same(trial, "out", got.arrays["out"][rows], before.arrays["out"][rows], budget[rows])


@check("causal")
def fewer_queries(judge: Judge) -> Iterator[Trial]:
    """With fewer queries than keys the last query sees all keys: the two are aligned at the end."""
    if judge.target.mapping.layout != "packed":
        yield judge.trial("7 queries, 20 keys", judge.ask(causal=True, n=7, keys=20))


@check(ops=PAIRS)
def other_lengths(judge: Judge) -> Iterator[Trial]:
    """Numbers of queries and of keys are two numbers."""
    if not judge.target.mapping.fixed.get("causal") and judge.target.mapping.layout != "packed":
        yield judge.trial("20 queries, 7 keys", judge.ask(n=20, keys=7))


@check()
def lengths(judge: Judge) -> Iterator[Trial]:
    """Any number of tokens: a tile less one, a tile, a tile and one, a prime, and a single one."""
    for n in (2, 15, 16, 17, 31, 63, 64, 65, 127, 129, 300, 1) if judge.full else (17, 65, LENGTH, 2, 1):
        least = 3 if judge.target.dtype in UNIT else 2  # of fewer tokens other gradients are nearly, or exactly, 0
        only = None if n >= least else ("out", "d_v")
        yield judge.trial(f"{n} tokens", judge.ask(n=n, causal=True, leading=(1, 2)), only)


@check()
def widths(judge: Judge) -> Iterator[Trial]:
    """The width of values is not that of keys, and neither has to be a multiple of anything."""
    for d, m in ((8, 24), (24, 8), (5, 3), *[(64, 16)] * judge.full):
        yield judge.trial(f"D={d}, M={m}", judge.ask(d=d, m=m, causal=True))


def masks(judge: Judge, question: Question) -> dict[str, np.ndarray]:
    """Some masks: heads differ, and so do sequences, where the kernel's masks have heads; otherwise sequences alone."""
    *batch, heads, n = question.inputs["k"].shape[:-1]
    own = (*batch, heads if judge.target.mapping.mask == "BHL" else 1)
    number, places = np.arange(np.prod(own)).reshape(*own, 1) % 5, np.arange(n)  # 5: no two sequences have the same
    # The first key is seen, so that each query sees one.
    inside = (judge.rng.random((*own, n)) < 0.7) & (places != 3) | (places == 0)
    near = (places >= 5 - number) | (places == 0)
    made = {"near the front": near, "in the middle": inside, "at the end": places < n - 6 + number}
    return {where: np.broadcast_to(mask, (*batch, heads, n)).copy() for where, mask in made.items()}


def masked_inside(judge: Judge, question: Question) -> Question:
    """With the mask in the middle."""
    return question.change(key_mask=masks(judge, question)["in the middle"])


@check("key_mask")
def masked_is_absent(judge: Judge) -> Iterator[Trial]:
    """A masked key is as if it were not there: no weight, no decay, no gradient, wherever it stands."""
    for causal in causals(judge)[::-1]:
        question = judge.ask(causal=causal)
        for where, mask in masks(judge, question).items():
            yield judge.trial(noted(f"masked {where}", causal), question.change(key_mask=mask))
    yield judge.trial(f"masked in the middle of {LENGTH} tokens", masked_inside(judge, long(judge)))


@check("key_mask", called=True)
def masked_content(judge: Judge) -> Iterator[Trial]:
    """What a masked key contains changes nothing, even if it is huge."""
    for causal in causals(judge)[::-1]:
        question = judge.ask(causal=causal)
        for where, mask in list(masks(judge, question).items())[: 3 if judge.full else 1]:
            note = noted(f"masked {where}, content 1e4", causal)
            huge = {name: np.where(mask[..., None], question.inputs[name], 1e4) for name in "kv"}
            trial = judge.trial(note, question.change(key_mask=mask), ())
            changed = judge.target.answer(trial.question.change(**huge), gradients=False)
            budget = allowed(trial.question, trial.right, judge.target.dtype)["out"]
            yield judge.same(trial, "out", changed.arrays["out"], trial.got.arrays["out"], budget)


@check("key_mask")
def sees_nothing(judge: Judge) -> Iterator[Trial]:
    """A query that sees no key gets 0, and so do all gradients through it: not NaN."""
    question = judge.ask(causal=True)
    mask = masks(judge, question)["near the front"] & (np.arange(question.inputs["k"].shape[-2]) > 0)
    yield judge.trial("the first keys masked", question.change(key_mask=mask), ("out", "d_q"))
    mask = mask & (np.arange(len(mask)) > 0)[:, None, None]
    for causal in causals(judge)[::-1]:
        question = judge.ask(causal=causal)
        yield judge.trial(noted("all keys of one sequence masked", causal), question.change(key_mask=mask))
        yield judge.trial(noted("all keys masked", causal), question.change(key_mask=np.zeros_like(mask)))


@check("state", ops=STATES)
def from_a_state(judge: Judge) -> Iterator[Trial]:
    """From a given state on, outputs, the last state and gradients are right."""
    yield judge.trial("a state at random", judge.ask(state=True))
    longer = long(judge, state=True, d_state=judge.target.offers("d_state"))
    yield judge.trial(f"a state at random, {LENGTH} tokens", longer)


@check("d_state", ops=STATES)
def gradient_of_the_last_state(judge: Judge) -> Iterator[Trial]:
    """Where something goes on from the last state, its gradient comes back through all tokens to the first state."""
    yield judge.trial("a gradient of the last state", judge.ask(state=True, d_state=True))


@check("state", ops=STATES, called=True)
def pieces(judge: Judge) -> Iterator[Trial]:
    """One pass, two pieces, and token by token give the same, the state handed on as the kernel gave it."""
    short, longer = judge.ask(state=True), long(judge, state=True)
    n = short.inputs["k"].shape[-2]
    for note, question, cuts in (
        ("in two pieces", short, (0, 13, n)),
        ("token by token", short, range(n + 1)),
        (f"{LENGTH} tokens in two pieces", longer, (0, 70, LENGTH)),
    ):
        got, outs = Answer({}), []
        for start, stop in itertools.pairwise(cuts):
            got = judge.target.answer(question.rows(start, stop), gradients=False, state=got.state)
            outs.append(got.arrays["out"])
            if got.state is None:
                raise ValueError(NO_STATE)
        whole = got._replace(arrays={**got.arrays, "out": np.concatenate(outs, axis=-2)})
        yield judge.compared(note, question, whole)


OFFSETS, LONG_OFFSETS = np.array([0, 5, 5, 6, 20]), np.array([0, 66, 66, 67, LENGTH])


@check("offsets")
def packed_is_separate(judge: Judge) -> Iterator[Trial]:
    """Sequences packed into one row do not see each other; an empty one is allowed."""
    for causal in causals(judge)[::-1]:
        note = noted(f"offsets {OFFSETS.tolist()}", causal)
        yield judge.trial(note, judge.ask(offsets=OFFSETS, leading=(4,), causal=causal))
    state = judge.target.offers("state")
    if state:
        yield judge.trial("with a state each", judge.ask(offsets=OFFSETS, leading=(4,), state=True))
    question = long(judge, offsets=LONG_OFFSETS, leading=(2,), state=state)
    yield judge.trial(f"offsets {LONG_OFFSETS.tolist()}", question)


@check("groups")
def shared_is_repeated(judge: Judge) -> Iterator[Trial]:
    """Query head h reads key head h // groups, and gradients of shared heads are sums."""
    for causal, groups in itertools.product(causals(judge)[::-1], (2, 4)):
        yield judge.trial(noted(f"groups={groups}", causal), judge.ask(groups=groups, causal=causal))


@check()
def options_together(judge: Judge) -> Iterator[Trial]:
    """Options that are right one by one are right together, where they are offered together."""
    values = {"scale": 0.37, "normalise": False, "groups": 2, "state": True, "key_mask": True, "offsets": OFFSETS}
    offered = [name for name in values if judge.target.offers(name)]
    chosen = [[name for name in offered if name != "offsets"], offered] if "offsets" in offered else [offered]
    chosen += map(list, itertools.combinations(offered, 2)) if judge.full else ()
    for names, causal in itertools.product(chosen, causals(judge)[::-1]):
        names = [name for name in names if name != "state" or causal is not False]
        if len(names) + (causal is not None) < 2:
            continue
        given: dict[str, Any] = {name: values[name] for name in names if name != "key_mask"}
        given |= {"d_state": "state" in names and judge.target.offers("d_state")}
        given |= {"leading": (4,)} if "offsets" in names else {}
        question = judge.ask(causal=causal, **given)
        question = masked_inside(judge, question) if "key_mask" in names else question
        if "normalise" in names:  # of length 1 it would make no difference
            question = question.change(**{name: question.inputs[name] / 2 for name in "qk"})
        try:
            trial = judge.trial(noted(", ".join(names), causal), question)
        except NotImplementedError:
            continue
        yield trial


@check(ops=GATED, whole=True)
def gates(judge: Judge) -> Iterator[Trial]:
    """Gates from 1 to 0 by way of very strong ones: outputs, and gradients by their own size."""
    question = judge.ask()
    for log_gate in (0.0, -1e-3, -5.0, -20.0, -np.inf):
        gate = rounded(np.full_like(question.inputs["log_gate"], log_gate), judge.dtype)
        yield judge.trial(f"log gate {log_gate:g}", question.change(log_gate=gate))
    question = long(judge)
    strengths = judge.rng.choice([0.0, 2.0**-10, 5.0, 20.0], question.inputs["log_gate"].shape)
    yield judge.trial(f"{LENGTH} tokens, gates of all strengths", question.change(log_gate=-strengths))


@check(ops=GATED)
def resets(judge: Judge) -> Iterator[Trial]:
    """A gate of 0 begins anew, in the middle or after a state: nothing of before remains, and no NaN comes of it."""
    first = [(0, judge.ask(state=True))] * judge.target.offers("state")
    for token, question in ((9, judge.ask()), (100, long(judge)), *first):
        gate = question.inputs["log_gate"].copy()
        gate.swapaxes(question.axis("log_gate"), 0)[token] = -np.inf
        yield judge.trial(f"log gate -inf at token {token}", question.change(log_gate=gate))


@check(ops=("softmax",))
def large_scores(judge: Judge) -> Iterator[Trial]:
    """Scores far beyond what an exponential can hold: the maximum of a row is subtracted first."""
    for causal in causals(judge):
        question = judge.ask(causal=causal)
        for size in (30.0,) if judge.target.dtype == "float16" else (30.0, 1e4):
            larger = rounded(question.inputs["q"] * size, judge.dtype)
            yield judge.trial(noted(f"queries times {size:g}", causal), question.change(q=larger), ("out",))
        common = {name: question.inputs[name].copy() for name in "qk"}
        for x in common.values():
            x[..., 0] = 60  # scores beyond 1000, and gradients of ordinary size
        only = ("out", "d_v") if judge.target.dtype in UNIT else None  # 60 times what is rounded to 16 bits hides d_q
        yield judge.trial(noted("queries and keys with a common part", causal), question.change(**common), only)


@check(ops=("linear",))
def small_features(judge: Judge) -> Iterator[Trial]:
    """Where the features of queries and keys are small, eps is seen in the denominator, no more and no less of it."""
    for causal in causals(judge):
        question = judge.ask(causal=causal)
        # Further down elu(x) + 1, computed as it is written, loses its digits.
        far = {name: rounded(question.inputs[name] - 4, judge.dtype) for name in "qk"}
        yield judge.trial(noted("queries and keys about -4", causal), question.change(**far), ("out",))


@check(ops=DELTAS)
def beta_up_to_two(judge: Judge) -> Iterator[Trial]:
    """With beta above 1 the state's eigenvalues are negative; nothing may clip it."""
    question = judge.ask()
    yield judge.trial("beta up to 2", question.change(beta=2 * question.inputs["beta"]))


@check(ops=DELTAS)
def short_rows(judge: Judge) -> Iterator[Trial]:
    """Rows of nearly 0 are normalised to nearly 0, by the square root of their squares and eps together."""
    if judge.target.mapping.fixed.get("normalise", True):
        question, size = judge.ask(), 1e-4 if judge.target.dtype == "float16" else 1e-6
        short = {name: rounded(question.inputs[name] * size, judge.dtype) for name in "qk"}
        yield judge.trial(f"queries and keys times {size:g}", question.change(**short), ("out",))


@check("normalise", ops=DELTAS)
def normalise(judge: Judge) -> Iterator[Trial]:
    """Queries and keys that are not to be normalised are used as they are, whatever their length."""
    question = judge.ask(normalise=False)
    half = {name: question.inputs[name] / 2 for name in "qk"}
    yield judge.trial("queries and keys of length 1/2", question.change(**half))


@check(called=True)
def zeros(judge: Judge) -> Iterator[Trial]:
    """Inputs of zeros are inputs: no division by a length or a sum of nothing."""
    question = judge.ask(causal=True)
    for name in ("q", "k", "v"):
        changed = question.change(**{name: np.zeros_like(question.inputs[name])})
        yield judge.trial(f"{name} = 0", changed, ("out", "d_" + name))


@check(called=True)
def buffers(judge: Judge) -> Iterator[Trial]:
    """Outputs are written fully: memory that was full of NaN shows nothing of it."""
    question = judge.ask(causal=True)
    trial = judge.trial("memory full of NaN before", question)
    for _ in range(4):  # freed at once, and likely what the next call gets
        traps = [np.full(x.shape, np.nan, dtype) for x in trial.right.values() for dtype in (np.float32, np.float64)]
        del traps
        trial = judge.trial(trial.note, question)
    yield trial


@check(called=True)
def calls_apart(judge: Judge) -> Iterator[Trial]:
    """A call in between, with other numbers, changes neither an output nor the gradients of the call before."""
    apart = Judge(judge.target._replace(interrupted=True))
    yield apart.trial("another call before the gradients", judge.ask(causal=True))


@check(called=True)
def inputs_kept(judge: Judge) -> Iterator[Trial]:
    """A call leaves its inputs as they were, and so a state, a mask, offsets and the gradient of the output."""
    offers = judge.target.offers
    questions = {noted("", causal): judge.ask(causal=causal) for causal in causals(judge)}
    given = {"state": True, "scale": 0.37, "groups": 2}
    questions |= {f"{name}={x}": judge.ask(causal=True, **{name: x}) for name, x in given.items() if offers(name)}
    if offers("key_mask"):
        questions["with a mask"] = masked_inside(judge, judge.ask(causal=True))
    if offers("offsets"):
        questions["with offsets"] = judge.ask(causal=True, offsets=OFFSETS, leading=(4,))
    for note, question in questions.items():
        got = judge.target.answer(question)
        passed = *question.inputs, *(OPS[judge.target.op].state if question.state else ()), "d_out"
        passed += tuple(name for name in ("key_mask", "offsets") if name in question.options)
        altered = {f"altered_{name}": np.array([float(name in got.altered)]) for name in passed}
        places = [judge.compare(note, name, x, np.zeros(1)) for name, x in altered.items()]
        yield Trial(note, question, got, {}, places)


@check(called=True)
def same_twice(judge: Judge) -> Iterator[Trial]:
    """The same call gives the same numbers, to the bit."""
    for causal in causals(judge):
        trial = judge.trial("", judge.ask(causal=causal))
        again, note = judge.target.answer(trial.question), noted("again", causal)
        first = {name: x for name, x in trial.got.arrays.items() if name in trial.right}
        places = [judge.compare(note, name, again.arrays[name], x, 0.0, trial.question) for name, x in first.items()]
        yield trial._replace(places=places)


@check(called=True)
def strides(judge: Judge) -> Iterator[Trial]:
    """Views into larger arrays are arrays: nothing is read at the wrong stride."""
    question = judge.ask(causal=True)
    with judge.target.library.spread():
        yield judge.trial("every array a view", question)
