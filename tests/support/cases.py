"""Every mechanism on one line each: a line in ``CASES`` buys all the tests in ``contract/``.

To add a mechanism: its formula for one head in plain loops, in ``plain_loops.py``; a function that draws its arrays, if
:func:`qkv` does not; and the line. What a line can say stands beside the fields of :class:`case.Case`; that a new one
says too much, a test will tell.
"""

from collections.abc import Callable
from functools import cache, partial

import case
import numpy as np
import plain_loops
import pytest
from case import Bad, Case, Setting
from delta_cases import DELTA_CASES
from local_cases import LOCAL_CASES
from long_short_cases import LONG_SHORT_CASES
from lsh_cases import LSH_CASES
from pattern_cases import PATTERN_CASES, row_and_sum, row_and_two
from rfa_cases import RFA_CASES

from linattn_ref.attention import (
    chunked_linear,
    feature_maps,
    linear,
    linformer,
    linformer_linear,
    nystromformer,
    online_softmax,
    performer,
    softmax,
)

REDUCED = 3  # R, unless there are fewer keys
FEATURES = 6  # C of random features


# --- What mechanisms are called with --------------------------------------------------------------------------------


def qkv(rng, s, dtype):
    """Queries, keys and values."""
    shapes = {"q": (s.n, s.d), "k": (s.n_keys, s.d), "v": (s.n_keys, s.m)}
    return {name: rng.standard_normal((*s.leading, *shape)).astype(dtype) for name, shape in shapes.items()}


def qkv_shared_projections(rng, s, dtype):
    """And one ``E`` and ``F`` for all heads."""
    return {**qkv(rng, s, dtype), **projections(rng, (), s.n_keys, dtype)}


def qkv_head_projections(rng, s, dtype):
    """And an ``E`` and ``F`` for each head."""
    return {**qkv(rng, s, dtype), **projections(rng, s.leading, s.n_keys, dtype)}


def qkv_positive_projections(rng, s, dtype):
    """And an ``E`` without negative entries: similarities of both signs can add up to 0, a pole of the output."""
    arrays = qkv_head_projections(rng, s, dtype)
    return {**arrays, "e": abs(arrays["e"])}


def projections(rng, leading, n_keys, dtype):
    rows = min(REDUCED, n_keys)
    return {name: (rng.standard_normal((*leading, rows, n_keys)) / rows**0.5).astype(dtype) for name in "ef"}


def qkv_convolution(rng, s, dtype):
    """And a row of five weights for each head."""
    return {**qkv(rng, s, dtype), "conv": rng.standard_normal((*s.leading[-1:], 5)).astype(dtype)}


def qkv_in_segments(rng, s, dtype):
    """Queries and keys in three groups, so that landmarks are far apart: what is exact has to have an inverse."""
    arrays, width = qkv(rng, s, dtype), s.d**0.25
    for name in "qk":
        n, groups = arrays[name].shape[-2], few_landmarks(rng, s, dtype)["landmarks"]
        place = np.concatenate([np.full(len(part), r) for r, part in enumerate(np.array_split(range(n), groups))])
        arrays[name] = (0.3 * arrays[name] + 2 * (place - (groups - 1) / 2)[:, None] / width).astype(dtype)
    return arrays


def few_landmarks(rng, s, dtype):
    """``R``: no more than queries or keys."""
    return {"landmarks": min(REDUCED, s.n, s.n_keys)}


@cache
def directions(d):
    """Always the same, so that the oracle knows them too."""
    return np.random.default_rng(1).standard_normal((FEATURES, d))


def positive_features(rng, s, dtype):
    """Performer's positive features, exponentials: stabilised, so that ``eps`` is 0."""
    return {"feature_map": feature_maps.favor_positive(directions(s.d).astype(dtype)), "eps": 0.0}


def positive_in_loops(x):
    return plain_loops.positive(x, directions(len(x)))


def qkv_directions(rng, s, dtype):
    """And a Performer's random directions."""
    return {**qkv(rng, s, dtype), "omega": rng.standard_normal((FEATURES, s.d)).astype(dtype)}


def qkv_short_directions(rng, s, dtype):
    """Short queries and keys: where they are not, the denominators of features of either sign pass through 0."""
    arrays = qkv_directions(rng, s, dtype)
    return {**arrays, **{name: dtype(0.05) * arrays[name] for name in "qk"}}


def qkv_sided_directions(rng, s, dtype):
    """Every product with a direction away from 0, where ReLU has its kink; half of the directions give negative ones.

    No difference quotient is of use across a kink.
    """
    arrays = qkv_directions(rng, s, dtype)
    signs = np.resize([[1], [-1]], (FEATURES, 1)).astype(dtype)
    positive = {name: abs(arrays[name]) + dtype(0.1) for name in ("q", "k", "omega")}
    return {**arrays, **positive, "omega": signs * positive["omega"]}


# --- The cases ------------------------------------------------------------------------------------------------------

