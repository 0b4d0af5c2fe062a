"""What recognising speech takes: CTC and a bidirectional LSTM beside PyTorch's, and networks against the length.

Float32, one thread. CTC hears 32 utterances of 800 frames, the mean of the paper's, with 60 symbols and 40 to 100
labels; PyTorch's time has the softmax in it, as ours has. The LSTMs are `linattn_ref.nn.lstm` and ``torch.nn.LSTM``
with the same numbers in them. Ours always keeps what the backward pass needs, and keeps freed memory, as in training;
``torch.no_grad`` has PyTorch keep nothing, and choose another kernel.

The networks are those of ``linattn-ref train speech``, and hear frames of 10 ms that are *not* stacked: 2400 of them,
as one utterance or as several shorter ones. Sounds are random numbers, which take as long as speech. Time is told as
that of an epoch of the synthesised corpus, were all its utterances that long.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from linattn_ref.data.filterbank import CHANNELS
from linattn_ref.experiments.benches import engine, peers
from linattn_ref.experiments.benches.engine import BOTH, FORWARD, PASSES, TOLD, Call
from linattn_ref.experiments.learning import speech
from linattn_ref.experiments.learning.speech import Shape
from linattn_ref.experiments.measuring.timing import in_turn
from linattn_ref.experiments.publishing.kit import Array, Figure, Ints, Results, labels, markdown, style
from linattn_ref.kernels import jit
from linattn_ref.nn import ctc, lstm
from linattn_ref.op.workspace import workspace

__all__ = ["NETWORKS", "compute", "draw", "table"]

FRAMES = 2400  # at a time: the paper's longest utterance
EPOCH = 5_415_807  # frames of 10 ms in the training part of the synthesised corpus
EACH = 7.5  # frames per phoneme
SYMBOLS = 60
NETWORKS = ("softmax", "lsh-4", "linear", "lstm")
LSTMS = ((32, 100, 40, 320), (16, 200, 256, 128))  # B, T, E, H; the first are the paper's units


@engine.bench("repeats")
def compute(*, lengths: Ints = (100, 300, 800, 2400), repeats: int = 3, seed: int = 0) -> engine.Measured:
    """Compare CTC and a bidirectional LSTM with PyTorch's on one thread, if that is installed.

    And time the networks of `linattn-ref train speech` against the length of utterances. CPU time, in turn.

    Parameters
    ----------
    lengths : sequence of int
        Frames per utterance, up to 2400.
    repeats : int
        Rounds of timing, after one that is not counted; five times as many of CTC and the LSTMs, which are short.
    seed : int
        Of all that is drawn.
    """
    if max(lengths) > FRAMES:
        raise ValueError(f"lengths: expected numbers up to {FRAMES}, got {max(lengths)}")
    torch, rng = engine.find("torch"), np.random.default_rng(seed)
    with workspace():
        yield from time_ctc(rng, 5 * repeats, torch)
        for sizes in LSTMS:
            yield from time_lstm(sizes, rng, 5 * repeats, torch)
        epochs = tuple(epoch for length in lengths for epoch in time_networks(length, rng, repeats))
    return {"versions": peers.versions(torch, {}), "rows": (), "epochs": epochs}


def time_ctc(rng: np.random.Generator, repeats: int, torch: Any) -> list[Results]:
    """The loss and its gradient."""
    b, t, v = 32, 800, SYMBOLS
    scores = (2 * rng.standard_normal((b, t, v))).astype(np.float32)
    counts, targets = rng.integers(40, 101, b), rng.integers(1, v, (b, 100))

    one: Any = np.array(1, np.float32)  # the gradient of the loss
    ours = partial(engine.run, ctc, (scores, targets), one, BOTH, lengths=counts, kernels=jit)
    calls: dict[str, Call] = {"jit": ours}
    if torch is not None:
        rest = torch.tensor(targets), torch.full((b,), t), torch.tensor(counts)

        def loss(scores: Any) -> Any:
            return torch.nn.functional.ctc_loss(scores.log_softmax(-1).transpose(0, 1), *rest)

        calls["pytorch"] = partial(peers.in_torch, torch, loss, [scores], one, True)
    # Of the gradient in float64, PyTorch's in float32 is 4e-3 of the largest entry away, and ours 5e-5.
    setting = {"piece": "CTC", "passes": BOTH, "size": f"{b} x {t} frames"}
    return engine.measure(setting, calls, repeats, tolerance=1e-2, outputs=("loss", "d_scores"))


def time_lstm(sizes: tuple[int, ...], rng: np.random.Generator, repeats: int, torch: Any) -> Iterator[Results]:
    """A bidirectional layer."""
    b, t, e, h = sizes
    params = lstm.draw(e, h, rng, dtype=np.float32)
    x, d_y = (rng.standard_normal((b, t, width)).astype(np.float32) for width in (e, 2 * h))

    def ours(passes: str) -> Sequence[Array]:
        return engine.run(lstm, (x, params), d_y, passes, kernels=jit)[:2]  # the input's gradient is compared

    calls: dict[str, dict[str, Call]] = {passes: {"jit": partial(ours, passes)} for passes in PASSES}
    if torch is not None:
        layer, given = in_torch(torch, params), torch.tensor(x, requires_grad=True)

        def theirs(x: Any) -> Any:
            layer.zero_grad()
            return layer(x)[0]

        calls[FORWARD]["pytorch"] = lambda: [layer(given)[0].detach().numpy()]
        calls[FORWARD]["pytorch, no_grad"] = torch.no_grad()(calls[FORWARD]["pytorch"])
        calls[BOTH]["pytorch"] = partial(peers.in_torch, torch, theirs, [x], d_y, True)
    for passes, each in calls.items():
        setting = {"piece": "bidirectional LSTM", "passes": passes, "size": f"{b} x {t}, E = {e}, H = {h}"}
        yield from engine.measure(setting, each, repeats, tolerance=1e-4, outputs=("y", "d_x"))


def in_torch(torch: Any, params: lstm.Params) -> Any:
    """PyTorch's layer with these parameters."""
    layer = torch.nn.LSTM(len(params.ahead.w), len(params.ahead.u), bidirectional=True, batch_first=True)
    with torch.no_grad():
        for suffix, own in (("", params.ahead), ("_reverse", params.back)):
            for name, array in (("weight_ih", own.w.T), ("weight_hh", own.u.T), ("bias_ih", own.b)):
                getattr(layer, f"{name}_l0{suffix}").copy_(torch.tensor(array))
            getattr(layer, f"bias_hh_l0{suffix}").zero_()
    return layer


