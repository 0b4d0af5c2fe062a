"""What contract tests do not reach of the CUDA kernels; ``test_simulator.py`` runs it in the simulator."""

import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import causal_page
import delta_page
import ml_dtypes
import numba.cuda
import numpy as np
import pytest
import softmax_page
from case import Setting, Sizes
from cases import CASES
from gate_cases import assert_gradient_of_gates
from kernels.cuda import strict_arrays
from kernels.cuda.on_gpu import both_passes
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from linattn_ref.attention import delta, gated_linear, linear, softmax
from linattn_ref.experiments.benches import bench_cuda
from linattn_ref.kernels import cuda, reference
from linattn_ref.kernels.common import rises
from linattn_ref.kernels.cuda import loops
from linattn_ref.kernels.cuda.loops import device
from linattn_ref.op import libraries

EPS = {np.float32: np.finfo(np.float32).eps, np.float64: np.finfo(np.float64).eps}
ROUNDINGS = 64  # as in the contract tests


def draw(leading, n, n_keys, d, m, masked, dtype, seed=0):
    """``q, k, v, d_out, key_mask``."""
    rng = np.random.default_rng(seed)
    shapes = (n, d), (n_keys, d), (n_keys, m), (n, m)
    arrays = [rng.standard_normal((*leading, *shape)).astype(dtype) for shape in shapes]
    return *arrays, rng.random((*leading, n_keys)) < 2 / 3 if masked else None


def assert_close(got, want):
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    assert (np.isneginf(got) == np.isneginf(want)).all()
    finite = np.isfinite(want)
    error = abs(np.where(finite, got, 0) - np.where(finite, want, 0)).max(initial=0)
    assert error <= ROUNDINGS * np.finfo(want.dtype).eps * max(1, abs(np.where(finite, want, 0)).max(initial=0))


@pytest.fixture(autouse=True)
def strides_that_a_gpu_can_reshape(monkeypatch):
    """NumPy has a stride of 0 on a new axis; the simulator does not mind, but on a GPU it is no contiguous array."""
    to_device = device.cuda.to_device

    def checked(x, *more, **options):
        assert np.ndim(x) == 0 or 0 not in x.strides
        return to_device(x, *more, **options)

    monkeypatch.setattr(device.cuda, "to_device", checked)


def test_arrays_with_a_new_axis():
    q, k, v = (np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)[None] for _ in range(3))
    key_mask = np.array([True, True, False, True, True])[None]
    options = {"causal": True, "key_mask": key_mask}
    for mechanism in (softmax, linear):
        out, _ = mechanism.forward(q, k, v, **options, kernels=cuda)
        assert_close(out, mechanism.forward(q, k, v, **options)[0])
    row, state = q[0, 0], softmax.init_state((), 4, 4, dtype=np.float32, kernels=cuda)
    assert_close(softmax.step(row, row, row, state, kernels=cuda)[0], row)


@pytest.mark.parametrize("case", [case for case in CASES if "cuda" in case.rooms], ids=str)
def test_an_output_array_is_filled(case):
    call = Setting(case, "cuda", masked=False).call(Sizes(3, 3, leading=()), dtype=np.float32)
    expected, _ = call.forward()
    out = np.full_like(expected, np.nan)
    assert call.change(out=out).forward()[0] is out
    np.testing.assert_array_equal(out, expected)


def test_each_device_is_asked_for_tensor_cores(monkeypatch):
    found = iter([(9, 0), (7, 5), (7, 5)])
    monkeypatch.setattr(device, "SIMULATED", False)
    now = SimpleNamespace(get_current_device=lambda: SimpleNamespace(compute_capability=next(found)))
    monkeypatch.setattr(device, "cuda", now)
    device.check_tensor_cores()
    with pytest.raises(RuntimeError, match=r"8\.0 or later, got 7\.5"):
        device.check_tensor_cores()


# --- The causal product, in all modes -------------------------------------------------------------------------------


