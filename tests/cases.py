"""Every mechanism on one line each: a line in ``CASES`` buys all the tests in ``contract/``.

To add a mechanism: a function that draws its arrays, if :func:`qkv` does not; one that computes its output the slow,
obvious way, if ``matrix(q, k) @ v`` does not; and the line. What a line can say stands beside the fields of
:class:`case.Case`; that a new one says too much, a test will tell.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from case import Bad, Case, Setting

from linattn_ref.attention import feature_maps, linear, linformer, linformer_linear, softmax
from linattn_ref.attention.arguments import zero_masked

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


def positive_features(rng, s, dtype):
    """Performer's positive features, exponentials: stabilised, so that ``eps`` is 0."""
    omega = rng.standard_normal((FEATURES, s.d))
    return {"feature_map": feature_maps.favor_positive(omega), "eps": 0.0}


# --- What they compute, the slow way --------------------------------------------------------------------------------


def matrix_times_mixed_values(call):
    """``matrix(q, k, e) @ (f @ v)``."""
    q, k, v, e, f = call.arrays.values()
    p = linformer.matrix(q, k, e, **call.accepted_by(linformer.matrix))
    return p @ (f @ zero_masked(v, call.options.get("key_mask")))


def mixed_similarities(call):
    """``phi(q) (E phi(k))^T`` as a matrix, its rows divided by their sums, times ``F v``."""
    q, k, v, e, f = call.arrays.values()
    key_mask = call.options.get("key_mask")
    phi_q, phi_k = (feature_maps.elu_plus_one.forward(x)[0] for x in (q, k))
    similarity = phi_q @ (e @ zero_masked(phi_k, key_mask)).swapaxes(-1, -2)
    denominator = similarity.sum(axis=-1, keepdims=True) + 1e-6
    return similarity @ (f @ zero_masked(v, key_mask)) / denominator


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
        r"^f: expected R = 3 rows like e",
    ),
)
BAD_LINFORMER = (
    *BAD_PROJECTIONS,
    Bad("causal", lambda call: call.change(causal=True), ValueError, r"^causal: .*would see the future"),
)


def row_and_sum(s):
    """The output and the log-sum-exp or denominator."""
    return s.n * (s.m + 1)


def features_and_row(s):
    """``phi`` of queries and keys (C = D) and what its gradient needs, the state before and after, and the rows."""
    return 2 * (s.n + s.n_keys) * s.d + 2 * s.d * (s.m + 1) + row_and_sum(s)


def random_features_and_row(s):
    """``C = FEATURES``, phi all that its gradient needs, three states with a scale: a masked first key is a piece."""
    return FEATURES * (s.n + s.n_keys) + 3 * FEATURES * (s.m + 2) + row_and_sum(s)


def mixed(s):
    """The mixed keys and values."""
    return REDUCED * (s.d + s.m)


SOFTMAX = partial(Case, module=softmax, draw=qkv, rooms=ROOMS, saved=row_and_sum)
DENSE = partial(
    Case,
    module=softmax,
    draw=qkv,
    forward_name="dense_forward",
    backward_name="dense_backward",
    saved=lambda s: s.n * s.n_keys,
)
LINEAR = partial(Case, module=linear, draw=qkv, rooms=ROOMS, saved=features_and_row)
# Exponents omega x - |x|^2/2 of up to 100, in which exp() multiplies the rounding: ten times that of softmax's scores.
POSITIVE = partial(LINEAR, draw_options=positive_features, saved=random_features_and_row, roundings=640)
LINFORMER = partial(
    Case,
    module=linformer,
    rooms=ROOMS,
    oracle=matrix_times_mixed_values,
    key_axes=PROJECTED,
    bad=BAD_LINFORMER,
    saved=lambda s: mixed(s) + row_and_sum(s),
)
LINFORMER_LINEAR = partial(
    Case,
    module=linformer_linear,
    oracle=mixed_similarities,
    key_axes=PROJECTED,
    bad=BAD_PROJECTIONS,
    saved=lambda s: mixed(s) + features_and_row(s),
)

CASES = (
    SOFTMAX("softmax"),
    SOFTMAX("softmax causal", **CAUSAL, recurrent=True),
    DENSE("softmax dense"),
    DENSE("softmax dense causal", **CAUSAL),
    LINEAR("linear"),
    LINEAR("linear causal", **CAUSAL, recurrent=True),
    POSITIVE("linear positive features"),
    POSITIVE("linear positive features causal", **CAUSAL, recurrent=True),
    LINFORMER("linformer", draw=qkv_shared_projections, shared=("e", "f")),
    LINFORMER("linformer per head", draw=qkv_head_projections),
    LINFORMER_LINEAR("linformer linear", draw=qkv_positive_projections),
)


def each_setting(where: Callable[[Setting], bool] = lambda setting: True) -> pytest.MarkDecorator:
    """Run a test for every setting of which ``where`` is true. That there are none is an error, not a skipped test."""
    settings = [
        Setting(case, room, masked)
        for case in CASES
        for room in case.rooms or (None,)
        for masked in ((False, True) if case.key_mask else (False,))
    ]
    chosen = [setting for setting in settings if where(setting)]
    assert chosen, "no case has this: the test would never run"
    return pytest.mark.parametrize("setting", chosen, ids=str)