def time_networks(length: int, rng: np.random.Generator, repeats: int) -> list[Results]:
    """A step of each network without the optimiser, on utterances of one length."""
    calls = {name: step_of(name, length, rng) for name in NETWORKS}
    frames = FRAMES // length * length
    return [
        Results(network=name, length=length, seconds=statistics.median(seconds) * EPOCH / frames)
        for name, seconds in in_turn(calls, repeats).items()
    ]


def step_of(name: str, length: int, rng: np.random.Generator) -> Callable[[], object]:
    """Forward, CTC, backward."""
    shape, b, count = Shape(), FRAMES // length, max(1, int(length / EACH))
    frames = rng.standard_normal((b, length, CHANNELS)).astype(np.float32)
    inside = speech.inside_of(name, shape, length, rng)
    given = speech.batch_of([*frames], [*rng.integers(1, SYMBOLS, (b, count))], inside)
    params = speech.draw(name, shape, CHANNELS, SYMBOLS, rng)
    return partial(speech.learn, params, given, 1.0, shape)


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """Both tables as Markdown: of pieces, and of whole epochs.

    The first table has the CPU time of `jit` per call, and the others' times it, median (least). The second has the CPU
    seconds of an epoch, of this package's networks alone.
    """
    lines = engine.table(("piece", "passes", "size"), results.rows, ("jit", "pytorch"))
    told = f"{5 * results.repeats} rounds, of the networks {results.repeats}; float32, one thread."
    note = [TOLD, engine.compared(results.versions, ["PyTorch"]), told]
    lengths = sorted({epoch.length for epoch in results.epochs})
    seconds = {(epoch.network, epoch.length): epoch.seconds for epoch in results.epochs}
    header = "CPU seconds per epoch, utterances of", *(f"{n} frames" for n in lengths)
    epochs = markdown.table(header, [(name, *(f"{seconds[name, n]:.0f}" for n in lengths)) for name in NETWORKS])
    return "\n\n".join([engine.page(lines, note=note), "\n".join(epochs)])


def draw(results: Results) -> Figure:
    """CPU seconds of an epoch over 15 hours of speech, if all its utterances had that many frames of 10 ms. These are
    the networks of `linattn-ref train speech`, forward, CTC and backward, on random numbers in the place of the
    synthesised speech, without stacking, on one thread. Four layers of width 128; three bidirectional LSTM layers of
    128 units. The paper's utterances have 800 frames on average, the longest 2400.
    """
    figure, axes = style.figure(1, 1, height=0.5)
    colours = dict(zip(NETWORKS, (style.BLACK, style.PURPLE, style.BLUE, style.GREEN), strict=True))
    for name in NETWORKS:
        points = [(epoch.length, epoch.seconds) for epoch in results.epochs if epoch.network == name]
        axes.plot(*zip(*points, strict=True), "o-", color=colours[name], label=name)
    axes.set(xlabel="frames per utterance", ylabel="CPU seconds per epoch", ylim=(0, None), xscale="log")
    labels.ticks(axes, sorted({epoch.length for epoch in results.epochs}))
    labels.at_ends(axes)
    return figure