@pytest.mark.parametrize(("continued", "dtype"), [(False, np.float32), (True, np.float32), (True, np.float64)], ids=str)
def test_causal_product(continued, dtype):
    rng = np.random.default_rng(1)
    n, c, m = 8, 7, 5  # two tiles of rows and of features, the second one ragged

    def normal(*shape):
        return rng.standard_normal((1, *shape)).astype(dtype)

    phi_q, phi_k, v, d_out = abs(normal(n, c)), abs(normal(n, c)), normal(n, m), normal(n, m)
    s, z, d_s, d_z = (normal(c, m), abs(normal(c)), normal(c, m), normal(c)) if continued else (None,) * 4
    results = []
    for product in (loops.linear.causal_product, causal_page):
        plain = product.forward(phi_q, phi_k, v, s)
        plain_gradients = product.backward(d_out, d_s, phi_q, phi_k, v, s)
        out, denominator, *last = product.normalised_forward(phi_q, phi_k, v, s, z, 1e-6)
        gradients = product.normalised_backward(d_out, d_s, d_z, phi_q, phi_k, v, s, z, out, denominator)
        results.append((*plain, *plain_gradients, out, denominator, *last, *gradients))
    for got, want in zip(*results, strict=True):
        assert_close(got, want)


def test_gradients_over_a_denominator_that_has_no_reciprocal():
    """About 1e-39, in numbers of the network that are as small: the quotients are ordinary."""
    rng = np.random.default_rng(3)
    phi_q, phi_k = (3e-20 * rng.random((2, 2, 9, 3))).astype(np.float32)
    v, d_out = (x * rng.random((2, 9, 5)).astype(np.float32) for x in (np.float32(1), np.float32(1e-22)))
    rows, results = (phi_q, phi_k, v, None, None), []
    out, denominator, *_ = causal_page.normalised_forward(*rows, 0.0)
    with np.errstate(over="ignore"):
        assert np.isinf(1 / denominator).any()
    for product in (loops.linear.causal_product, causal_page):
        results.append(product.normalised_backward(d_out, None, None, *rows, out, denominator)[:3])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * abs(want).max())


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_gradients_without_a_denominator_take_nothing_of_its_state():
    """A sum of keys that is infinite, where all that is asked for is finite."""
    q, k = np.full((1, 14, 1), 1e-4, np.float32), np.full((1, 14, 1), 3e38, np.float32)
    v, d_out = np.full((1, 14, 1), 1e-38, np.float32), np.ones((1, 14, 1), np.float32)
    products = loops.linear.causal_product, causal_page
    got, want = (product.backward(d_out, None, q, k, v, None)[0] for product in products)
    assert np.isfinite(want).all()
    assert_close(got, want)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_query_without_features_gets_0_whatever_the_values():
    q, k, v = (np.ones((1, 9, 2), np.float32) for _ in range(3))  # two chunks
    q[:, 8], v[:, 1] = 0, np.inf
    out, denominator, *_ = loops.linear.causal_product.normalised_forward(q, k, v, None, None, 0.0)
    assert denominator[0, 8] == 0
    assert (out[0, 8] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loops_by_row(dtype):
    rng = np.random.default_rng(2)
    phi_q, phi_k = abs(rng.standard_normal((2, 2, 4, 3))).astype(dtype)
    v, d_out = rng.standard_normal((2, 2, 4, 11)).astype(dtype)  # more columns than a block has threads
    states = [*rng.standard_normal((2, 2, 3, 11)).astype(dtype)]
    for s, d_s in (states, (None, None)):
        results = []
        for product in (loops.linear.causal_product, causal_page):
            forward = product.forward_by_row(phi_q, phi_k, v, s)
            results.append((*forward, *product.backward_by_row(d_out, d_s, phi_q, phi_k, v, s)))
        for got, want in zip(*results, strict=True):
            assert_close(got, want)


def test_no_heads_at_all():
    x = np.empty((0, 4, 3))
    out, s = loops.linear.causal_product.forward(x, x, x, None)
    assert (out.shape, s.shape) == ((0, 4, 3), (0, 3, 3))
    assert loops.softmax.softmax.forward(x, x, x, None, True, 1.0)[0].shape == x.shape


# --- The delta product, in all modes --------------------------------------------------------------------------------


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("erases", [False, True])
@pytest.mark.parametrize("gate", [None, (), (7,)], ids=["no-gate", "a-head", "a-channel"])
def test_delta_product(gate, erases, begins):
    """Gates from one down to 1e-4, and 0; keys apart from what they erase, which no mechanism does; steps, too."""
    rng = np.random.default_rng(1)
    n, c, m = 14, 7, 8  # three tiles of rows, two of features and of columns, the last of each ragged
    q, k, e, v, d_out = (rng.standard_normal((1, n, width)) / 2 for width in (c, c, c, m, m))
    log_gate = None if gate is None else rng.uniform(-9, 0, (1, n, *gate))
    if gate is not None:
        log_gate[:, 4] = -np.inf
    s, d_s = rng.standard_normal((2, 1, c, m)) if begins else (None, None)
    inputs, results = (q, k, v, e if erases else None, log_gate, s), []
    for room in (loops.delta.delta_product, delta_page):
        out, last, u = room.forward(*inputs)
        state = np.zeros_like(last) if s is None else s.copy()
        steps = [room.step(*(None if x is None else x[:, i] for x in inputs[:5]), state) for i in range(3)]
        results.append((out, last, u, *room.backward(d_out, d_s, *inputs, u), *steps, state))
    for got, want in zip(*results, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            assert_close(got, want)
    if gate is not None:
        assert (results[0][7][np.isneginf(log_gate)] == 0).all()


@pytest.mark.parametrize("module", [delta, gated_linear])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradient_of_strong_gates(module, dtype):
    for log_gate in (-0.01, -40.0, None):
        assert_gradient_of_gates(module, cuda, dtype, log_gate, log_gate != -40, 14, 7, 5)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_value_that_is_none_reaches_no_gradient_of_earlier_values():
    """By way of a denominator's state, of which ``d_v`` has no part: 0 times NaN."""
    q, k, v, d_out, _ = draw((1,), 14, 14, 4, 3, False, np.float32)
    v[:, 10, 1] = np.inf
    _, saved = linear.forward(q, k, v, causal=True, kernels=cuda)
    _, expected = linear.forward(q, k, v, causal=True)
    assert_close(linear.backward(d_out, saved).v, linear.backward(d_out, expected).v)


# --- Arrays that are on the GPU -------------------------------------------------------------------------------------


@pytest.fixture
def stand_ins(monkeypatch):
    """CuPy and PyTorch replaced, and their arrays' memory handed to the simulator; nothing is copied to the host."""
    strict_arrays.install(monkeypatch)
    monkeypatch.setattr(numba.cuda, "as_cuda_array", lambda x, sync: FakeCUDAArray(x._x), raising=False)
    monkeypatch.setattr(device, "numba_stream", lambda pointer: 0)
    monkeypatch.setattr(rises, "told", lambda x: getattr(x, "_x", x).item())
    monkeypatch.delattr(FakeCUDAArray, "copy_to_host")
    memory = property(lambda x: {**x._ary.__array_interface__, "stream": 1})
    monkeypatch.setattr(FakeCUDAArray, "__cuda_array_interface__", memory, raising=False)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("case", [case for case in CASES if "cuda" in case.rooms], ids=str)
def test_both_passes_of_arrays_that_are_there(case):
    """The mechanism's text on strict stand-ins for CuPy's arrays, and the kernels on the same memory."""
    call = Setting(case, "reference", masked=True).call(Sizes(5, 9), dtype=np.float32)
    result, expected = both_passes(call, cuda, strict_arrays.Tensor, lambda x: x._x)
    for name, x in expected.items():
        assert_close(result[name], x)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("case", [case for case in CASES if "cuda" in case.rooms and case.takes("groups")], ids=str)
def test_packed_sequences_and_shared_heads_of_arrays_that_are_there(case):
    call = Setting(case, "reference", masked=True).call(Sizes(6, 6, leading=(2,)), dtype=np.float32)
    arrays = {name: x if name == "q" else x[:1] for name, x in call.arrays.items()}
    axes = {"offsets": np.array([0, 0, 2, 6]), "groups": 2, "key_mask": call.options["key_mask"][:1]}
    result, expected = both_passes(call.change(arrays=arrays, **axes), cuda, strict_arrays.Tensor, lambda x: x._x)
    for name, x in expected.items():
        assert_close(result[name], x)


@pytest.mark.usefixtures("stand_ins")
def test_a_step_refuses_a_state_with_gaps():
    """It could only write to a copy."""
    row, s, z = np.ones((2, 4), np.float32), np.zeros((2, 4, 4), np.float32), np.zeros((2, 4), np.float32)
    for gaps, state in ((False, (s, z)), (True, (s.mT, z)), (True, (s, z[:, ::-1]))):
        state = linear.State(*map(strict_arrays.Tensor, state))
        arrays = (strict_arrays.Tensor(row) for _ in range(3))
        with pytest.raises(ValueError, match=r"^state: expected contiguous") if gaps else nullcontext():
            linear.step(*arrays, state, overwrite_state=True, kernels=cuda)
    assert s.any()


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("module", [softmax, linear, delta])
def test_16_bits_are_rounded_once(module, half):
    q, k, v, d_out, _ = (x if x is None else x.astype(half) for x in draw((2,), 5, 5, 4, 4, False, np.float32))
    more = (np.full((2, 5), 0.5, half),) if module is delta else ()
    results = []
    for cast, kernels in ((half, cuda), (np.float64, reference)):
        arrays = [x.astype(cast) for x in (q, k, v, *more)]
        out, saved = module.forward(*arrays, **({} if module is delta else {"causal": True}), kernels=kernels)
        grads = module.backward(d_out.astype(cast), saved)
        results.append([out, *(x for x in grads if x is not None)])
    for got, exact in zip(*results, strict=True):
        assert got.dtype == half
        eps = float(ml_dtypes.finfo(half).eps)
        assert (abs(got.astype(np.float64) - exact) <= eps * abs(exact) + ROUNDINGS * EPS[np.float32]).all()


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("put", [strict_arrays.ndarray, strict_arrays.Tensor, device.cuda.to_device])
def test_steps_write_to_the_callers_state(put):
    q, k, v = (put(x) for x in np.ones((3, 2, 4), np.float32))
    state = linear.State(put(np.zeros((2, 4, 4), np.float32)), put(np.zeros((2, 4), np.float32)))
    after = state
    for _ in range(2):
        out, after = linear.step(q, k, v, after, overwrite_state=True, kernels=cuda)
    assert after.s is state.s
    assert type(out) is type(q)
    assert_close(libraries.as_cupy(state.z)._x, np.full((2, 4), 4, np.float32))


def test_a_denominator_whose_reciprocal_is_infinite():
    """1e-40 in float32: the quotient is an ordinary number."""
    q, v = np.full((1, 5, 1), -46, np.float32), np.linspace(1, 2, 15, dtype=np.float32).reshape(1, 5, 3)
    expected, _ = linear.forward(q, q, v, causal=True, eps=0.0)
    out, _ = linear.forward(q, q, v, causal=True, eps=0.0, kernels=cuda)
    np.testing.assert_allclose(out, expected, rtol=1e-3)  # a denominator has 17 bits here


def test_kernels_alone_take_them_without_cupy():
    q, k, v, *_ = draw((2,), 5, 9, 4, 3, False, np.float32)
    expected = softmax_page.forward(q, k, v, None, True, 0.5)
    got = loops.softmax.softmax.forward(*(device.cuda.to_device(x) for x in (q, k, v)), None, True, 0.5)
    for x, want in zip(got, expected, strict=True):
        assert_close(x.copy_to_host(), want)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mechanism", [softmax, linear], ids=["softmax", "linear"])
def test_a_row_that_sees_nothing(mechanism, causal):
    """A head all of whose keys are masked, without eps: 0, and gradients of 0, where 0 / 0 lies near."""
    *inputs, d_out, _ = draw((2,), 5, 9, 4, 3, False, np.float32)
    key_mask = np.array([[False] * 9, [True] * 9])
    options = {"causal": causal, "key_mask": key_mask, "kernels": cuda} | ({"eps": 0.0} if mechanism is linear else {})
    out, saved = mechanism.forward(*inputs, **options)
    for x in (out, *mechanism.backward(d_out, saved)[:3]):
        assert (x[0] == 0).all()
        assert np.isfinite(x).all()
        assert (x[1] != 0).any()


# --- What to install ------------------------------------------------------------------------------------------------


def test_without_numba_cuda_the_error_says_what_to_install():
    code = """
import sys, types
sys.modules["numba.cuda"] = types.ModuleType("numba.cuda")
import numba
numba.cuda = sys.modules["numba.cuda"]
numba.cuda.implementation = "Built-in"
import linattn_ref.kernels.cuda
"""
    environment = {"PATH": "", "NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: linattn_ref.kernels.cuda needs the package numba-cuda")
    assert "pip install" in last


def test_what_the_benchmark_calls():
    """Its own calls, which otherwise only a GPU would run."""
    torch = SimpleNamespace(__version__="0", nn=SimpleNamespace(functional=SimpleNamespace(elu=elu)))
    calls, _ = bench_cuda.kernels(torch)
    *arrays, _ = draw((1, 1), 8, 8, 5, 5, False, np.float32)
    for mechanism in (linear, softmax):
        name = mechanism.__name__.rpartition(".")[2]
        out, saved = mechanism.forward(*arrays[:3], causal=True)
        expected = out, *(x for x in mechanism.backward(arrays[3], saved) if x is not None)
        for call in (calls[name], calls[f"{name} bfloat16"]):
            got = [x for x in call(bench_cuda.Inputs(*arrays), True) if x is not None]
            for x, y in zip(got, expected, strict=True):
                assert_close(x, y)


def elu(x):
    return np.where(x > 0, x, np.expm1(x))
