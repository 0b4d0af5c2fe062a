"""The kernels on a GPU: ``pytest -m gpu``. Everything that the simulator tests at small tiles, here at real ones."""

import importlib

import numpy as np
import pytest
from case import Setting, Sizes, assert_close
from cases import CASES
from kernels.cuda.on_gpu import both_passes, on_host, prefill_and_steps

from linattn_ref.attention import linear, softmax
from linattn_ref.kernels import reference

pytestmark = pytest.mark.gpu
SIZES = [
    Sizes(1, 1, 1, 1, ()),
    Sizes(7, 17, 4, 3, (2,)),
    Sizes(35, 70, 19, 34, (2, 2)),
    Sizes(300, 300, 5, 6, (1,)),
    Sizes(129, 200, 65, 130, (2,)),  # several tiles of each width, the last ones ragged
    Sizes(1000, 1000, 256, 256, (1,)),
]
WITH_KERNELS = [case for case in CASES if case.rooms]
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.fixture(scope="module")
def cuda():
    """The room, where there is a GPU for it."""
    pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'linattn-ref[cuda12]'")
    device = importlib.import_module("linattn_ref.kernels.cuda.loops.device")
    if device.SIMULATED or not device.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    return importlib.import_module("linattn_ref.kernels.cuda")


def to_torch(x):
    torch = pytest.importorskip("torch", reason="compares with PyTorch's arrays")
    return torch.from_numpy(x).cuda()


def to_cupy(x):
    return pytest.importorskip("cupy", reason="compares with CuPy's arrays").asarray(x)


def to_numba(x):
    return importlib.import_module("numba.cuda").to_device(np.ascontiguousarray(x))


def to_host(x):
    for name in ("copy_to_host", "get"):
        if hasattr(x, name):
            return getattr(x, name)()
    return x.cpu().numpy()


LIBRARIES = pytest.mark.parametrize("put", [to_torch, to_cupy, to_numba], ids=["PyTorch", "CuPy", "Numba"])


@DTYPES
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("case", WITH_KERNELS, ids=str)
def test_both_passes_are_the_references(cuda, case, sizes, masked, dtype):
    try:
        result = Setting(case, "cuda", masked).call(sizes, dtype=dtype).run().named()
    except TypeError as error:
        if not str(error).startswith("kernels: "):
            raise
        pytest.skip("has no CUDA kernel")
    call = Setting(case, "reference", masked).call(sizes, dtype=dtype)
    expected, exact = call.run().named(), call.astype(np.float64).run().named()
    assert result.keys() == expected.keys()
    for name, x in expected.items():
        assert result[name].dtype == dtype
        of_reference = abs(x - exact[name]).max(initial=0)  # its own roundings: sums of a thousand numbers have some
        assert_close(result[name], exact[name], case, name, of_reference)


@LIBRARIES
@DTYPES
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", WITH_KERNELS, ids=str)
def test_arrays_of_a_library_in_and_out(cuda, put, case, masked, dtype):
    """The mechanism's own text, which CuPy runs, around the kernels."""
    pytest.importorskip("cupy", reason="runs the text on the GPU: pip install 'linattn-ref[cuda12]'")
    call = Setting(case, "reference", masked).call(Sizes(150, 200, 40, 70, (2, 3)), dtype=dtype)
    result, expected = both_passes(call, cuda, put, lambda x: to_host(of_kind(put, x)))
    assert result.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(result[name], x, case, name)


@LIBRARIES
@pytest.mark.parametrize("case", [case for case in WITH_KERNELS if case.recurrent], ids=str)
def test_states_of_a_library_in_and_out(cuda, put, case):
    pytest.importorskip("cupy", reason="runs the text on the GPU: pip install 'linattn-ref[cuda12]'")
    call = Setting(case, "reference", masked=False).call(Sizes(6, 6), dtype=np.float32)
    outs, state = prefill_and_steps(call, cuda, put, first=3)
    first, *steps = on_host(outs, lambda x: to_host(of_kind(put, x)))
    assert_close(np.concatenate([first, np.stack(steps, axis=-2)], axis=-2), call.run().out, case)
    on_host(state, lambda x: of_kind(put, x))


def of_kind(put, x):
    assert type(x) is type(put(np.ones(1)))
    return x


def test_work_is_done_on_the_callers_stream(cuda):
    """A stream that is busy delays what reads its result; another one would not wait."""
    torch = pytest.importorskip("torch", reason="makes the stream")
    q = torch.zeros((1, 256, 32), device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        q.fill_(1.0)
        v = torch.randn((1, 256, 32), device="cuda")
        out, _ = linear.forward(q, q, v, causal=True, kernels=cuda)
    stream.synchronize()
    ones = np.ones((1, 256, 32), np.float32)
    expected, _ = linear.forward(ones, ones, v.cpu().numpy(), causal=True)
    np.testing.assert_allclose(out.cpu().numpy(), expected, atol=1e-4)


def test_called_twice_the_same_bits(cuda):
    rng = np.random.default_rng(0)
    q, k, v, d_out = (to_numba(x) for x in rng.standard_normal((4, 2, 1000, 64)).astype(np.float32))
    for mechanism in (softmax, linear):
        results = []
        for _ in range(2):
            out, saved = mechanism.forward(q, k, v, causal=True, kernels=cuda)
            arrays = out, *mechanism.backward(d_out, saved)  # with None for a state that was not given
            results.append([to_host(x) for x in arrays if x is not None])
        for first, second in zip(*results, strict=True):
            np.testing.assert_array_equal(first, second)


def test_more_chunks_than_the_scan_reads_ahead(cuda):
    q, k, v, d_out = np.random.default_rng(0).standard_normal((4, 2, 2500, 8))
    results = []
    for kernels in (reference, cuda):
        out, saved = linear.forward(q, k, v, causal=True, kernels=kernels)
        results.append([out, *linear.backward(d_out, saved)[:3]])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


def test_a_mix_of_libraries_is_one_clear_error(cuda):
    x = np.ones((2, 3, 4), np.float32)
    with pytest.raises(TypeError, match=r"^k: expected torch tensor on cuda:0 like .*, got numpy array"):
        linear.forward(to_torch(x), x, to_torch(x), kernels=cuda)
    with pytest.raises(TypeError, match=r"^q: expected a numpy\.ndarray, got Tensor"):
        linear.forward(to_torch(x).cpu(), x, x, kernels=cuda)
