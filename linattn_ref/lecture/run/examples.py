"""What the forward pass of a page is called with, so that its gradient can be checked: small arrays, and options.

Shapes are those in the signature. What a signature does not say stands in ``DRAWN`` and ``OPTIONS``.
"""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.sparse import local
from linattn_ref.op.shapes import Axes, rules_of

__all__ = ["SMALL", "Call", "calls"]

N, D, M, R = 5, 3, 2, 2
SIZES = {"N": N, "L": N, "D": D, "C": D, "M": M, "R": R, "m": 4, "K": 3}
Shape = tuple[int, ...]


class Call(NamedTuple):
    """One call of ``forward``."""

    arrays: tuple[Any, ...]  # what stands before the ``*``
    options: dict[str, Any]


def between(low: float, high: float) -> Callable[[np.random.Generator, Shape], Any]:
    """Uniform numbers."""
    return lambda rng, shape: rng.uniform(low, high, shape)


def norm(rng: np.random.Generator, shape: Shape) -> Any:
    """Gain and bias, of keys and of values."""
    return tuple((rng.uniform(0.5, 1.5, width), rng.standard_normal(width)) for width in (D, M))


DRAWN: dict[str, Callable[[np.random.Generator, Shape], Any]] = {  # arguments that are not just any numbers
    "beta": between(0.1, 0.9),
    "e": between(0.1, 0.9),  # of one sign: sums of features, mixed, are denominators
    "feature_map": lambda rng, shape: feature_maps.favor_positive(rng.standard_normal((4, D))),
    "gate": between(0.3, 0.9),
    "log_gate": between(-1.0, -0.1),
    "norm_global": norm,
    "norm_local": norm,
    "omega": between(-0.5, 0.5),  # with longer ones, random features are of either sign, and so are denominators
    "seen": lambda rng, shape: local.parts_of(N, N, window=1),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "bigbird": {"block": 1, "global_blocks": (0,)},
    "block_local": {"block": 3},
    "chunked_linear": {"causal": True},  # which others are not
    "linformer": {"causal": False},
    "local": {"window": 1},
    "long_short": {"window": 2},
    "longformer": {"window": 1, "global_tokens": [0]},
    "nystromformer": {"landmarks": R},
    # Held fixed: a hash has no slope
    "reformer": {"chunk": 2, "buckets": np.array([[0, 1, 0, 1, 0], [1, 1, 0, 0, 1]])},
    "rfa": {"causal": True},  # as its gate needs
    "sparse_transformer": {"kind": "strided", "stride": 2},
}
# Constants of a page that are made smaller, so that there is more than one tile or chunk.
SMALL = {"chunked_delta": {"T": 2}, "chunked_linear": {"T": 2}, "online_softmax": {"TILE": 2}}


def calls(page: ModuleType) -> list[Call]:
    """Calls of a page's ``forward``: where it can be causal, one that is not and one that is."""
    rng, rules = np.random.default_rng(0), rules_of(page.forward.page)
    parameters = inspect.signature(page.forward.page).parameters
    arrays = []
    for name, parameter in parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            axes = rules[name].kind if name in rules else None
            letters = axes.letters if isinstance(axes, Axes) else ()
            shape = tuple(SIZES[letter.rstrip("?")] for letter in letters)
            arrays.append(DRAWN.get(name, np.random.Generator.standard_normal)(rng, shape))
    options = OPTIONS.get(page.__name__.rpartition(".")[2], {})
    either = "causal" in parameters and "causal" not in options
    ways = [{"causal": False}, {"causal": True}] if either else [{}]
    return [Call((*arrays,), {**options, **way}) for way in ways]
