"""How every mechanism is called, at sizes of its own: in a layer, in comparisons at equal cost, in a chapter's table.

Beyond queries, keys and values a mechanism has options, some of which are drawn once, and some learn arrays of their
own. An entry in `OPTIONS`, if it has some, is all that a further one needs to be compared with the others.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

import linattn_ref.attention
from linattn_ref.attention import linformer, reformer
from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.sparse import bigbird
from linattn_ref.nn import mechanism
from linattn_ref.op import Array

__all__ = ["Sizes", "inputs", "learned", "of", "options", "page"]

ROUNDS = "lsh-"  # as papers call Reformer with so many rounds


class Sizes(NamedTuple):
    """Where a mechanism stands, and how much it may look at."""

    length: int
    width: int  # of a head
    reduced: int = 0  # Linformer's k
    landmarks: int = 0  # and Long-Short's mixtures
    features: int = 0  # directions
    window: int = 0  # keys on either side
    global_tokens: tuple[int, ...] = (0,)
    block: int = 0
    random_blocks: int = 3
    stride: int = 0
    rounds: int = 0
    chunk: int = 0
    buckets: int = 0  # 0: as many as chunks, rounded to an even number


def page(name: str) -> Any:
    """The page of a mechanism; of Reformer, too, by the name ``lsh-4``."""
    return getattr(linattn_ref.attention, _of_page(name))


def _of_page(name: str) -> str:
    return "reformer" if name.startswith(ROUNDS) else name.replace("-", "_")


def of(name: str, sizes: Sizes, rng: Generator, **more: Any) -> mechanism.Mechanism:
    """As a layer takes it; ``lsh-4`` is Reformer with four rounds."""
    return mechanism.of(page(name), **options(name, sizes, rng), **more)


def inputs(name: str, q: Array, k: Array, v: Array) -> dict[str, Array]:
    """What is made from the tokens, by name. Reformer's queries are its keys; global ones are those of all tokens."""
    if page(name) is reformer:
        return {"qk": q, "v": v}
    given = {"q": q, "k": k, "v": v}
    return given | {f"{one}_global": x for one, x in given.items()} if name == "longformer" else given


def learned(name: str, s: Sizes, rng: Generator) -> dict[str, Any]:
    """Arrays that are learned, as they may begin: mean pooling; mixtures by random numbers, without norms."""
    if name.startswith("linformer"):
        return dict.fromkeys("ef", linformer.mean_pool(s.reduced, s.length, np.float32))
    if name == "long_short":
        w_p = rng.standard_normal((s.width, s.landmarks), np.float32)
        return {"w_p": w_p, "norm_local": None, "norm_global": None}
    return {}


def options(name: str, s: Sizes, rng: Generator) -> dict[str, Any]:
    """Options; what is random in them is drawn, in float32."""
    if name.startswith(ROUNDS):
        s = s._replace(rounds=int(name.removeprefix(ROUNDS)))
    return OPTIONS.get(_of_page(name), lambda s, rng: {})(s, rng)


def _features(s: Sizes, rng: Generator) -> dict[str, Any]:
    return {"omega": feature_maps.orthogonal_gaussian(s.features, s.width, rng, dtype=np.float32)}


def _blocks(s: Sizes, rng: Generator) -> dict[str, Any]:
    drawn = bigbird.draw_random_blocks(-(-s.length // s.block), s.random_blocks, rng)
    return {"block": s.block, "random_blocks": drawn}


def _hashing(s: Sizes, rng: Generator) -> dict[str, Any]:
    buckets = s.buckets or max(2, 2 * round(s.length / s.chunk / 2))
    return {"rotations": reformer.draw_rotations(s.rounds, s.width, buckets, rng, np.float32), "chunk": s.chunk}


OPTIONS: dict[str, Callable[[Sizes, Generator], dict[str, Any]]] = {
    "nystromformer": lambda s, rng: {"landmarks": s.landmarks},
    "performer": _features,
    "rfa": _features,
    "local": lambda s, rng: {"window": s.window},
    "block_local": lambda s, rng: {"block": s.block},
    "longformer": lambda s, rng: {"window": s.window, "global_tokens": s.global_tokens},
    "bigbird": _blocks,
    "sparse_transformer": lambda s, rng: {"kind": "strided", "stride": s.stride},
    "long_short": lambda s, rng: {"window": s.window},
    "reformer": _hashing,
}