ROOMS = ("reference", "jit")
CAUSAL = {"options": {"causal": True}, "causal": True}
PROJECTED = {"k": -2, "v": -2, "e": -1, "f": -1}  # the columns of E and F belong to keys too

BAD_PROJECTIONS = (
    Bad(
        "R above L",
        lambda call: call.change(arrays={name: np.repeat(call.arrays[name], 4, axis=-2) for name in "ef"}),
        ValueError,
        r"^e: expected R <= L = 7, got R = 12",
    ),
    Bad(
        "unequal R",
        lambda call: call.change(arrays={"f": call.arrays["f"][..., :-1, :]}),
        ValueError,
        r"^f: expected shape \(\.\.\., R, L\) = \(.*3, 7\), got \(.*2, 7\)",
    ),
)
BAD_LINFORMER = (
    *BAD_PROJECTIONS,
    Bad("causal", lambda call: call.change(causal=True), ValueError, r"^causal: .*would see the future"),
)


def features_and_row(s):
    """``phi`` of queries and keys (C = D) and what its gradient needs, the state before and after, and the rows."""
    return 2 * (s.n + s.n_keys) * s.d + 2 * s.d * (s.m + 1) + row_and_sum(s)


def random_features_and_row(s):
    """``C = FEATURES``, phi all that its gradient needs, three states with a scale: a masked first key is a piece."""
    return 1 + FEATURES * (s.n + s.n_keys) + 3 * FEATURES * (s.m + 2) + row_and_sum(s)


def directions_and_row(s, per_direction=1):
    """The same of a Performer, with one or two features per direction."""
    return random_features_and_row(s) * per_direction


def factors_and_row(s, per_direction=1):
    """On the page, causal: ``phi``, a factor for every rise of ``r``, the state after, and the rows."""
    return per_direction * FEATURES * (2 * s.n + s.n_keys + s.m + 2) + row_and_sum(s)


def products_and_row(s):
    """Of ReLU features phi and the products before the kink; two states and a count of steps."""
    return 1 + 2 * FEATURES * (s.n + s.n_keys) + 2 * FEATURES * (s.m + 1) + row_and_sum(s)


def mixed(s):
    """The mixed keys and values."""
    return REDUCED * (s.d + s.m)


def around_landmarks(s):
    """Landmarks of queries and keys, what they gather, ``A``, six iterates and the last, and how long segments are."""
    return row_and_two(s) + REDUCED * (2 * s.d + 2 * s.m + 8 * REDUCED + 5) + 10


def weights_around_landmarks(s):
    """On the page ``F`` and ``B`` in place of the output and its two numbers per row."""
    return around_landmarks(s) - row_and_two(s) + REDUCED * (s.n + s.n_keys)


