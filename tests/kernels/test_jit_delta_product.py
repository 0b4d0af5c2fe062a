"""The Numba delta product against the page in float64, and what it promises beyond the numbers.

All of it is slow: to compile the two kernels takes some ten seconds a dtype.
"""

import ctypes
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import delta_page
import numba
import numpy as np
import pytest
from numba import njit
from threads import several_threads

from linattn_ref.kernels.jit.loops.delta import delta_product as kernel
from linattn_ref.kernels.jit.loops.delta.delta_chunk import CHUNK
from linattn_ref.kernels.jit.loops.simd.transposed import transpose
from linattn_ref.kernels.jit.loops.simd.vector import lanes

pytestmark = pytest.mark.slow

NAMES = ("out", "state", "u", "d_q", "d_k", "d_v", "d_erase", "d_log_gate", "d_state")
SHAPES = {"a head": lambda n, c: (n,), "a channel": lambda n, c: (n, c)}
WIDTH = lanes(np.empty(0, np.float32))
SIZES = [(1, 1, 1), (5, 3, 2), (31, 7, WIDTH + 1), (32, WIDTH, 3), (67, WIDTH + 1, 2 * WIDTH + 1), (100, 64, 64)]
ROUNDINGS = 64  # some more than a number's longest way, as in the contract tests
modes = pytest.mark.parametrize(
    ("gate", "erases", "begins"), list(product((None, *SHAPES), (True, False), (True, False)))
)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def draw(n, c, m, gate, *, erases=True, begins=True, leading=(2,), dtype=np.float64, slowest=0.01):
    """What :func:`run` takes; unit keys, gates from one down to ``slowest``, and some resets."""
    rng = np.random.default_rng(n)
    q, k, e, v, d_out = (rng.standard_normal((*leading, n, width)) for width in (c, c, c, m, m))
    q, k, e = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k, e))
    log_gate = None
    if gate is not None:
        log_gate = rng.uniform(np.log(slowest), 0, (*leading, *SHAPES[gate](n, c)))
        log_gate[rng.random(log_gate.shape) < 0.05] = -np.inf
    states = rng.standard_normal((2, *leading, c, m)) if begins else (None, None)
    arrays = d_out, states[0], q, k, v, e if erases else None, log_gate, states[1]
    return [None if x is None else x.astype(dtype) for x in arrays]


def run(room, d_out, d_state, *inputs):
    """All results by name."""
    out, state, u = room.forward(*inputs)
    return dict(zip(NAMES, (out, state, u, *room.backward(d_out, d_state, *inputs, u)), strict=True))


def assert_close(got, want, dtype):
    for name, x in want.items():
        assert (got[name] is None) == (x is None), name
        if x is not None:
            assert got[name].dtype == dtype
            tolerance = ROUNDINGS * np.finfo(dtype).eps * max(1, abs(x).max(initial=0))
            np.testing.assert_allclose(got[name], x, rtol=0, atol=tolerance, err_msg=name)


def in_float64(inputs):
    return [None if x is None else x.astype(np.float64) for x in inputs]


@dtypes
@modes
def test_both_passes(gate, erases, begins, dtype):
    for size in SIZES:
        inputs = draw(*size, gate, erases=erases, begins=begins, dtype=dtype)
        assert_close(run(kernel, *inputs), run(delta_page, *in_float64(inputs)), dtype)


@dtypes
@pytest.mark.parametrize("gate", SHAPES)
@pytest.mark.parametrize("log_gate", [-0.0, -1e-9, -60.0, -1e4, -np.inf])
def test_gates_that_forget_nothing_or_all(gate, log_gate, dtype):
    """Products of them are 1, or become 0 within a chunk, where a quotient of products would be no number."""
    inputs = draw(70, 8, 4, gate, dtype=dtype)
    inputs[6][..., ::2] = log_gate
    assert_close(run(kernel, *inputs), run(delta_page, *in_float64(inputs)), dtype)


@pytest.mark.parametrize("gate", SHAPES)
def test_a_gate_of_zero_has_no_gradient(gate):
    inputs = draw(200, 8, 4, gate, dtype=np.float32)
    d_log_gate = run(kernel, *inputs)["d_log_gate"]
    assert (d_log_gate[np.isneginf(inputs[6])] == 0).all()
    assert (d_log_gate != 0).any()


