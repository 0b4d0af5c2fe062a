"""The mechanisms whose time and memory are compared: what runs, and what memory a reader of the code computes.

One entry in `METHODS` adds a curve to the figure. In numbers, all heads ``H`` together, ``D = M = C = W``:

================  ==========================  =================================================================
method            kept by forward             in use at once, about
================  ==========================  =================================================================
dense             ``H N^2``                   ``4 H N^2``: the scores, their exponentials, the quotients, P
online            ``H N (W + 2)``             ``H N (W + 2)`` and dQ, dK, dV, one sum per row
linformer         ``H (N + 2 R) W + 2 H N``   kept and dQ, dK, dV, dK~, dV~, dE, dF
linear            ``H (3 N W + N + W (W+1))`` ``6 H N W``: phi of Q and K, the output, dQ, dK, dV; two states
linear_causal     a state more                the same
lsh_1, 4, 8       ``H N (W + 3 + r)``         ``H N (5 W + 8 + 2 r)``: kept, K, dQ, dK, dV, sums and chunks by row
================  ==========================  =================================================================

``r`` is the number of rounds, each with a permutation to keep. Kept is beyond the inputs, in use beyond the inputs and
``d_out``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from linattn_ref.attention import linear, linformer, reformer, softmax
from linattn_ref.experiments.measuring.counting import kept_bytes
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit.loops.softmax import softmax_tile
from linattn_ref.op import Array

__all__ = ["METHODS", "REDUCED", "Setting", "draw_inputs", "draw_mixtures", "methods_at", "prepared", "run"]

REDUCED = 256  # R, Linformer's k
# Reformer as in Katharopoulos et al. (2020), section 4.2.1
LSH_CHUNK, LSH_BUCKETS = 32, 64


class Setting(NamedTuple):
    """What all methods run with; batch size 1, float32."""

    heads: int = 8  # H
    width: int = 64  # W = D = M = C


Formula = Callable[[int, Setting], int]


class Method(NamedTuple):
    forward: Callable[..., tuple[Array, Any]]  # (q, k, v, *parameters) -> out, saved
    backward: Callable[[Array, Any], Any]  # (d_out, saved) -> gradients
    kept: Formula  # numbers that forward keeps for backward beyond its inputs
    peak: Formula  # numbers in use at once, about
    longest: int | None = None  # beyond it a pass takes more than a few seconds, or gigabytes
    shortest: int = 1
    parameters: Callable[[int, Setting, Generator], tuple[Array, ...]] = lambda n, setting, rng: ()


def run(method: Method, inputs: tuple[Array, ...]) -> int:
    """Forward, then backward, as in training; the bytes that were kept in between beyond the inputs."""
    d_out, *given = inputs
    _out, saved = method.forward(*given)  # the output stays: it is in use during the backward pass
    kept = kept_bytes((given, saved)) - kept_bytes(given)
    method.backward(d_out, saved)
    return kept


def draw_inputs(method: Method, n: int, setting: Setting, seed: int) -> tuple[Array, ...]:
    """Standard normal ``d_out, q, k, v (H, N, W)``, which no cost depends on, and what else the method takes."""
    rng = np.random.default_rng(seed)
    arrays = rng.standard_normal((4, setting.heads, n, setting.width), np.float32)
    return (*arrays, *method.parameters(n, setting, rng))


def prepared(name: str, n: int, setting: Setting, seed: int) -> Callable[[], int]:
    """Both passes of a method, as `points.measure_points` calls them; they return the bytes kept in between."""
    return partial(run, METHODS[name], draw_inputs(METHODS[name], n, setting, seed))


# --- The entries ----------------------------------------------------------------------------------------------------


def draw_mixtures(r: int, n: int, rng: Generator) -> tuple[Array, ...]:
    """Linformer's ``E`` and ``F (R, N)``, for all heads; nothing where ``R`` is 0."""
    return tuple(rng.standard_normal((2, r, n), np.float32) / np.float32(r**0.5)) if r else ()


def online_kept(n: int, s: Setting) -> int:
    return s.heads * n * (s.width + 2)


def online_peak(n: int, s: Setting) -> int:
    parts = -(-softmax_tile.TASKS // s.heads)  # copies of dQ, where there are fewer heads than tasks
    return online_kept(n, s) + s.heads * n * ((parts + 2) * s.width + 1)


def linformer_kept(n: int, s: Setting) -> int:
    return online_kept(n, s) + 2 * s.heads * REDUCED * s.width


def linformer_peak(n: int, s: Setting) -> int:
    rows = n * (4 * s.width + 2)  # the output, dQ, dK, dV and two numbers per row
    return s.heads * (rows + 4 * REDUCED * s.width) + 2 * REDUCED * n


def linear_kept(states: int, n: int, s: Setting) -> int:
    return s.heads * (3 * n * s.width + n + states * s.width * (s.width + 1))


def linear_peak(n: int, s: Setting) -> int:
    return s.heads * (6 * n * s.width + 2 * s.width * (s.width + 1))


def lsh(rounds: int) -> Method:
    """Reformer's attention with the queries as its shared vectors; the keys, which all methods get, are unused here."""
    return Method(
        lambda q, k, v, rotations: reformer.forward(q, v, rotations=rotations, chunk=LSH_CHUNK, kernels=jit),
        reformer.backward,
        kept=lambda n, s: s.heads * n * (s.width + 3 + rounds),
        peak=lambda n, s: s.heads * n * (5 * s.width + 8 + 2 * rounds),
        parameters=lambda n, s, rng: (reformer.draw_rotations(rounds, s.width, LSH_BUCKETS, rng, np.float32),),
    )


def of(page: Any, kept: Formula, peak: Formula, longest: int | None = None, **options: Any) -> Method:
    return Method(partial(page.forward, **options), page.backward, kept, peak, longest)


METHODS = {
    "dense": of(
        softmax,
        lambda n, s: s.heads * n * n,
        lambda n, s: s.heads * max(4 * n * n, 3 * n * n + 5 * n * s.width),  # the backward pass of few tokens
        longest=2**12,
    ),
    "online": of(softmax, online_kept, online_peak, longest=2**13, kernels=jit),
    "online_causal": of(softmax, online_kept, online_peak, longest=2**13, kernels=jit, causal=True),
    "linformer": of(linformer, linformer_kept, linformer_peak, kernels=jit)._replace(
        shortest=REDUCED, parameters=lambda n, s, rng: draw_mixtures(REDUCED, n, rng)
    ),
    "linear": of(linear, partial(linear_kept, 1), linear_peak, kernels=jit),
    "linear_causal": of(linear, partial(linear_kept, 2), linear_peak, kernels=jit, causal=True),
    **{f"lsh_{rounds}": lsh(rounds) for rounds in (1, 4, 8)},
}


def methods_at(n: int, methods: Sequence[str]) -> list[str]:
    """Which of the methods run at length ``n``."""
    return [name for name in methods if METHODS[name].shortest <= n <= (METHODS[name].longest or n)]
