"""The mechanisms that can stand in an encoder, by the names that commands use, at one price: ``k`` keys per query.

A query looks at ``k`` tokens, mixtures or landmarks, or is described by ``k`` features. What is random in a mechanism
is drawn once, for each layer by itself, and stays.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np

from linattn_ref.attention import linformer
from linattn_ref.attention.linformer_projections import Sharing
from linattn_ref.experiments.learning.options import Option
from linattn_ref.experiments.measuring import mechanisms
from linattn_ref.kernels import jit
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op.options import check_choice

__all__ = ["NAMES", "TITLES", "WITHOUT_K", "Inside", "Price", "Setting", "Shared", "make", "price", "told"]

LEAST = 8  # keys per query
# As `begin` of tasks takes it; 0: a quarter of the length
PRICE = "keys, mixtures or features per query (default: 64, or a quarter of the length with --quick)"
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
    check_choice("attention", name, NAMES)
    if name not in WITHOUT_K and not LEAST <= setting.k <= setting.length:
        raise ValueError(f"k: expected {LEAST} to the length, {setting.length}, got {setting.k}")
    own = _projections(setting, rng) if name == "linformer" else None
    sizes = mechanisms.Sizes(setting.length, setting.head_width, **NAMES[name][1](setting))
    kernels: dict[str, Any] = {} if name == "long-short" else {"kernels": jit}  # it has none
    each = tuple(mechanisms.of(name, sizes, rng, **kernels) for _ in range(setting.layers))
    return Inside(each, [_mixtures(setting, rng) for _ in each] if name == "long-short" else own)


def price(k: int, length: int) -> int:
    """``k``, or a quarter of the length, but not less than every mechanism takes, if ``k`` is 0."""
    return k or max(LEAST, length // 4)


def told(name: str, setting: Setting) -> dict[str, Any]:
    """What a record says of a mechanism."""
    k = None if name in WITHOUT_K else setting.k
    return {"attention": name, "k": k, "sharing": setting.sharing if name == "linformer" else None}


# --- What `k` buys, for one layer -------------------------------------------------------------------------------------


def _bigbird(s: Setting) -> dict[str, Any]:
    """Eight blocks per query: three in the window, two global, three random, or as many as are left."""
    block = s.k // 8
    return {"block": block, "random_blocks": max(0, min(3, -(-s.length // block) - 5))}


def _projections(s: Setting, rng: np.random.Generator) -> list[tuple[Any, ...]]:
    """Linformer's own."""
    drawn = linformer.draw_projections(
        s.k, s.length, rng, layers=s.layers, heads=s.heads, sharing=s.sharing, dtype=np.float32
    )
    for layer in drawn if s.pooled else ():
        layer.e[...] = layer.f[...] = linformer.mean_pool(s.k, s.length, np.float32)
    return [(layer.e, layer.f) for layer in drawn]


def _mixtures(s: Setting, rng: np.random.Generator) -> tuple[Any, ...]:
    """Long-Short's own: as many mixtures as near keys, and norms that begin with gain 1."""
    d = s.head_width
    pair = [(np.ones(d, np.float32), np.zeros(d, np.float32)) for _ in range(4)]
    w_p = (rng.standard_normal((d, s.k // 2)) / np.sqrt(d)).astype(np.float32)
    return w_p, (pair[0], pair[1]), (pair[2], pair[3])


WITHOUT_K = ("softmax", "linear")
# Of each its title in figures and, of one layer, its sizes, fields of `mechanisms.Sizes`.
NAMES: dict[str, tuple[str, Callable[[Setting], dict[str, Any]]]] = {
    "softmax": ("softmax", lambda s: {}),
    "linformer": ("Linformer", lambda s: {}),
    "nystromformer": ("Nyströmformer", lambda s: {"landmarks": s.k}),
    "performer": ("Performer", lambda s: {"features": s.k}),
    "rfa": ("RFA", lambda s: {"features": s.k // 2}),  # a sine and a cosine each
    "linear": ("linear, elu + 1", lambda s: {}),
    "local": ("local window", lambda s: {"window": s.k // 2}),
    "longformer": ("Longformer", lambda s: {"window": s.k // 2}),
    "bigbird": ("BigBird", _bigbird),
    "long-short": ("Long-Short", lambda s: {"window": max(1, s.k // 4)}),  # two widths, its own in the middle
    "reformer": ("Reformer (LSH)", lambda s: {"rounds": 2, "chunk": s.k // 4}),  # a query sees two chunks in each
}
TITLES = {name: title for name, (title, _) in NAMES.items()}