@pytest.mark.parametrize(("gate", "erases"), [("a head", True), ("a head", False), ("a channel", True)])
def test_gates_of_a_long_sequence(gate, erases):
    """What rounding loses does not grow with the rows."""
    for n in (64, 4096):
        inputs = draw(n, 16, 8, gate, erases=erases, dtype=np.float32, slowest=0.9)
        assert_close(run(kernel, *inputs), run(delta_page, *in_float64(inputs)), np.float32)


@dtypes
def test_heads_as_a_model_holds_them_and_gaps(dtype):
    inputs = draw(37, 8, 6, "a channel", leading=(2, 3), dtype=dtype)

    def between_heads(x):
        return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)

    def with_gaps(x):
        return np.repeat(x, 2, axis=-1)[..., ::2]

    want = run(kernel, *inputs)
    for lay_out in (between_heads, with_gaps):
        for name, x in run(kernel, *map(lay_out, inputs)).items():
            np.testing.assert_array_equal(x, want[name], err_msg=name)


@several_threads
def test_any_number_of_threads_gives_the_same_bits():
    inputs = draw(100, 8, 6, "a head", leading=(5,), dtype=np.float32)
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = run(kernel, *inputs)
        numba.set_num_threads(2)
        together = run(kernel, *inputs)
    finally:
        numba.set_num_threads(threads)
    for name, x in alone.items():
        np.testing.assert_array_equal(together[name], x, err_msg=name)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks Linux for the most memory held so far")
@pytest.mark.parametrize("gate", SHAPES)
def test_the_backward_pass_keeps_a_state_a_chunk(gate):
    """Beside its results: what compiled code allocates is not known to Python, but to the system."""
    n = 2**19
    d_out, d_state, *inputs = draw(n, 8, 8, gate, leading=(1,), dtype=np.float32)
    run(kernel, d_out[:, :9], d_state, *(x if x is inputs[-1] else x[:, :9] for x in inputs))  # compiled by now
    u = kernel.forward(*inputs)[2]
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is given back, so that what is needed shows
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    before = memory("VmRSS")
    results = kernel.backward(d_out, d_state, *inputs, u)
    beside = memory("VmHWM") - before - sum(x.nbytes for x in results)
    assert beside < n * d_out.itemsize * (WIDTH * WIDTH / CHUNK + 2)  # in whole Vectors; and not two numbers a row


def memory(name):
    """In bytes, of this process."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return 1024 * int(line.split()[1])


def test_no_heads_and_what_is_read_only():
    inputs = draw(5, 3, 2, "a head", leading=(0,))
    assert run(kernel, *inputs)["d_q"].shape == (0, 5, 3)
    inputs = draw(5, 3, 2, "a head")
    copies = [x.copy() for x in inputs]
    for x in inputs:
        x.flags.writeable = False
    run(kernel, *inputs)
    for x, copy in zip(inputs, copies, strict=True):
        np.testing.assert_array_equal(x, copy)


@pytest.mark.thorough
def test_a_machine_without_avx512():
    """The same with 16 registers of 256 bits, where a Vector and a Block are half as large; compiled anew."""
    here, support = Path(__file__).parent, Path(__file__).parents[1] / "support"
    check = f"import sys; sys.path[:0] = [{str(here)!r}, {str(support)!r}]; import test_jit_delta_product as t; "
    check += "assert t.WIDTH == 16; t.test_both_passes('a head', True, True, t.np.float32)"
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+avx,+sse4.2"}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)


@dtypes
def test_transpose(dtype):
    side = lanes(np.empty(0, dtype)) // 2
    x = np.arange(6 * side * side, dtype=dtype).reshape(2 * side, 3 * side)
    target = np.full((3 * side, 2 * side), np.nan, dtype)
    njit(lambda target, x: transpose(target, x))(target, x)
    np.testing.assert_array_equal(target, x.T)


@pytest.mark.parametrize("c", [4, WIDTH + 1])
def test_no_panel_of_the_state_is_written_past_its_end(c):
    """Behind a panel of columns lies the next one: what is infinite in the first would be NaN there, as 0 times it."""
    d_out, _, *inputs = draw(64, c, 2 * WIDTH, "a head", dtype=np.float32)
    u = kernel.forward(*inputs)[2]
    right = kernel.backward(d_out, None, *inputs, u)[2]
    d_out[..., 0] = np.inf
    found = kernel.backward(d_out, None, *inputs, u)[2]  # d_v, of which no column depends on another
    np.testing.assert_array_equal(found[..., WIDTH:], right[..., WIDTH:])
