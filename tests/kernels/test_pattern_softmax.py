"""Pattern softmax, page and loop, against dense softmax over the same pairs, and what it promises besides."""

import math
import tracemalloc
from typing import NamedTuple

import numba
import numpy as np
import pattern_page
import pytest
from cases import each_compiled_dtype
from softmax_page import log_sum_exp
from threads import several_threads

from linattn_ref.attention import bigbird
from linattn_ref.attention.sparse import part
from linattn_ref.kernels.jit.loops.simd.vector import lanes
from linattn_ref.kernels.jit.loops.sparse import pattern_softmax as kernel

WIDTH = lanes(np.empty(0, np.float32))
loops = pytest.mark.parametrize("loop", [pattern_page, kernel], ids=["page", "jit"])
NAMES = ("out", "lse", "d_q", "d_k", "d_v")


def in_blocks(n, n_keys):
    """Three blocks of 50, one of them ragged: sees two that are apart; all; nothing."""
    return (part.blocks(n, n_keys, 50, [[0, 2], [0, 1, 2], []]),)


# Name: a function of N and L, and such a pair of lengths.
PATTERNS = {
    "one pair": (lambda n, n_keys: (part.band(n, n_keys, 0, 0),), 1, 1),
    "no parts": (lambda n, n_keys: (), 5, 7),
    "no pairs": (lambda n, n_keys: (part.columns(n, n_keys, []),), 5, 7),
    "window": (lambda n, n_keys: (part.band(n, n_keys, -9, 9),), 71, 71),
    "wide window": (lambda n, n_keys: (part.band(n, n_keys, -150, 150),), 331, 331),
    "more queries than keys": (lambda n, n_keys: (part.band(n, n_keys, -9, 9),), 100, 41),
    "a late block": (lambda n, n_keys: (part.band(n, n_keys, -9, 0, shift=n_keys - n),), 5, 150),
    "dilated": (lambda n, n_keys: (part.band(n, n_keys, -4, 4, dilation=7),), 131, 131),
    "window and columns": (
        lambda n, n_keys: (part.band(n, n_keys, -9, 9, without=[0, 40]), part.columns(n, n_keys, [0, 40])),
        131,
        131,
    ),
    "stride": (
        lambda n, n_keys: (part.band(n, n_keys, -10, 0), part.band(n, n_keys, -n_keys, -1, dilation=11)),
        131,
        131,
    ),
    "columns before": (lambda n, n_keys: (part.interval(np.zeros(n), np.arange(n) // 2, n_keys, [3, 1, 60]),), 70, 70),
    "blocks": (in_blocks, 120, 131),
}
patterns = pytest.mark.parametrize("name", PATTERNS)


class Inputs(NamedTuple):
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    d_out: np.ndarray
    key_mask: np.ndarray | None
    pattern: part.Pattern
    scale: float


def draw(name, dtype=np.float64, masked=False, leading=(2,), widths=(5, 3)):
    """Normal numbers; masked rows of k and v are 0, as `attention` hands them over. The last head sees no key."""
    make, n, n_keys = PATTERNS[name]
    rng = np.random.default_rng(0)
    d, m = widths
    q, k, v, d_out = (
        rng.standard_normal((*leading, *shape)).astype(dtype) for shape in ((n, d), (n_keys, d), (n_keys, m), (n, m))
    )
    key_mask = None
    if masked:
        key_mask = rng.random((*leading, n_keys)) < 0.6
        key_mask[-1] = False
        k[~key_mask], v[~key_mask] = 0, 0
    return Inputs(q, k, v, d_out, key_mask, make(n, n_keys), d**-0.5)


def run(loop, inputs):
    """``out, log_sum_exp, d_q, d_k, d_v``."""
    q, k, v, d_out, *rest = inputs
    out, m, share = loop.forward(q, k, v, *rest)
    return out, log_sum_exp(m, share), *loop.backward(d_out, q, k, v, out, m, share, *rest)


def allowed(inputs):
    """``(..., N, L)``."""
    seen = np.zeros((inputs.q.shape[-2], inputs.k.shape[-2]), bool)
    seen[part.pairs(inputs.pattern)] = True
    return seen if inputs.key_mask is None else seen & inputs.key_mask[..., None, :]


def dense(inputs):
    """The same by the textbook, in float64."""
    q, k, v, d_out = (x.astype(np.float64) for x in inputs[:4])
    scores = np.where(allowed(inputs), inputs.scale * (q @ k.swapaxes(-1, -2)), -np.inf)  # (..., N, L)
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = weights.sum(axis=-1, keepdims=True)
    p = weights / np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isneginf(largest), 0, largest))[..., 0]
    d_p = d_out @ v.swapaxes(-1, -2)
    d_scores = inputs.scale * p * (d_p - (d_p * p).sum(axis=-1, keepdims=True))
    return p @ v, lse, d_scores @ k, d_scores.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d_out


def assert_close(got, expected, dtype):
    """To 64 roundings of the largest number: scores are below 10, sums have up to some 300 terms; the worst is 12."""
    for name, x, y in zip(NAMES, got, expected, strict=True):
        assert x.dtype == dtype
        finite = np.isfinite(y)
        np.testing.assert_array_equal(x[~finite], y[~finite], err_msg=name)
        largest = max(1, abs(y[finite]).max(initial=0))
        np.testing.assert_allclose(x[finite], y[finite], rtol=0, atol=64 * np.finfo(dtype).eps * largest, err_msg=name)


# --- The numbers ----------------------------------------------------------------------------------------------------


@each_compiled_dtype
@pytest.mark.parametrize("masked", [False, True])
@patterns
@loops
def test_is_dense_softmax_over_the_pairs(loop, name, masked, dtype):
    inputs = draw(name, dtype, masked)
    assert_close(run(loop, inputs), dense(inputs), dtype)


@each_compiled_dtype
@pytest.mark.parametrize("leading", [(), (2, 1, 2), (kernel.shared.TASKS + 1,), (0,)], ids=str)
@loops
def test_any_number_of_heads(loop, leading, dtype):
    """None; more than the tasks in which the backward pass shares out the keys of few heads."""
    inputs = draw("window and columns", dtype, leading=leading)
    assert_close(run(loop, inputs), dense(inputs), dtype)


@each_compiled_dtype
@loops
def test_widths_beyond_a_vector(loop, dtype):
    inputs = draw("stride", dtype, widths=(WIDTH + 3, 2 * WIDTH + 1))
    assert_close(run(loop, inputs), dense(inputs), dtype)


@each_compiled_dtype
@loops
def test_parts_in_another_order_give_the_same(loop, dtype):
    """The next part takes up where the last one stopped; which comes first does not matter, but for rounding."""
    inputs = draw("stride", dtype)
    assert_close(run(loop, inputs._replace(pattern=inputs.pattern[::-1])), dense(inputs), dtype)


@loops
def test_one_part_or_many(loop):
    """A window cut into its diagonals, a part each."""
    inputs = draw("window")
    n = inputs.q.shape[-2]
    pieces = tuple(part.band(n, n, s, s) for s in range(-9, 10))
    for name, x, y in zip(NAMES, run(loop, inputs._replace(pattern=pieces)), run(loop, inputs), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-13, err_msg=name)  # 19 mergings, each some eps of 1


@each_compiled_dtype
@patterns
@loops
def test_what_sees_nothing_or_is_not_seen_is_exactly_zero(loop, name, dtype):
    inputs = draw(name, dtype, masked=True)
    out, lse, d_q, d_k, d_v = run(loop, inputs)
    seen = allowed(inputs)
    blind, unseen = ~seen.any(axis=-1), ~seen.any(axis=-2)
    assert blind.any()
    np.testing.assert_array_equal(np.isneginf(lse), blind)
    for x in (out[blind], d_q[blind], d_k[unseen], d_v[unseen]):
        assert not x.any()  # NaN is not 0


@each_compiled_dtype
@patterns
@loops
def test_keys_outside_move_nothing(loop, name, dtype):
    """Not one bit: a query's output, with every key that it does not see a million times larger."""
    inputs = draw(name, dtype, leading=())
    seen, before = allowed(inputs), run(loop, inputs)[0]
    for row in range(0, len(before), 7):
        k, v = inputs.k.copy(), inputs.v.copy()
        k[~seen[row]], v[~seen[row]] = 1e6 * k[~seen[row]], 1e6
        after, *_ = loop.forward(inputs.q, k, v, *inputs[4:])
        np.testing.assert_array_equal(after[row], before[row])


@each_compiled_dtype
@loops
def test_scores_of_thousands(loop, dtype):
    """Also when a part that comes later has the largest, and when it has the least."""
    inputs = draw("stride", dtype)
    q, k = np.rint(64 * inputs.q), np.rint(64 * inputs.k)
    inputs = inputs._replace(q=q, k=k, scale=1.0)  # whole scores, exact in both dtypes
    for pattern in (inputs.pattern, inputs.pattern[::-1]):
        out, lse, *gradients = run(loop, inputs._replace(pattern=pattern))
        expected = dense(inputs)
        np.testing.assert_allclose(out, expected[0], rtol=0, atol=16 * np.finfo(dtype).eps)  # the scores are exact
        np.testing.assert_allclose(lse, expected[1], rtol=4 * np.finfo(dtype).eps)
        assert all(np.isfinite(x).all() for x in gradients)


@each_compiled_dtype
def test_equal_keys_share_a_weight_however_large_their_score(dtype):
    """Scores whose neighbours are 16 apart or more, in two parts, which together have the weight of one key."""
    rng = np.random.default_rng(3)
    q, k, v, d_out = (rng.standard_normal((n, 8)).astype(dtype) for n in (40, 20, 20, 40))
    q *= dtype(64 / np.finfo(dtype).eps)
    once = Inputs(q, k, v, d_out, None, (part.columns(40, 20, range(20)),), 0.5)
    *_, d_v = run(kernel, once)
    halves = tuple(part.columns(40, 60, columns) for columns in (range(0, 60, 2), range(1, 60, 2)))
    *_, shares = run(kernel, Inputs(q, k.repeat(3, axis=0), v.repeat(3, axis=0), d_out, None, halves, 0.5))
    for copy in range(3):
        np.testing.assert_allclose(3 * shares[copy::3], d_v, rtol=0, atol=16 * np.finfo(dtype).eps)


@each_compiled_dtype
@pytest.mark.parametrize(
    ("loop", "value"),
    [(pattern_page, np.nan), (kernel, np.nan), (kernel, np.inf)],  # the page takes an infinite score for a large one
    ids=["page-nan", "jit-nan", "jit-inf"],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's word for it
def test_what_is_not_finite_shows_where_it_is_seen(loop, value, dtype):
    inputs = draw("stride", dtype, leading=())
    seen, clean = allowed(inputs)[:, 40], run(loop, inputs)[0]
    k = inputs.k.copy()
    k[40] = value
    q = abs(inputs.q)  # so that the score is inf, and not -inf, which would be a weight of 0
    clean = loop.forward(q, inputs.k, inputs.v, *inputs[4:])[0]
    out, m, share = loop.forward(q, k, inputs.v, *inputs[4:])
    assert np.isnan(out[seen]).all()
    assert np.isnan(log_sum_exp(m, share)[seen]).all()
    np.testing.assert_array_equal(out[~seen], clean[~seen])


# --- What the Numba kernel promises beyond them ---------------------------------------------------------------------


@several_threads
@each_compiled_dtype
@pytest.mark.parametrize("leading", [(1,), (3,)], ids=str)
@patterns
def test_the_same_bits_for_any_number_of_threads(name, leading, dtype):
    inputs = draw(name, dtype, leading=leading)
    threads, results = numba.get_num_threads(), []
    try:
        for count in {1, min(2, threads), threads}:
            numba.set_num_threads(count)
            results.append(run(kernel, inputs))
    finally:
        numba.set_num_threads(threads)
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


@each_compiled_dtype
@pytest.mark.parametrize("widths", [(3, 2), (5, 3), (8, 8)], ids=str)
def test_a_head_alone_gives_the_same_bits_in_numpy(widths, dtype):
    """A product's last bit depends on its factors' strides, and those of ``k[..., keys, :]`` on the leading axes."""
    pattern = bigbird.parts_of(13, block=4)  # scattered keys, in small tiles
    inputs = draw("window", dtype, leading=(3,), widths=widths)._replace(pattern=pattern)
    inputs = inputs._replace(**{name: getattr(inputs, name)[:, :13] for name in ("q", "k", "v", "d_out")})
    alone = run(pattern_page, inputs._replace(q=inputs.q[1], k=inputs.k[1], v=inputs.v[1], d_out=inputs.d_out[1]))
    for name, x, y in zip(NAMES, run(pattern_page, inputs), alone, strict=True):
        np.testing.assert_array_equal(x[1], y, err_msg=name)


@each_compiled_dtype
def test_a_head_alone_gives_the_same_bits(dtype):
    """But for ``d_q``, whose sum over keys is shared out to several tasks where heads are few."""
    inputs = draw("stride", dtype, leading=(3,))
    together = run(kernel, inputs)
    alone = run(kernel, inputs._replace(q=inputs.q[1:2], k=inputs.k[1:2], v=inputs.v[1:2], d_out=inputs.d_out[1:2]))
    for name, x, y in zip(NAMES, together, alone, strict=True):
        if name != "d_q":
            np.testing.assert_array_equal(x[1:2], y, err_msg=name)


@each_compiled_dtype
def test_any_strides_and_read_only_inputs_without_compiling_anew(dtype):
    inputs = draw("stride", dtype, masked=True)
    expected = run(kernel, inputs)
    compiled = len(kernel._forward.task.signatures), len(kernel._backward.task.signatures)
    arrays = []
    for x in inputs[:4]:
        strided = np.moveaxis(np.moveaxis(x, -1, 0)[::-1].copy()[::-1], 0, -1)
        strided.flags.writeable = False
        arrays.append(strided)
    mask = np.repeat(inputs.key_mask, 2, axis=-1)[..., ::2]
    for x, y in zip(run(kernel, Inputs(*arrays, mask, *inputs[5:])), expected, strict=True):
        np.testing.assert_array_equal(x, y)
    for name in PATTERNS:
        run(kernel, draw(name, dtype))
    assert (len(kernel._forward.task.signatures), len(kernel._backward.task.signatures)) == compiled


@each_compiled_dtype
@patterns
def test_every_element_of_a_result_is_written(name, dtype, monkeypatch):
    """Memory that comes filled with NaN changes nothing."""
    inputs = draw(name, dtype, masked=True)
    expected = run(kernel, inputs)  # and everything is compiled now, with numpy's own functions
    monkeypatch.setattr(np, "empty", lambda shape, dtype: np.full(shape, np.nan, dtype))
    monkeypatch.setattr(np, "empty_like", lambda x: np.full(x.shape, np.nan, x.dtype))
    for x, y in zip(run(kernel, inputs), expected, strict=True):
        np.testing.assert_array_equal(x, y)


@loops
def test_memory_grows_with_the_length(loop):
    """At N = L = 4096 one array of all pairs would be 128 MiB; all that is held is below a quarter of that.

    Inputs are 2 MiB each, and the gradients; the page copies a tile, jit fills ``d_q`` up to whole vectors.
    """
    rng = np.random.default_rng(0)
    q, k, v, d_out = rng.standard_normal((4, 4096, 64))
    pattern = (part.band(4096, 4096, -16, 16, without=[0]), part.columns(4096, 4096, [0]))
    inputs = Inputs(q, k, v, d_out, None, pattern, 1 / math.sqrt(64))
    run(loop, inputs._replace(q=q[:64], k=k[:64], v=v[:64], d_out=d_out[:64], pattern=(part.band(64, 64, -1, 1),)))
    tracemalloc.start()
    try:
        run(loop, inputs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * 2**20
