"""The mechanisms that can stand in an encoder, by the names that commands use, at one price: ``k`` keys a query.

A query looks at ``k`` tokens, mixtures or landmarks, or is described by ``k`` features. What is random in a mechanism
is drawn once, for each layer by itself, and stays.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np

from linattn_ref.attention import linear, linformer, long_short, nystromformer, performer, reformer, rfa, softmax
from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.linformer_projections import Sharing
from linattn_ref.attention.sparse import bigbird, local, longformer
from linattn_ref.experiments.learning.options import Option
from linattn_ref.kernels import jit
from linattn_ref.nn import mechanism
from linattn_ref.nn.mechanism import Mechanism

__all__ = ["NAMES", "WITHOUT_K", "Inside", "Price", "Setting", "Shared", "make", "price", "told"]

LEAST = 8  # keys a query
# As `begin` of tasks takes it; 0: a quarter of the length
PRICE = "keys, mixtures or features a query (default: 64, or a quarter of the length with --quick)"
Price = Annotated[int, Option(PRICE, "K")]
Shared = Annotated[Sharing, Option("of linformer's projections")]


class Setting(NamedTuple):
    """Where a mechanism is to stand."""

    layers: int
    heads: int
    head_width: int
    length: int
    k: int = 64
    sharing: Sharing = "headwise"  # Linformer's
    pooled: bool = False  # whether Linformer's projections begin as mean pooling; drawn, otherwise


class Inside(NamedTuple):
    """A mechanism for each layer."""

    mechanisms: tuple[Mechanism, ...]
    own: list[tuple[Any, ...]] | None = None  # its own parameters, for each layer

    @property
    def reads(self) -> int:
        """Projections of a token."""
        return self.mechanisms[0].reads


def make(name: str, setting: Setting, rng: np.random.Generator) -> Inside:
    """The mechanism called ``name``, for each layer.

    Raises
    ------
    ValueError
        An unknown name, or a ``k`` that is above the length or too small.
    """
    if name not in NAMES:
        raise ValueError(f"attention: expected one of {', '.join(NAMES)}, got {name!r}")
    if name not in WITHOUT_K and not LEAST <= setting.k <= setting.length:
        raise ValueError(f"k: expected {LEAST} to the length, {setting.length}, got {setting.k}")
    if name == "linformer":
        return _linformer(setting, rng)
    page, options = NAMES[name]
    kernels: dict[str, Any] = {} if page is long_short else {"kernels": jit}  # it has none
    each = [mechanism.of(page, **options(setting, rng), **kernels) for _ in range(setting.layers)]
    own = [_mixtures(setting, rng) for _ in each] if name == "long-short" else None
    return Inside(tuple(each), own)


def price(k: int, length: int) -> int:
    """``k``, or a quarter of the length, but not less than every mechanism takes, if ``k`` is 0."""
    return k or max(LEAST, length // 4)


def told(name: str, setting: Setting) -> dict[str, Any]:
    """For a record."""
    k = None if name in WITHOUT_K else setting.k
    return {"attention": name, "k": k, "sharing": setting.sharing if name == "linformer" else None}


# --- Each, for one layer ----------------------------------------------------------------------------------------------


def _features(count: int, s: Setting, rng: np.random.Generator) -> dict[str, Any]:
    return {"omega": feature_maps.orthogonal_gaussian(count, s.head_width, rng, dtype=np.float32)}


def _bigbird(s: Setting, rng: np.random.Generator) -> dict[str, Any]:
    """Eight blocks a query: three in the window, two global, three random, or as many as are left."""
    block = s.k // 8
    count = -(-s.length // block)
    return {"block": block, "random_blocks": bigbird.draw_random_blocks(count, max(0, min(3, count - 5)), rng)}


def _reformer(s: Setting, rng: np.random.Generator) -> dict[str, Any]:
    """Two rounds; in each a query sees two chunks."""
    chunk = s.k // 4
    buckets = max(2, 2 * round(s.length / chunk / 2))
    return {"rotations": reformer.draw_rotations(2, s.head_width, buckets, rng, np.float32), "chunk": chunk}


def _linformer(s: Setting, rng: np.random.Generator) -> Inside:
    drawn = linformer.draw_projections(
        s.k, s.length, rng, layers=s.layers, heads=s.heads, sharing=s.sharing, dtype=np.float32
    )
    if s.pooled:
        for matrix in {id(x): x for layer in drawn for x in layer[:2]}.values():
            matrix[...] = linformer.mean_pool(s.k, s.length, np.float32)
    return Inside((mechanism.of(linformer, kernels=jit),) * s.layers, [(layer.e, layer.f) for layer in drawn])


def _mixtures(s: Setting, rng: np.random.Generator) -> tuple[Any, ...]:
    """Long-Short's own: as many mixtures as near keys, and norms that begin with gain 1."""
    d = s.head_width
    pair = [(np.ones(d, np.float32), np.zeros(d, np.float32)) for _ in range(4)]
    w_p = (rng.standard_normal((d, s.k // 2)) / np.sqrt(d)).astype(np.float32)
    return w_p, (pair[0], pair[1]), (pair[2], pair[3])


WITHOUT_K = ("softmax", "linear")
# Of each its page and, for one layer, its options; `encoder_names` has the title.
NAMES: dict[str, tuple[Any, Callable[[Setting, np.random.Generator], dict[str, Any]]]] = {
    "softmax": (softmax, lambda s, rng: {}),
    "linformer": (linformer, lambda s, rng: {}),
    "nystromformer": (nystromformer, lambda s, rng: {"landmarks": s.k}),
    "performer": (performer, lambda s, rng: _features(s.k, s, rng)),
    "rfa": (rfa, lambda s, rng: _features(s.k // 2, s, rng)),  # a sine and a cosine each
    "linear": (linear, lambda s, rng: {}),
    "local": (local, lambda s, rng: {"window": s.k // 2}),
    "longformer": (longformer, lambda s, rng: {"window": s.k // 2, "global_tokens": np.array([0])}),
    "bigbird": (bigbird, _bigbird),
    "long-short": (long_short, lambda s, rng: {"window": max(1, s.k // 4)}),  # two widths, its own in the middle
    "reformer": (reformer, _reformer),
}
