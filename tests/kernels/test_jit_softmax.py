"""The Numba softmax loop against the page, and what it promises beyond the numbers."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
import softmax_page
from cases import each_compiled_dtype
from llvmlite.binding import get_host_cpu_features, get_process_triple
from threads import several_threads

from linattn_ref.kernels.jit.loops.simd.vector import lanes
from linattn_ref.kernels.jit.loops.softmax import softmax as kernel
from linattn_ref.kernels.jit.loops.softmax.softmax_tile import KEYS, TASKS

WIDTH = lanes(np.empty(0, np.float32))  # lengths around it are ragged in both dtypes
causal_or_not = pytest.mark.parametrize("causal", [False, True])


class Case(NamedTuple):
    leading: tuple[int, ...]
    n: int
    n_keys: int
    key_width: int
    value_width: int
    masked: bool


CASES = [
    Case((), 1, 1, 1, 1, False),
    Case((), 1, 3 * WIDTH + 1, 5, 3, False),  # one query with a long cache
    Case((2,), WIDTH - 1, WIDTH - 1, 4, 4, True),
    Case((2,), WIDTH, WIDTH, 8, 16, False),
    Case((2,), WIDTH + 1, WIDTH + 1, 17, 9, True),
    Case((2, 1, 2), 37, 41, 6, 7, True),
    Case((), 2 * KEYS + 5, 2 * KEYS + 5, WIDTH + 3, 2 * WIDTH, True),  # several tiles both ways
    Case((9,), 40, 2 * KEYS + 19, 8, 8, False),  # more heads than TASKS: one part a head
]


class Inputs(NamedTuple):
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    d_out: np.ndarray
    key_mask: np.ndarray | None
    scale: float


def draw(case, dtype, seed=0):
    """Normal numbers; masked rows of k and v are 0, as `attention` hands them over. One head sees no key at all."""
    rng = np.random.default_rng(seed)
    shapes = (case.n, case.key_width), (case.n_keys, case.key_width), (case.n_keys, case.value_width)
    q, k, v, d_out = (
        rng.standard_normal((*case.leading, *shape)).astype(dtype) for shape in (*shapes, (case.n, case.value_width))
    )
    key_mask = None
    if case.masked:
        key_mask = rng.random((*case.leading, case.n_keys)) < 0.6
        key_mask.reshape(-1, case.n_keys)[0, : case.n_keys // 2] = False  # in causal order the first see nothing
        if case.leading:
            key_mask.reshape(-1, case.n_keys)[-1] = False
        k[~key_mask], v[~key_mask] = 0, 0
    return Inputs(q, k, v, d_out, key_mask, case.key_width**-0.5)


def run(loop, inputs, causal, *, dtype=None):
    """``out, log_sum_exp, d_q, d_k, d_v``; computed in ``dtype`` if one is given."""
    q, k, v, d_out = (x.astype(dtype or x.dtype, copy=False) for x in inputs[:4])
    out, m, share = loop.forward(q, k, v, inputs.key_mask, causal, inputs.scale)
    gradients = loop.backward(d_out, q, k, v, out, m, share, inputs.key_mask, causal, inputs.scale)
    return out, softmax_page.log_sum_exp(m, share), *gradients


def tolerances(inputs, log_sum_exp, causal, dtype):
    """What rounding can do to ``out, log_sum_exp, d_q, d_k, d_v``, at worst.

    A sum of t products is off by at most ``t eps`` times the sum of their absolute values. So a score is off by
    ``D eps s`` with ``s`` the largest such sum, and a weight relatively by that, twice over, since it enters numerator
    and denominator, and by L more roundings in the denominator. Every later product adds its own number of terms. Each
    result's tolerance is this count times the result with absolute values put everywhere.
    """
    q, k, v, d_out, key_mask, scale = inputs
    q, k, v, d_out = (abs(x.astype(np.float64)) for x in (q, k, v, d_out))
    scores = scale * (inputs.q.astype(np.float64) @ inputs.k.astype(np.float64).swapaxes(-1, -2))  # (..., N, L)
    seen = np.ones(scores.shape, bool) if key_mask is None else np.broadcast_to(key_mask[..., None, :], scores.shape)
    if causal:
        seen = seen & np.tri(*scores.shape[-2:], scores.shape[-1] - scores.shape[-2], dtype=bool)
    p = np.where(seen, np.exp(scores - np.where(np.isneginf(log_sum_exp), 0, log_sum_exp)[..., None]), 0)
    largest = 1 + scale * (q @ k.swapaxes(-1, -2)).max()
    d_p = d_out @ v.swapaxes(-1, -2)
    d_scores = p * (d_p + (d_p * p).sum(-1, keepdims=True))
    magnitudes = p @ v, largest, scale * d_scores @ k, scale * d_scores.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d_out
    roundings = sum(scores.shape[-2:]) + 2 * q.shape[-1] * largest + 2 * v.shape[-1]
    return [roundings * np.finfo(dtype).eps * magnitude for magnitude in magnitudes]


# --- The numbers ----------------------------------------------------------------------------------------------------


@each_compiled_dtype
@causal_or_not
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_page(case, causal, dtype):
    """Against the page in float64, whose own rounding is nothing beside float32's, and the same in float64.

    The bounds are loose for float32; it runs the same code as float64, whose are below 1e-9.
    """
    inputs = draw(case, dtype)
    expected = run(softmax_page, inputs, causal, dtype=np.float64)
    results = run(kernel, inputs, causal)
    factor = 2 if dtype == np.float64 else 1  # then both sides round
    bounds = tolerances(inputs, expected[1], causal, dtype)
    for name, got, want, bound in zip(("out", "lse", "d_q", "d_k", "d_v"), results, expected, bounds, strict=True):
        assert got.dtype == dtype
        assert got.shape == want.shape
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=name)
        error = abs(np.where(finite, got, 0) - np.where(finite, want, 0))
        assert (error <= factor * bound).all(), (name, error.max())


@each_compiled_dtype
@causal_or_not
def test_what_sees_nothing_or_is_not_seen_is_exactly_zero(causal, dtype):
    inputs = draw(CASES[6]._replace(leading=(2,)), dtype)
    out, log_sum_exp, d_q, d_k, d_v = run(kernel, inputs, causal)
    blind = np.zeros(out.shape[:-1], bool)
    blind[-1] = True
    if causal:
        blind[0] = np.cumsum(inputs.key_mask[0]) == 0  # N == L: query i sees keys up to i
        assert blind[0].sum() > WIDTH
    np.testing.assert_array_equal(np.isneginf(log_sum_exp), blind)
    for x in (out[blind], d_q[blind], d_k[~inputs.key_mask], d_v[~inputs.key_mask]):
        np.testing.assert_array_equal(x, np.zeros_like(x))
    assert all(np.isfinite(x).all() for x in (out, d_q, d_k, d_v))


@each_compiled_dtype
def test_the_future_moves_nothing(dtype):
    """Not one bit of an output, whatever later keys and values hold."""
    inputs = draw(Case((2,), 70, 90, 8, 8, False), dtype)
    before = run(kernel, inputs, True)
    cut = 50  # query i sees keys j <= i + 20
    k, v, d_out = inputs.k.copy(), inputs.v.copy(), inputs.d_out.copy()
    k[:, cut + 20 :] *= 1e4
    v[:, cut + 20 :] = 1e6
    d_out[:, cut:] *= 1e4
    after = run(kernel, inputs._replace(k=k, v=v, d_out=d_out), True)
    for name, x, y in zip(("out", "lse", "d_q"), before, after, strict=False):
        np.testing.assert_array_equal(x[:, :cut], y[:, :cut], err_msg=name)
    assert (before[0][:, cut:] != after[0][:, cut:]).all()


@each_compiled_dtype
@causal_or_not
def test_scores_of_any_size(causal, dtype):
    """Scores of thousands: a row is one-hot, its maximum cancels, nothing overflows."""
    inputs = draw(Case((), 65, 65, 16, 16, False), dtype)
    inputs = inputs._replace(q=np.rint(inputs.q * 64), k=np.rint(inputs.k * 64), scale=1.0)  # scores: whole, so exact
    out, log_sum_exp, *gradients = run(kernel, inputs, causal)
    expected, largest, *_ = run(softmax_page, inputs, causal)
    # exact scores leave the rounding of exp and of the few values of weight: 8 eps of the largest value.
    np.testing.assert_allclose(out, expected, rtol=0, atol=8 * np.finfo(dtype).eps * abs(inputs.v).max())
    np.testing.assert_allclose(log_sum_exp, largest, rtol=2 * np.finfo(dtype).eps)
    assert all(np.isfinite(x).all() for x in gradients)


@each_compiled_dtype
def test_equal_keys_share_a_weight_however_large_their_score(dtype):
    """Scores whose neighbours are 16 apart or more, where ``m + log s`` is ``m``."""
    inputs = draw(Case((2,), 40, 20, 16, 16, False), dtype)
    inputs = inputs._replace(q=inputs.q * dtype(64 / np.finfo(dtype).eps))
    *_, d_v = run(kernel, inputs, False)
    thrice = inputs._replace(k=inputs.k.repeat(3, axis=1), v=inputs.v.repeat(3, axis=1))
    *_, shares = run(kernel, thrice, False)
    for copy in range(3):
        np.testing.assert_allclose(3 * shares[:, copy::3], d_v, rtol=0, atol=16 * np.finfo(dtype).eps)


@each_compiled_dtype
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_shows(dtype, value):
    """A query that is not a number spoils its own row and no other; a key spoils whoever sees it."""
    inputs = draw(Case((), 70, 70, 8, 8, False), dtype)
    clean, *_ = run(kernel, inputs, False)
    q, v = inputs.q.copy(), inputs.v.copy()
    q[33, 2] = np.nan
    out, log_sum_exp, d_q, d_k, _ = run(kernel, inputs._replace(q=q), False)
    others = np.arange(70) != 33
    np.testing.assert_array_equal(out[others], clean[others])
    assert np.isnan(out[33]).all()
    assert np.isnan(log_sum_exp[33])
    assert np.isnan(d_q[33]).all()
    assert np.isnan(d_k).all()
    v[40, 3] = value
    out, *_ = run(kernel, inputs._replace(v=v), False)
    assert not np.isfinite(out[:, 3]).any()
    k = inputs.k.copy()
    k[69] = value
    q[:] = 1
    assert np.isnan(run(kernel, inputs._replace(q=q, k=k), False)[0]).all()


# --- What it promises beyond them -----------------------------------------------------------------------------------


@several_threads
@each_compiled_dtype
@causal_or_not
@pytest.mark.parametrize("heads", [1, 3])
def test_the_same_bits_for_any_number_of_threads(heads, causal, dtype):
    inputs = draw(Case((heads,), 3 * WIDTH + 1, 5 * WIDTH, 8, 8, False), dtype)
    threads = numba.get_num_threads()
    results = []
    try:
        for count in {1, min(2, threads), threads}:
            numba.set_num_threads(count)
            results.append(run(kernel, inputs, causal))
    finally:
        numba.set_num_threads(threads)
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


@each_compiled_dtype
def test_any_strides_and_read_only_inputs_without_compiling_anew(dtype):
    inputs = draw(CASES[5], dtype)
    expected = run(kernel, inputs, True)
    compiled = len(kernel._forward.task.signatures), len(kernel._backward.task.signatures)
    arrays = []
    for x in inputs[:4]:
        strided = np.moveaxis(x, -1, 0)[::-1].copy()[::-1]  # the width first, stored backwards
        strided = np.moveaxis(strided, 0, -1)
        assert not strided.flags.c_contiguous
        strided.flags.writeable = False
        arrays.append(strided)
    mask = np.repeat(inputs.key_mask, 2, axis=-1)[..., ::2]
    for x, y in zip(run(kernel, Inputs(*arrays, mask, inputs.scale), True), expected, strict=True):
        np.testing.assert_array_equal(x, y)
    contiguous = [x.copy() for x in inputs[:4]]
    for x in contiguous:
        x.flags.writeable = False
    run(kernel, Inputs(*contiguous, inputs.key_mask, inputs.scale), True)
    assert (len(kernel._forward.task.signatures), len(kernel._backward.task.signatures)) == compiled


@each_compiled_dtype
def test_inputs_stay_as_they_were(dtype):
    inputs = draw(CASES[4], dtype)
    copies = [x.copy() for x in inputs[:5]]
    q, k, v, d_out, key_mask, scale = inputs
    saved = kernel.forward(q, k, v, key_mask, True, scale)
    copies += [x.copy() for x in saved]
    kernel.backward(d_out, q, k, v, *saved, key_mask, True, scale)
    for x, y in zip((*inputs[:5], *saved), copies, strict=True):
        np.testing.assert_array_equal(x, y)


@each_compiled_dtype
@causal_or_not
@pytest.mark.parametrize("case", CASES[4:7], ids=str)
def test_every_element_of_a_result_is_written(case, causal, dtype, monkeypatch):
    """Memory that comes filled with NaN changes nothing."""
    inputs = draw(case, dtype)
    expected = run(kernel, inputs, causal)  # and everything is compiled now, with numpy's own functions

    monkeypatch.setattr(np, "empty", lambda shape, dtype: np.full(shape, np.nan, dtype))
    monkeypatch.setattr(np, "empty_like", lambda x: np.full(x.shape, np.nan, x.dtype))
    for x, y in zip(run(kernel, inputs, causal), expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_no_array_of_queries_by_keys():
    """At N = L = 2048 one such array would be 32 MiB. (Scratch inside the kernel has no axis of N or L at all.)"""
    inputs = draw(Case((), 2048, 2048, 8, 8, False), np.float64)
    run(kernel, inputs, True)
    tracemalloc.start()
    try:
        run(kernel, inputs, True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    rows = 2048 * np.dtype(np.float64).itemsize
    # Output and three gradients of width 8; d_q once for each of the TASKS parts, its width filled up to the lanes, and
    # their sum; d_out * out, mask and row numbers are less than one more row of lanes.
    assert peak < rows * (4 * 8 + (TASKS + 2) * WIDTH)
    assert peak < 2048 * rows / 4


def test_without_numba_the_error_says_what_to_install():
    code = "import sys; sys.modules['numba'] = None; import linattn_ref.kernels.jit"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: linattn_ref.kernels.jit needs Numba")
    assert "pip install" in last


@pytest.mark.slow
def test_processors_without_avx512():
    """The same tests of the numbers, compiled for a processor with registers half as wide."""
    if not get_process_triple().startswith("x86_64"):
        pytest.skip("compiles for x86-64")
    features = get_host_cpu_features()
    if not features.get("avx512f"):
        pytest.skip("is what all other tests have been compiled for")
    kept = ",".join(f"{'+' if on and 'avx512' not in name else '-'}{name}" for name, on in features.items())
    environment = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": kept}
    chosen = "agrees or zero or lanes or between or product or exp or blocks or dense"
    names = ("test_vector.py", "test_panel.py", "test_jit_softmax.py", "test_pattern_softmax.py")
    files = [str(Path(__file__).with_name(name)) for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", chosen, *files]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout[-2000:]
