"""The mechanisms that learn side by side, by the names that papers and commands use.

Reformer's rotations and the random features are drawn anew in each step of training; for an evaluation they are drawn
anew for each of its batches, from a seed of its own. Reformer has as many buckets as the sequence is chunks long,
rounded to an even number: two at 68 places, four at 128, 24 at 784.
"""

import numpy as np

from linattn_ref.experiments.measuring import mechanisms
from linattn_ref.kernels import jit
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op.options import check_choice

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
    if not (name.startswith("lsh-") and name[4:].isdecimal()):
        check_choice("attention", name, NAMES)
    sizes = mechanisms.Sizes(length, width, features=2 * width, window=WINDOW, chunk=CHUNK)
    return mechanisms.of(name, sizes, rng, causal=causal, kernels=jit)


def reads(name: str) -> int:
    """Projections of a token: 2 where queries and keys are the same."""
    return 2 if name.startswith("lsh") else 3
