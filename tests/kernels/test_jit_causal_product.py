"""The Numba causal product against its matrix of scores, and what it promises beyond the numbers."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import causal_page
import numba
import numpy as np
import pytest
from cases import each_compiled_dtype
from llvmlite.binding import get_host_cpu_features
from threads import several_threads

from linattn_ref import gradcheck
from linattn_ref.attention import linear
from linattn_ref.attention.parts.masks import divide
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit.loops.linear import causal_product as kernel
from linattn_ref.kernels.jit.loops.linear import causal_product_plain as plain
from linattn_ref.kernels.jit.loops.simd.vector import lanes

WIDTH = lanes(np.empty(0, np.float32))  # widths around it, and around half of it in float64, are ragged
EPS = 1e-6


class Case(NamedTuple):
    leading: tuple[int, ...]
    n: int
    width: int  # C
    value_width: int  # M


CASES = [
    Case((), 1, 1, 1),
    Case((2,), 3, 5, 2),
    Case((2,), 4, 2, WIDTH - 1),
    Case((1,), 5, WIDTH + 1, WIDTH),
    Case((2,), 63, 7, WIDTH + 1),
    Case((2, 1, 2), 64, WIDTH, 3),
    Case((3,), 65, 2 * WIDTH, 2 * WIDTH),
    Case((), 257, WIDTH + 5, 2 * WIDTH + 1),  # one head: a task a panel
    Case((), 97, 3, 4),  # one head of one panel
    Case((0,), 4, 3, 3),  # no head at all
]
cases = pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.leading}-{case.n}-{case.width}-{case.value_width}"
)


class Inputs(NamedTuple):
    """Of the backward pass; the forward pass has the last five, or four without the denominator."""

    d_out: Any
    d_s: Any
    d_z: Any
    phi_q: Any
    phi_k: Any
    v: Any
    s: Any
    z: Any


modes = pytest.mark.parametrize("continued", [False, True])  # from a state, and gradients of that after the last row


def draw(case, dtype, continued, seed=0):
    """Features are positive, as for a denominator; everything else has both signs."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal((*case.leading, *shape)).astype(dtype)

    n, c, m = case[1:]
    states = [normal(c, m), normal(c), normal(c, m), abs(normal(c))] if continued else [None] * 4
    return Inputs(normal(n, m), *states[:2], abs(normal(n, c)), abs(normal(n, c)), normal(n, m), *states[2:])


def run_plain(product, x):
    """All results without the denominator, by name."""
    out, s = product.forward(x.phi_q, x.phi_k, x.v, x.s)
    gradients = product.backward(x.d_out, x.d_s, x.phi_q, x.phi_k, x.v, x.s)
    names = ("out", "s", "d_phi_q", "d_phi_k", "d_v", "d_s")
    return dict(zip(names, (out, s, *gradients), strict=True))


def run_normalised(product, x):
    """The same with it."""
    out, denominator, s, z = product.normalised_forward(*x[3:], EPS)
    gradients = product.normalised_backward(*x, out, denominator)
    names = ("out", "denominator", "s", "z", "d_phi_q", "d_phi_k", "d_v", "d_s", "d_z")
    return dict(zip(names, (out, denominator, s, z, *gradients), strict=True))


both = pytest.mark.parametrize("run", [run_plain, run_normalised])


def absolute(x):
    return x._make(None if array is None else abs(array) for array in x)


def bounds(run, x):
    """For each result the sum of the absolute values of the products that it is a sum of.

    A result is off by no more than that times the roundings a product meets on its way. Without the denominator that
    sum is the result for the absolute values. With it, what is divided is bounded by what ``|v|`` gives, and the
    gradients are those of a product with the column ``|G . out|`` beside ``|G|``, both over the denominator.
    """
    if run is run_plain:
        return run_plain(causal_page, absolute(x))
    results = run_normalised(causal_page, absolute(x))
    share = divide(np.ones_like(x.v[..., :1]), results["denominator"][..., None])  # (..., N, 1)
    d_out = abs(x.d_out) * share
    e = (d_out * results["out"]).sum(axis=-1, keepdims=True)
    ones = np.ones_like(x.v[..., :1])

    def beside(s, z):
        return None if s is None else np.concatenate([abs(s), abs(z)[..., None]], axis=-1)

    *gradients, d_state = causal_page.backward(
        np.concatenate([d_out, e], axis=-1),
        beside(x.d_s, x.d_z),
        x.phi_q,
        x.phi_k,
        np.concatenate([abs(x.v), ones], axis=-1),
        beside(x.s, x.z),
    )
    gradients[2] = gradients[2][..., :-1]
    names = ("d_phi_q", "d_phi_k", "d_v")
    return results | dict(zip(names, gradients, strict=True)) | {"d_s": d_state[..., :-1], "d_z": d_state[..., -1]}


