"""One call of every mechanism, at sizes a reader would choose: what the table of the comparison is measured on.

Beyond what is made from the tokens (`TOKENS`) a mechanism takes arrays of its own: some are learned, others are drawn
once at random and have no gradient.
"""

import inspect
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from linattn_ref.experiments.measuring import mechanisms
from linattn_ref.experiments.measuring.counting import kept_bytes
from linattn_ref.kernels import jit

__all__ = ["NAMES", "Sizes", "cost"]

NAMES: tuple[str, ...] = ("softmax", "linear", "linformer", "linformer_linear", "performer", "rfa", "gated_linear")
NAMES += ("delta", "nystromformer", "local", "block_local", "longformer", "bigbird", "sparse_transformer")
NAMES += ("long_short", "reformer")
# What a layer makes from its input.
TOKENS = {"q", "k", "v", "qk", "q_global", "k_global", "v_global", "gate", "beta", "log_gate"}
# Sizes of all mechanisms, as `mechanisms.Sizes` has them
BESIDE: dict[str, Any] = {"reduced": 256, "features": 256, "landmarks": 64, "window": 256}
BESIDE |= {"block": 64, "rounds": 4, "buckets": 64, "chunk": 64}
TAPS = 33  # of Nyströmformer's convolution
WHOLE_PRODUCTS = {"linformer_linear"}  # products of whole matrices, which are NumPy's in every backend


class Sizes(NamedTuple):
    """What every mechanism is called with; batch size 1, float32."""

    n: int = 4096  # N = L
    heads: int = 8  # H
    width: int = 64  # D = M


class Cost(NamedTuple):
    """What a call of a mechanism takes beyond what is made from the tokens."""

    learned: int  # numbers in arrays that have a gradient
    drawn: int  # numbers in arrays that have none
    saved: int  # bytes kept for the backward pass beyond all inputs


def cost(name: str, s: Sizes = Sizes(), *, seed: int = 0) -> Cost:  # noqa: B008
    """Measure the mechanism ``linattn_ref.attention.<name>`` in a call of both passes."""
    page, given = mechanisms.page(name), arguments(name, s, np.random.default_rng(seed))
    is_compiled = name not in WHOLE_PRODUCTS and "kernels" in inspect.signature(page.forward).parameters
    out, saved = page.forward(**given, **({"kernels": jit} if is_compiled else {}))
    gradients = page.backward(np.ones_like(out), saved)
    own = {argument: size(x) for argument, x in given.items() if argument not in TOKENS}
    learned = sum(count for argument, count in own.items() if argument in gradients._fields)
    inputs = tuple(given.values())
    return Cost(learned, sum(own.values()) - learned, kept_bytes((inputs, saved)) - kept_bytes(inputs))


def size(x: Any) -> int:
    """Numbers in an array, or in all arrays in nested tuples of anything."""
    if isinstance(x, tuple):
        return sum(size(part) for part in x)
    return x.size if isinstance(x, np.ndarray) else 0


def arguments(name: str, s: Sizes, rng: Generator) -> dict[str, Any]:
    """All of one ``forward``, by name."""
    sizes = mechanisms.Sizes(s.n, s.width, stride=round(s.n**0.5), **BESIDE)
    own = mechanisms.learned(name, sizes, rng) | mechanisms.options(name, sizes, rng)
    given = mechanisms.inputs(name, *rng.standard_normal((3, s.heads, s.n, s.width), np.float32))
    gate = rng.uniform(0.8, 0.99, (s.heads, s.n, s.width)).astype(np.float32)
    one, norm = gate[..., 0].copy(), ((np.ones(s.width, np.float32), np.zeros(s.width, np.float32)),) * 2
    more: dict[str, dict[str, Any]] = {
        "rfa": {"gate": one, "causal": True},
        "gated_linear": {"log_gate": np.log(gate)},
        "delta": {"log_gate": np.log(one), "beta": one},
        "nystromformer": {"conv": rng.standard_normal((s.heads, TAPS), np.float32)},
        "long_short": {"norm_local": norm, "norm_global": norm},
    }
    return given | own | more.get(name, {})
