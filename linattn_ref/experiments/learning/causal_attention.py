"""The mechanisms that learn side by side, by the names that papers and commands use.

Reformer's rotations and the random features are drawn anew in each step of training; for an evaluation they are drawn
anew for each of its batches, from a seed of its own. Reformer has as many buckets as the sequence is chunks long,
rounded to an even number: two at 68 places, four at 128, 24 at 784.
"""

from typing import Any

import numpy as np

from linattn_ref.attention import linear, performer, reformer, softmax
from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.sparse import local
from linattn_ref.kernels import jit
from linattn_ref.nn import mechanism
from linattn_ref.nn.mechanism import Mechanism

__all__ = ["NAMES", "draw", "reads"]

NAMES = ("softmax", "linear", "lsh-1", "lsh-4", "performer", "local")
CHUNK = 32  # of lsh, as in the authors' code
WINDOW = 16  # of local


def draw(name: str, rng: np.random.Generator, *, width: int, length: int, causal: bool = True) -> Mechanism:
    """A mechanism for heads of ``width`` columns and sequences of ``length``.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`; ``lsh-R`` has ``R`` rounds.
    rng : numpy.random.Generator
        For what is random in it.
    width, length : int
    causal : bool

    Raises
    ------
    ValueError
        An unknown name.
    """
    options: dict[str, Any] = {"causal": causal, "kernels": jit}
    if name == "softmax":
        return mechanism.of(softmax, **options)
    if name == "linear":
        return mechanism.of(linear, **options)
    if name == "local":
        return mechanism.of(local, window=WINDOW, **options)
    if name == "performer":
        omega = feature_maps.orthogonal_gaussian(2 * width, width, rng, dtype=np.float32)
        return mechanism.of(performer, omega=omega, **options)
    if name.startswith("lsh-") and name[4:].isdecimal():
        buckets = max(2, 2 * round(length / CHUNK / 2))
        rotations = reformer.draw_rotations(int(name[4:]), width, buckets, rng, np.float32)
        return mechanism.of(reformer, rotations=rotations, chunk=CHUNK, **options)
    raise ValueError(f"attention: expected one of {', '.join(NAMES)}, got {name!r}")


def reads(name: str) -> int:
    """Projections of a token: 2 where queries and keys are the same."""
    return 2 if name.startswith("lsh") else 3