def assert_close(got, want, bound, roundings):
    """Of each result, as many roundings as its longest chain of operations, of numbers within ``bound``."""
    assert got.keys() == want.keys()
    for name, array in got.items():
        assert array.shape == want[name].shape, name
        assert array.dtype == want[name].dtype, name
        allowed = roundings * np.finfo(array.dtype).eps * bound[name]
        assert (abs(array - want[name]) <= allowed).all(), name


@both
@each_compiled_dtype
@modes
@cases
def test_every_result(case, dtype, continued, run):
    x = draw(case, dtype, continued)
    got, want = run(kernel, x), run(causal_page, x)
    # A product is rounded with its factors, then with every sum it goes into, over N rows and over C or M.
    assert_close(got, want, bounds(run, x), 2 * (case.n + case.width + case.value_width) + 16)


@each_compiled_dtype
def test_loops_by_row(dtype):
    x = draw(CASES[4], dtype, continued=True)
    got = plain.forward_by_row(x.phi_q, x.phi_k, x.v, x.s)
    want = causal_page.forward(x.phi_q, x.phi_k, x.v, x.s)
    gradients = plain.backward_by_row(x.d_out, x.d_s, x.phi_q, x.phi_k, x.v, x.s)
    wanted = causal_page.backward(x.d_out, x.d_s, x.phi_q, x.phi_k, x.v, x.s)
    names = ("out", "s", "d_phi_q", "d_phi_k", "d_v", "d_s")
    got, want = (dict(zip(names, results, strict=True)) for results in ((*got, *gradients), (*want, *wanted)))
    assert_close(got, want, bounds(run_plain, x), 2 * sum(CASES[4][1:]))


# --- Gradients, by finite differences -------------------------------------------------------------------------------


class PlainGradients(NamedTuple):
    phi_q: Any
    phi_k: Any
    v: Any
    s: Any


class NormalisedGradients(NamedTuple):
    phi_q: Any
    phi_k: Any
    v: Any
    s: Any
    z: Any


@pytest.mark.parametrize("n", [1, 6, 70])
def test_gradients(n):
    x = draw(Case((), n, 3, 2), np.float64, continued=True)

    def forward(phi_q, phi_k, v, s):
        out, last = kernel.forward(phi_q, phi_k, v, s)
        return np.concatenate([out, last]), (phi_q, phi_k, v, s)

    def backward(d_both, saved):
        return PlainGradients(*kernel.backward(d_both[:n], d_both[n:], *saved))

    check = partial(gradcheck.check_elementwise, rng=np.random.default_rng(1))
    report = check(forward, backward, x.phi_q, x.phi_k, x.v, x.s)
    assert report.ok, report


@pytest.mark.parametrize("n", [1, 6, 70])
def test_gradients_with_the_denominator(n):
    x = draw(Case((), n, 3, 2), np.float64, continued=True)

    def forward(phi_q, phi_k, v, s, z):
        inputs = phi_q, phi_k, v, s, z
        out, denominator, last_s, last_z = kernel.normalised_forward(*inputs, EPS)
        return np.concatenate([out.ravel(), last_s.ravel(), last_z]), (inputs, out, denominator)

    def backward(d_all, saved):
        inputs, out, denominator = saved
        d_out, d_s, d_z = np.split(d_all, [out.size, out.size + 6])
        gradients = kernel.normalised_backward(d_out.reshape(n, 2), d_s.reshape(3, 2), d_z, *inputs, out, denominator)
        return NormalisedGradients(*gradients)

    check = partial(gradcheck.check_elementwise, rng=np.random.default_rng(1))
    report = check(forward, backward, x.phi_q, x.phi_k, x.v, x.s, x.z)
    assert report.ok, report


