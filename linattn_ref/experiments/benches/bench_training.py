"""A step of training beside PyTorch's eager mode: forward, backward and Adam, float32, on the same numbers.

The network is `linattn_ref.models.causal`, on two sequences of 784 tokens, as for images of digits. Each network and
mechanism is measured in a process of its own, in which freed memory is kept for the next array: PyTorch's better
setting, and what `linattn_ref.op.workspace` does. There, all steps are taken in turn (`engine`), and beside them the
matrix products that each cannot do without, alone, by the library that it calls: OpenBLAS under NumPy, MKL under
PyTorch.

PyTorch's side is what its users would write. Attention is its own kernel for softmax. For linear attention it has none:
it is the module of fast-transformers where that is installed, and the causal product in chunks of `peers`, of which it
is not known beforehand which form is the faster. Adam is the fused one.

Before anything is timed, the losses of three steps are compared: they are those of the same gradients.

Of the larger networks memory is measured: the most that building the network and three steps take
beyond what there was before, parameters and the optimiser's state among it, freed memory handed back. What a process
has beside (the libraries, compiled code) was there before, on either side, for a network of one layer has run.

The larger networks are run with two threads too, against one by the clock on the wall. What two threads could do at
best, on a machine that is shared, is measured beside it: the step's products, once on one thread, and once on each of
two at the same time. README has the share of it. What stood in the way of two threads was OpenMP's, which turned in
circles while OpenBLAS's worked (`linattn_ref.kernels.jit.loops.threads`). NumPy's own passes over the memory
still have one thread: residual sums, products with a slope, the gradients of heads that are put side by side.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np

from linattn_ref.attention import linear, softmax
from linattn_ref.experiments.benches import engine, peers
from linattn_ref.experiments.measuring.memory import HAND_BACK, KEEP, in_new_process, peak_resident
from linattn_ref.experiments.measuring.timing import one_thread, second_thread
from linattn_ref.experiments.publishing.kit import Figure, NDArray, Results, markdown, style
from linattn_ref.kernels import jit
from linattn_ref.models import causal
from linattn_ref.nn import cross_entropy, mechanism
from linattn_ref.training import adam, parameters

__all__ = ["compute", "draw", "table"]

BATCH, LENGTH, TOKENS, RATE = 2, 784, 256, 1e-3
OURS, THEIRS = "its products", "PyTorch's products"
COLOURS = {
    "jit": style.BLUE,
    "jit, recomputed": style.BLUE,  # hidden units, in the backward pass: in the record, and measured no more
    OURS: style.SKY,
    "pytorch": style.VERMILLION,
    "pytorch, at once": style.VERMILLION,
    "pytorch, loop": style.ORANGE,
    "fast-transformers": style.GREEN,
    THEIRS: style.GREY,
}


Text = NDArray[np.int64]  # (B, N + 1)


class Setting(NamedTuple):
    layers: int
    width: int  # E
    heads: int
    attention: str  # "linear" or "softmax"


LARGE, SMALL = (8, 256, 8), (4, 128, 4)
SETTINGS = tuple(Setting(*sizes, attention) for sizes in (LARGE, SMALL) for attention in ("linear", "softmax"))


def compute(*, repeats: int = 5, seed: int = 0) -> Results:
    """Compare a step of training with PyTorch's eager mode on one thread, if that is installed.

    CPU time, the steps in turn; two threads against one, and the most memory in use.

    Parameters
    ----------
    repeats : int
        Rounds of timing, after one that is not counted.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1.
    ChildProcessError
        The losses of two steps differ, among others.
    """
    engine.check_counts(repeats=repeats)
    rows: list[Results] = []
    threads: list[Results] = []
    memory: list[Results] = []
    for setting in SETTINGS:
        mine = in_new_process(times, setting, repeats, seed, malloc=KEEP)
        rows += mine
        if setting.layers < SETTINGS[0].layers:
            continue
        large = {"layers": setting.layers, "attention": setting.attention}
        if numba.config.NUMBA_NUM_THREADS > 1:
            threads.append(Results(**large, **in_new_process(threads_against_one, setting, repeats, seed, malloc=KEEP)))
        for name in {row.kernel for row in mine} - {OURS, THEIRS}:
            peak = in_new_process(peak_of, name, setting, seed, malloc=HAND_BACK)
            memory.append(Results(**large, kernel=name, megabytes=peak / 1e6))
    return Results(
        repeats=repeats,
        versions=peers.versions(engine.find("torch"), packages()),
        rows=tuple(rows),
        threads=tuple(threads),  # of the larger networks, two against one; none where there is one thread only
        memory=tuple(sorted(memory, key=lambda x: (-x.layers, x.attention, [*COLOURS].index(x.kernel)))),
    )


def packages() -> dict[str, Any]:
    """fast-transformers and its other build."""
    return peers.fast_transformers("causal_product", "attention", "masking")


def steps(setting: Setting, seed: int, torch: Any) -> dict[str, Callable[[], Callable[[], float]]]:
    """By name, what makes each step."""
    params, text = _start(setting, seed)
    given = params, setting.heads, text
    found: dict[str, Any] = {"jit": partial(training_step, setting.attention, *given)}
    attentions = attention_by_name(torch, setting) if torch is not None else {}
    return found | {name: partial(step_in_torch, torch, attend, *given) for name, attend in attentions.items()}


def training_step(attention: str, params: causal.Params, heads: int, text: Text) -> Callable[[], float]:
    """A step on ``text (B, N + 1)``: forward, backward, Adam; its loss. The parameters are copied."""
    own = mechanism.of({"linear": linear, "softmax": softmax}[attention], causal=True, kernels=jit)
    model = causal.Model(own, heads)
    _, params = parameters.flatten(params)
    state = adam.init_state(params)

    def step() -> float:
        nonlocal state
        scores, saved = causal.forward(text[:, :-1], params, model)
        loss, surprise = cross_entropy.forward(scores, text[:, 1:], kernels=jit)
        del scores
        d_scores = cross_entropy.backward(1.0, surprise).scores
        del surprise
        grads = causal.backward(d_scores, saved).params
        state = adam.step(params, grads, state, learning_rate=RATE, kernels=jit)
        return float(loss)

    return step


def products(rows: int, sizes: list[tuple[int, int]], torch: Any = None) -> Callable[[], None]:
    """The matrix products of a step alone, into arrays that are there: ``x W``, ``G W^T``, ``x^T G``.

    PyTorch's weights are (to, from), with which its library is faster: the same with ``x`` and ``G`` exchanged.
    """
    sizes = sizes if torch is None else [size[::-1] for size in sizes]
    rng = np.random.default_rng(0)
    matmul, array = (np.matmul, np.asarray) if torch is None else (torch.matmul, torch.from_numpy)

    def draw(*shape: int) -> Any:
        return array(rng.standard_normal(shape, np.float32))

    x, out = ({size: draw(rows, size) for pair in sizes for size in pair} for _ in range(2))
    weights = [(draw(*size), draw(*size)) for size in sizes]

    def call() -> None:
        for w, d_w in weights:
            matmul(x[len(w)], w, out=out[w.shape[1]])
            matmul(x[w.shape[1]], w.T, out=out[len(w)])
            matmul(x[len(w)].T, x[w.shape[1]], out=d_w)

    return call


def _start(setting: Setting, seed: int) -> tuple[causal.Params, Text]:
    rng = np.random.default_rng(seed)
    sizes = {"width": setting.width, "hidden": 4 * setting.width, "layers": setting.layers}
    params = causal.draw(rng, tokens=TOKENS, places=LENGTH, **sizes, dtype=np.float32)
    return params, rng.integers(0, TOKENS, (BATCH, LENGTH + 1))


def _sizes(setting: Setting) -> list[tuple[int, int]]:
    """Of all matrices."""
    e = setting.width
    return [(e, 3 * e), (e, e), (e, 4 * e), (4 * e, e)] * setting.layers + [(e, TOKENS)]


# --- PyTorch ----------------------------------------------------------------------------------------------------------


CHUNK = 64


def attention_by_name(torch: Any, setting: Setting) -> dict[str, Callable[..., Any]]:
    """Functions of ``q, k, v (B, H, N, D)``, causal."""
    if setting.attention == "softmax":
        return {"pytorch": partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)}
    forms = {"pytorch, at once": peers.at_once, "pytorch, loop": peers.loop}
    found: dict[str, Callable[..., Any]] = {
        name: partial(linear_attention, torch, partial(form, torch, CHUNK)) for name, form in forms.items()
    }
    for name, package in packages().items():
        module = peers.attention_module(torch, package, BATCH, LENGTH, setting.width // setting.heads)
        found[name] = partial(heads_last, module)
    return found


def linear_attention(torch: Any, product: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
    """The causal product of ``elu + 1``, and its denominator as fast-transformers has it."""
    elu = torch.nn.functional.elu
    q, k = elu(q) + 1, elu(k) + 1
    denominator = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + peers.EPS
    return product(q, k, v) / denominator[..., None]


def heads_last(module: Callable[..., Any], *qkv: Any) -> Any:
    """Attention whose order of axes is ``(B, N, H, D)``."""
    return module(*(x.transpose(1, 2) for x in qkv)).transpose(1, 2)


def step_in_torch(torch: Any, attend: Any, params: causal.Params, heads: int, text: Text) -> Callable[[], float]:
    """A step on ``text (B, N + 1)``: forward, backward, Adam; its loss. The parameters are copied."""
    functions, leaves = torch.nn.functional, []

    def leaf(array: Any) -> Any:
        leaves.append(torch.from_numpy(array.copy()).requires_grad_())
        return leaves[-1]

    table, places = leaf(params.embedding.table), leaf(params.positions.table)  # type: ignore[union-attr]
    blocks = [peers.leaves_of(one, leaf) for one in params.blocks]
    last = leaf(params.norm.gain), leaf(params.norm.bias)
    head = leaf(params.head.w.T.copy()), leaf(params.head.b)
    adam = torch.optim.Adam(leaves, lr=RATE, fused=True)
    read, told, width = torch.from_numpy(text[:, :-1]), torch.from_numpy(text[:, 1:]).flatten(), (table.shape[1],)

    def forward() -> Any:
        x = functions.embedding(read, table) + places  # (B, N, E)
        x = peers.layers(torch, blocks, x, heads, attend, functions.gelu, norm_first=True)
        return functions.linear(functions.layer_norm(x, width, *last), *head)  # (B, N, V)

    def step() -> float:
        adam.zero_grad()
        loss = functions.cross_entropy(forward().flatten(0, 1), told)
        loss.backward()
        adam.step()
        return loss.item()

    return step


# --- In a process of its own ---------------------------------------------------------------------------------------


def times(setting: Setting, repeats: int, seed: int) -> list[Results]:
    """The rows of a setting, after the losses have been compared."""
    torch = engine.find("torch")
    with one_thread(torch):
        calls: dict[str, Callable[[], Any]] = {name: make() for name, make in steps(setting, seed, torch).items()}
        losses = {name: (np.array([call() for _ in range(3)]),) for name, call in calls.items()}
        calls[OURS] = products(BATCH * LENGTH, _sizes(setting))
        if torch is not None:
            calls[THEIRS] = products(BATCH * LENGTH, _sizes(setting), torch)
        compared: dict[str, Any] = {"tolerance": 1e-4, "expected": losses, "outputs": ("losses",)}
        return engine.measure(setting._asdict(), calls, repeats, **compared)


def threads_against_one(setting: Setting, repeats: int, seed: int) -> dict[str, float]:
    """A step on one thread and on two, and its products alone, once and twice at once, in turn."""
    calls = [products(BATCH * LENGTH, _sizes(setting)) for _ in range(2)]
    return second_thread(steps(setting, seed, None)["jit"](), calls, repeats)


def peak_of(name: str, setting: Setting, seed: int) -> int:
    """Bytes that a network and three of its steps take, by the name of a row."""
    torch = engine.find("torch")

    def build_and_run(layers: int) -> None:
        step = steps(setting._replace(layers=layers), seed, torch)[name]()
        for _ in range(3):
            step()

    with one_thread(torch):
        build_and_run(1)  # what happens once only
        return peak_resident(partial(build_and_run, setting.layers))


# --- Showing -------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """Times, threads and memory as Markdown, and below them what stands there."""
    shown = engine.table(("layers", "E", "attention"), results.rows, COLOURS, cells=lambda x: (x[0], x[1], x[3]))
    setting = f"B = {BATCH}, N = {LENGTH}, {TOKENS} tokens, float32, one thread, {results.repeats} rounds."
    note = setting, engine.TOLD, engine.compared(results.versions, [peers.PYTORCH, peers.FAST])
    threads = [
        f"{one.layers} layers, {one.attention}: two threads {one.ratio:.2f} times as fast as one, where the products "
        f"alone, on each of two threads, are {one.limit:.2f} times as many as on one"
        for one in results.threads
    ]
    rows = [(one.layers, one.attention, one.kernel, f"{one.megabytes:.0f}") for one in results.memory]
    peaks = markdown.table(("layers", "attention", "step", "peak, MB"), rows, "rllr")
    return "\n\n".join([engine.page(shown, note=note), "; ".join(threads), "\n".join(peaks)])


def draw(results: Results) -> Figure:
    """A step of training on one thread of a CPU, over the time of this package's: a causal transformer, two
    sequences of 784 tokens, feed-forward layers four times as wide, float32. PyTorch in eager mode; the matrix
    products of each alone are what its step cannot be faster than.
    """
    figure, axes = style.figure(1, len(SETTINGS), height=0.42, sharex=True)
    for axis, setting in zip(axes, SETTINGS, strict=True):
        rows = [row for name in reversed(COLOURS) for row in engine.rows_of(results, **setting._asdict(), kernel=name)]
        names = [row.kernel.replace(", ", ",\n").replace("'s ", "'s\n") for row in rows]
        bars = axis.barh(names, [row.ratio_median for row in rows], color=[COLOURS[row.kernel] for row in rows])
        axis.bar_label(bars, fmt="%.2f", padding=2)
        axis.set(title=f"{setting.layers} layers,\n{setting.width}, {setting.attention}", xlabel="time over jit's")
        axis.margins(x=0.3)
    return figure