SOFTMAX = partial(
    Case,
    module=softmax,
    oracle=plain_loops.softmax,
    draw=qkv,
    rooms=ROOMS,
    saved=row_and_two,
    saved_in={"reference": lambda s: s.n * s.n_keys},
)
CHUNKED = partial(Case, module=chunked_linear, oracle=plain_loops.linear, draw=qkv, saved=features_and_row)
ONLINE = partial(Case, module=online_softmax, oracle=plain_loops.softmax, draw=qkv, saved=row_and_two)
LINEAR = partial(Case, module=linear, oracle=plain_loops.linear, draw=qkv, rooms=ROOMS, saved=features_and_row)
# Exponents omega x - |x|^2/2 of up to 100, in which exp() multiplies the rounding: ten times that of softmax's scores.
POSITIVE = partial(
    LINEAR,
    oracle=partial(plain_loops.linear, phi=positive_in_loops),
    draw_options=positive_features,
    saved=random_features_and_row,
    roundings=640,
)
LINFORMER = partial(
    Case,
    module=linformer,
    rooms=ROOMS,
    oracle=plain_loops.linformer,
    key_axes=PROJECTED,
    bad=BAD_LINFORMER,
    saved=lambda s: mixed(s) + row_and_two(s),
    saved_in={"reference": lambda s: mixed(s) + s.n * REDUCED},
)
LINFORMER_LINEAR = partial(
    Case,
    module=linformer_linear,
    oracle=plain_loops.linformer_linear,
    key_axes=PROJECTED,
    bad=BAD_PROJECTIONS,
    saved=lambda s: mixed(s) + features_and_row(s),
)
PERFORMER = partial(
    Case,
    module=performer,
    draw=qkv_directions,
    rooms=ROOMS,
    oracle=plain_loops.performer,
    shared=("omega",),
    constants=("omega",),
    roundings=640,  # as for POSITIVE
    bad=(
        Bad("unknown kind", lambda call: call.change(kind="cosine"), ValueError, r"^kind: expected one of trig, pos"),
        Bad("eps with exponentials", lambda call: call.change(kind="trig", eps=1e-6), ValueError, r"^eps: must be 0"),
        Bad(
            "wide omega",
            lambda call: call.change(arrays={"omega": np.repeat(call.arrays["omega"], 2, axis=-1)}),
            ValueError,
            r"^omega: expected shape \(m, D\) = \(6, 4\), got \(6, 8\)",
        ),
    ),
)
# A later key that raises the scale of trig features cuts the pass elsewhere, which sums up the same numbers in another
# order; positive ones fall with the length of a key.
PERFORMER_KINDS = {
    "trig": {
        "draw": qkv_short_directions,
        "causality": "rounding",
        "saved": partial(directions_and_row, per_direction=2),
    },
    "positive": {"saved": directions_and_row},
    "hyperbolic": {"saved": partial(directions_and_row, per_direction=2)},
    "relu": {"draw": qkv_sided_directions, "saved": products_and_row},
}
CAUSAL_PERFORMERS = {
    "positive": {"reference": factors_and_row},
    "hyperbolic": {"reference": partial(factors_and_row, per_direction=2)},
}
NYSTROM = partial(
    Case,
    module=nystromformer,
    oracle=plain_loops.nystromformer,
    draw=qkv,
    draw_options=few_landmarks,
    rooms=ROOMS,
    saved=around_landmarks,
    saved_in={"reference": weights_around_landmarks},
    padding_is_truncation=False,  # padding moves the segments that landmarks are means of
)
CASES = (
    SOFTMAX("softmax"),
    SOFTMAX("softmax causal", **CAUSAL, recurrent=True),
    ONLINE("online softmax"),
    ONLINE("online softmax causal", **CAUSAL),
    LINEAR("linear"),
    LINEAR("linear causal", **CAUSAL, recurrent=True),
    CHUNKED("chunked linear", **CAUSAL, widths=(chunked_linear.T,)),
    POSITIVE("linear positive features"),
    POSITIVE("linear positive features causal", **CAUSAL, recurrent=True, saved_in={"reference": factors_and_row}),
    *(PERFORMER(f"performer {kind}", **rest, options={"kind": kind}) for kind, rest in PERFORMER_KINDS.items()),
    *(
        PERFORMER(
            f"performer {kind} causal",
            **rest,
            options={"kind": kind, "causal": True},
            causal=True,
            recurrent=True,
            saved_in=CAUSAL_PERFORMERS.get(kind, {}),
        )
        for kind, rest in PERFORMER_KINDS.items()
    ),
    *RFA_CASES,
    *DELTA_CASES,
    *LONG_SHORT_CASES,
    LINFORMER("linformer", draw=qkv_shared_projections, shared=("e", "f")),
    LINFORMER("linformer per head", draw=qkv_head_projections),
    LINFORMER_LINEAR("linformer linear", draw=qkv_positive_projections),
    NYSTROM("nystromformer"),
    NYSTROM("nystromformer exact", draw=qkv_in_segments, options={"pinv": "exact"}, any_scale=False),
    NYSTROM(
        "nystromformer convolution",
        draw=qkv_convolution,
        rows=("conv",),
        square=True,
        optional=("conv",),
    ),
    *LOCAL_CASES,
    *PATTERN_CASES,
    *LSH_CASES,
)


def settings() -> list[Setting]:
    """Each case in each of its rooms, without a mask and with one. (In the CUDA simulator the cases are others.)"""
    return [Setting(case, room, masked) for case in CASES for room in case.rooms or (None,) for masked in (False, True)]


def each_setting(where: Callable[[Setting], bool] = lambda setting: True) -> pytest.MarkDecorator:
    """Run a test for every setting of which ``where`` is true. That there are none is an error, not a skipped test."""
    return pytest.mark.parametrize("setting", [pytest.param(s, id=str(s), marks=marks) for s, marks in _chosen(where)])


def each_setting_and_dtype(where: Callable[[Setting], bool] = lambda setting: True) -> pytest.MarkDecorator:
    """Likewise, and the dtypes it is to be tested in: one by one where each costs machine code of its own."""
    parameters = []
    for s, marks in _chosen(where):
        apart = [(dtype,) for dtype in case.DTYPES] if s.room == "jit" else [case.DTYPES]
        for dtypes in apart:
            also = [pytest.mark.slow] if dtypes == (np.float32,) and s.room == "jit" else []
            name = "-".join([str(s), *(dtype.__name__ for dtype in dtypes if also)])
            parameters.append(pytest.param(s, dtypes, id=name, marks=[*marks, *also]))
    return pytest.mark.parametrize(("setting", "dtypes"), parameters)


each_compiled_dtype = pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
"""For the test of a single kernel: the default run compiles it once."""


def _chosen(where: Callable[[Setting], bool]) -> list[tuple[Setting, list[pytest.MarkDecorator]]]:
    chosen = [setting for setting in settings() if where(setting)]
    assert chosen, "no case has this: the test would never run"
    return [(setting, [pytest.mark.slow] if setting.case.slow else []) for setting in chosen]