# --- Rows that see nothing ------------------------------------------------------------------------------------------


@each_compiled_dtype
def test_a_row_that_sees_nothing(dtype):
    """Masked keys have features of 0, and without eps the denominator of the first rows is then 0."""
    x = draw(Case((2,), 70, 5, 6), dtype, continued=False)
    x.phi_k[:, :66] = 0
    out, denominator, _, _ = kernel.normalised_forward(*x[3:], 0.0)
    assert (denominator[:, :66] == 0).all()
    assert (out[:, :66] == 0).all()
    gradients = kernel.normalised_backward(*x, out, denominator)
    assert all(np.isfinite(array).all() for array in gradients)
    assert (gradients[0][:, :66] == 0).all()
    want = causal_page.normalised_forward(*x[3:], 0.0)
    np.testing.assert_allclose(out[:, 66:], want[0][:, 66:], rtol=1e3 * np.finfo(dtype).eps)


# --- Buffers, strides, threads --------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("n", [65, 163])
def test_inputs_are_left_alone_and_results_are_written_whole(monkeypatch, n, run):
    for leading in ((), (2,)):
        x = draw(Case(leading, n, 5, 6), np.float64, continued=True)
        before = x._make(array.copy() for array in x)
        expected = run(kernel, x)  # and everything is compiled now, with numpy's own functions
        with monkeypatch.context() as patch:
            patch.setattr(np, "empty", lambda shape, dtype: np.full(shape, np.nan, dtype))
            patch.setattr(np, "empty_like", lambda x: np.full(x.shape, np.nan, x.dtype))
            results = run(kernel, x)
        for name, array in expected.items():
            np.testing.assert_array_equal(results[name], array, err_msg=name)
        for array, copy in zip(x, before, strict=True):
            np.testing.assert_array_equal(array, copy)


@both
def test_any_strides(run):
    """Views with gaps, in another order, read-only: the same numbers."""
    x = draw(Case((2, 3), 37, 5, 6), np.float64, continued=True)

    def strided(array):
        wide = np.repeat(array, 2, axis=-1)[..., ::2].swapaxes(0, 1).copy().swapaxes(0, 1)
        wide.flags.writeable = False
        return wide

    got, want = run(kernel, x._make(map(strided, x))), run(kernel, x)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


@several_threads
@both
@pytest.mark.parametrize("case", [Case((3,), 200, 40, 50), Case((), 200, 40, 50), Case((), 200, 4, 5)])
def test_any_number_of_threads_gives_the_same_bits(case, run):
    x = draw(case, np.float64, continued=True)
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = run(kernel, x)
        numba.set_num_threads(2)
        together = run(kernel, x)
    finally:
        numba.set_num_threads(threads)
    for name, array in alone.items():
        np.testing.assert_array_equal(together[name], array, err_msg=name)


# --- One position ---------------------------------------------------------------------------------------------------


STEPS = [(3, 4), (2, WIDTH + 1, WIDTH - 1), (2, 3, 2 * WIDTH, WIDTH + 1)]
WITH_GAPS = [(STEPS[1], True), *(pytest.param(shape, True, marks=pytest.mark.slow) for shape in STEPS[::2])]


@each_compiled_dtype
@pytest.mark.parametrize(("shape", "gaps"), [*((shape, False) for shape in STEPS), *WITH_GAPS])  # each is compiled anew
def test_step(dtype, shape, gaps):
    """The state to the rounding of a multiply-add, in place, also in a view with gaps."""
    *leading, c, m = shape
    rng = np.random.default_rng(0)
    q, k, v, z = (rng.random((*leading, width)).astype(dtype) for width in (c, c, m, c))
    s = rng.random((*leading, c, m)).astype(dtype)
    s_, z_, q_ = s.copy(), z.copy(), q
    if gaps:
        both_states = np.concatenate([s, z[..., None]], axis=-1)
        s_, z_ = both_states[..., :-1], both_states[..., -1]
        q_ = np.repeat(q, 2, axis=-1)[..., ::2]
    out = kernel.step(q_, k, v, s_, z_, EPS)
    want = causal_page.step(q, k, v, s, z, EPS)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(out, want, rtol=4 * c * eps)
    np.testing.assert_allclose(s_, s, rtol=2 * eps)
    np.testing.assert_array_equal(z_, z)


