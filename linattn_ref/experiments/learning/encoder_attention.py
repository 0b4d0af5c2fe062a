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
from linattn_ref.experiments.learning import options
from linattn_ref.kernels import jit
from linattn_ref.nn import mechanism
from linattn_ref.nn.mechanism import Mechanism

__all__ = ["NAMES", "WITHOUT_K", "Inside", "Price", "Setting", "Shared", "make", "price", "told"]

LEAST = 8  # keys a query
# As `begin` of tasks takes it; 0: a quarter of the length
PRICE = "keys, mixtures or features a query (default: 64, or a quarter of the length with --quick)"
Price = Annotated[int, options.Option(PRICE, "K")]
Shared = Annotated[Sharing, options.Option("of linformer's projections")]


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
    each = [NAMES[name](setting, rng) for _ in range(setting.layers)]
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


def _softmax(s: Setting, rng: np.random.Generator) -> Mechanism:
    return mechanism.of(softmax, kernels=jit)


def _linear(s: Setting, rng: np.random.Generator) -> Mechanism:
    return mechanism.of(linear, kernels=jit)


def _nystromformer(s: Setting, rng: np.random.Generator) -> Mechanism:
    return mechanism.of(nystromformer, landmarks=s.k, kernels=jit)


def _performer(s: Setting, rng: np.random.Generator) -> Mechanism:
    omega = feature_maps.orthogonal_gaussian(s.k, s.head_width, rng, dtype=np.float32)
    return mechanism.of(performer, omega=omega, kernels=jit)


def _rfa(s: Setting, rng: np.random.Generator) -> Mechanism:
    omega = feature_maps.orthogonal_gaussian(s.k // 2, s.head_width, rng, dtype=np.float32)  # a sine and a cosine each
    return mechanism.of(rfa, omega=omega, kernels=jit)


def _local(s: Setting, rng: np.random.Generator) -> Mechanism:
    return mechanism.of(local, window=s.k // 2, kernels=jit)


def _longformer(s: Setting, rng: np.random.Generator) -> Mechanism:
    return mechanism.of(longformer, window=s.k // 2, global_tokens=np.array([0]), kernels=jit)


def _bigbird(s: Setting, rng: np.random.Generator) -> Mechanism:
    """Eight blocks a query: three in the window, two global, three random, or as many as are left."""
    block = s.k // 8
    count = -(-s.length // block)
    drawn = bigbird.draw_random_blocks(count, max(0, min(3, count - 5)), rng)
    return mechanism.of(bigbird, block=block, random_blocks=drawn, kernels=jit)


def _long_short(s: Setting, rng: np.random.Generator) -> Mechanism:
    return mechanism.of(long_short, window=max(1, s.k // 4))  # a query sees two widths, its own segment in the middle


def _reformer(s: Setting, rng: np.random.Generator) -> Mechanism:
    """Two rounds; in each a query sees two chunks."""
    chunk = s.k // 4
    buckets = max(2, 2 * round(s.length / chunk / 2))
    rotations = reformer.draw_rotations(2, s.head_width, buckets, rng, np.float32)
    return mechanism.of(reformer, rotations=rotations, chunk=chunk, kernels=jit)


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
# Of each, `encoder_names` has the title.
NAMES: dict[str, Callable[[Setting, np.random.Generator], Any]] = {
    "softmax": _softmax,
    "linformer": _linformer,
    "nystromformer": _nystromformer,
    "performer": _performer,
    "rfa": _rfa,
    "linear": _linear,
    "local": _local,
    "longformer": _longformer,
    "bigbird": _bigbird,
    "long-short": _long_short,
    "reformer": _reformer,
}
