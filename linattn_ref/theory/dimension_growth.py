"""How many dimensions Linformer's Theorem 1 takes: the smallest ``k`` that keeps the failure rate, against ``log(n)``.

Its proof takes ``k = 5 log(n) / (eps^2 - eps^3)``. The answer depends on which of the four errors of
`linattn_ref.theory.low_rank.Errors` is meant. Measured for normal queries, keys and values, ``n = 128 ... 8192``:

- every entry relative to ``|p_i| |v|``: a straight line in ``log(n)``, a sixth as steep as stated at ``eps = 0.5``;
- the vector relative to ``|P|_F |v|``: constant;
- the vector relative to ``|P v|``, as printed: constant, growing or proportional to ``n``, depending on the values.
"""

import bisect
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from linattn_ref.op import plain_numbers
from linattn_ref.op.options import check_sizes
from linattn_ref.theory.johnson_lindenstrauss import check_eps, check_probability, clopper_pearson
from linattn_ref.theory.low_rank import Action, action, attention_rows, errors_at, stated_dimension

__all__ = ["Growth", "Needed", "growth", "needed_dimension", "random_action", "smallest"]

LARGEST_DIMENSION = 1 << 40  # where `needed_dimension` gives up
WIDTH = 64  # of the queries and keys of `random_action`


class Needed(NamedTuple):
    """The reduced dimension that a failure probability requires: the proof's, and the measured one."""

    stated: int  # 5 log(n) / (eps^2 - eps^3), of n rows
    measured: int  # the smallest k at which the share of failures is at most the target
    low: int  # the smallest k at which the lower end of the confidence interval is at most the target
    high: int  # likewise its upper end


@plain_numbers
def needed_dimension(acted: Action, eps: float, event: str, *, failure: float = 0.1) -> Needed:
    """The smallest ``k`` whose measured failure rate is at most ``failure``.

    It is found by bisection: the errors of one `Action` shrink smoothly as ``k`` grows, and their rate of failure with
    them.

    Parameters
    ----------
    acted : Action
    eps : float
        ``0 < eps < 1``.
    event : str
        A field of `Errors`.
    failure : float
        Allowed failure probability.

    Raises
    ------
    ValueError
        A bad argument; or no ``k`` up to 2^40 suffices, or the trials are too few to tell ``failure`` from 0.
    """
    eps = float(check_eps(eps))
    check_probability("failure", failure)
    trials = acted.uniform.size
    if clopper_pearson(0, trials)[1] > failure:
        raise ValueError(f"failure: {trials} trials cannot tell {failure!r} from 0, more trials are needed")

    @functools.cache  # the three searches meet the same k again and again
    def rates(k: int) -> tuple[float, float, float]:
        if k > LARGEST_DIMENSION:
            raise ValueError(f"eps: the event fails too often at every k up to {LARGEST_DIMENSION}")
        failures = int(np.count_nonzero(~(errors_at(acted, k, event) <= eps)))
        return failures / trials, *clopper_pearson(failures, trials)

    return Needed(
        stated_dimension(acted.exact.size, eps),
        measured=smallest(lambda k: rates(k)[0] <= failure),
        low=smallest(lambda k: rates(k)[1] <= failure),
        high=smallest(lambda k: rates(k)[2] <= failure),
    )


def smallest(holds: Callable[[int], bool]) -> int:
    """The smallest positive integer at which ``holds`` turns true, once and for all: doubling, then bisection."""
    above = 1
    while not holds(above):
        above *= 2
    between = range(above // 2 + 1, above)
    return between.start + bisect.bisect_left(between, True, key=holds)


class Growth(NamedTuple):
    """The needed ``k`` against ``log(n)``, with straight lines fitted."""

    event: str
    eps: float
    failure: float
    lengths: tuple[int, ...]
    needed: tuple[Needed, ...]
    stated_slope: float  # 5 / (eps^2 - eps^3)
    measured_slope: float  # of the least squares line of k against log(n)
    measured_intercept: float
    exponent: float  # of the least squares line of log(k) against log(n): 0 constant or logarithm, 1 proportional to n


@plain_numbers
def growth(actions: Mapping[int, Action], eps: float, event: str, *, failure: float = 0.1) -> Growth:
    """The dimension that each length needs, from one `Action` per length (at least two lengths)."""
    lengths = tuple(sorted(actions))
    if len(lengths) < 2:
        raise ValueError(f"actions: expected at least two lengths, got {lengths}")
    needed = tuple(needed_dimension(actions[n], eps, event, failure=failure) for n in lengths)
    log_n, k = np.log(lengths), np.array([each.measured for each in needed])
    slope, intercept = np.polyfit(log_n, k, 1)
    exponent = np.polyfit(log_n, np.log(k), 1)[0]
    stated_slope = 5 / (eps**2 - eps**3)
    return Growth(event, eps, failure, lengths, needed, stated_slope, float(slope), float(intercept), float(exponent))


@plain_numbers
def random_action(n: int, *, trials: int, rng: Generator, value_mean: float = 1.0, tile: int = 256) -> Action:
    """`action` of softmax attention with normal queries and keys, in float32.

    Parameters
    ----------
    n : int
        Queries and keys.
    trials, rng
        As in `action`.
    value_mean : float
        ``v`` has independent ``N(value_mean, 1)`` entries; 0 is the hard case of the bound as printed.
    tile : int
        Rows of ``P`` held at once.
    """
    check_sizes(n=n)
    q, k = rng.standard_normal((2, n, WIDTH), np.float32)
    v = np.float32(value_mean) + rng.standard_normal(n, np.float32)
    return action(attention_rows(q, k, tile=tile), v, trials=trials, rng=rng)