@each_compiled_dtype
def test_a_step_that_sees_nothing(dtype):
    zero, s = np.zeros((2, 3), dtype), np.zeros((2, 3, 4), dtype)
    np.testing.assert_array_equal(
        kernel.step(zero, zero, np.ones((2, 4), dtype), s, zero.copy(), 0.0), np.zeros((2, 4))
    )


def test_steps_are_the_forward_pass():
    x = draw(Case((2,), 9, 5, 6), np.float64, continued=False)
    out, _, s, z = kernel.normalised_forward(*x[3:], EPS)
    s_, z_ = np.zeros_like(s), np.zeros_like(z)
    for i in range(9):
        np.testing.assert_allclose(
            kernel.step(x.phi_q[:, i], x.phi_k[:, i], x.v[:, i], s_, z_, EPS), out[:, i], rtol=1e-13
        )
    np.testing.assert_allclose(s_, s, rtol=1e-13)
    np.testing.assert_allclose(z_, z, rtol=1e-13)


# --- In a process of its own ----------------------------------------------------------------------------------------

MEMORY = """
import numpy as np
from linattn_ref.experiments.measuring.memory import peak_resident
from linattn_ref.kernels.jit.loops.linear import causal_product as kernel
def run(n):
    rng = np.random.default_rng(0)
    q, k, v, d_out = (rng.standard_normal((1, n, 64), dtype=np.float32) for _ in range(4))
    return lambda: kernel.backward(d_out, None, q, k, v, None)
run(256)()
print(peak_resident(run(65536)) / (3 * 65536 * 64 * 4))
"""


@pytest.mark.slow
def test_the_backward_pass_needs_no_more_memory_than_its_results():
    """Rows of N numbers aside: a state kept for every 64 rows would be as large as one of the three results."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.05


@pytest.mark.slow
def test_a_machine_without_avx512():
    """The same with the vectors of a processor that has AVX2 and no more."""
    if not get_host_cpu_features().get("avx512f"):
        pytest.skip("is what all other tests have been compiled for")
    here, support = Path(__file__).parent, Path(__file__).parents[1] / "support"
    check = f"import sys; sys.path[:0] = [{str(here)!r}, {str(support)!r}]; import test_jit_causal_product as t; "
    check += "t.run_all_modes()"
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+avx,+sse4.2"}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)


def run_all_modes():
    for continued in (False, True):
        for run in (run_plain, run_normalised):
            x = draw(CASES[4], np.float32, continued)
            assert_close(run(kernel, x), run(causal_page, x), bounds(run, x), 2 * sum(CASES[4][1:]) + 16)


@pytest.mark.parametrize(
    ("dtype", "x", "small"),
    [pytest.param(np.float32, -46, 1e-25, marks=pytest.mark.slow), (np.float64, -365, 1e-270)],
)
def test_denominators_whose_reciprocal_is_infinite(dtype, x, small):
    """1e-40 in float32: quotients are ordinary numbers, in a pass, in its gradients and in steps."""
    q, v = np.full((1, 5, 1), x, dtype), np.linspace(1, 2, 15, dtype=dtype).reshape(1, 5, 3)
    d_out, results = np.full_like(v, small), []
    for kernels in (reference, jit):
        out, saved = linear.forward(q, q, v, causal=True, eps=0.0, kernels=kernels)
        state, steps = linear.init_state((1,), 1, 3, dtype=dtype), []
        for i in range(5):
            out_i, state = linear.step(q[:, i], q[:, i], v[:, i], state, eps=0.0, kernels=kernels)
            steps.append(out_i)
        results.append((out, np.stack(steps, axis=1), linear.backward(d_out, saved).v))
    assert (saved.denominator < 1 / np.finfo(dtype).max).all()
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3)  # a denominator has 17 bits here


@pytest.mark.slow
def test_features_so_small_that_denominators_have_few_bits():
    q, v = np.full((1, 5, 4), -50, np.float32), np.ones((1, 5, 1), np.float32)
    for kernels in (reference, jit):
        np.testing.assert_array_equal(linear.forward(q, q, v, causal=True, eps=0.0, kernels=kernels)[0], 1)
