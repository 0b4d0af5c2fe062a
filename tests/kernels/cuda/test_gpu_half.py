"""The kernels for bfloat16 and float16 on a GPU: ``pytest -m gpu``. The simulator's checks, at larger sizes."""

import importlib

import numpy as np
import pytest
from kernels.cuda.test_gpu import to_cupy, to_host, to_numba, to_torch

pytestmark = pytest.mark.gpu
FORMATS = pytest.mark.parametrize("numbers", ["bfloat16", "float16"])
SIZES = [  # leading axes, N, L, D, M
    ((), 1, 1, 1, 1),
    ((2,), 7, 17, 4, 3),
    ((2, 2), 70, 70, 19, 34),
    ((1,), 300, 300, 6, 5),
    ((2,), 129, 200, 65, 130),  # several tiles of each width, the last ones ragged
    ((1,), 1000, 1000, 256, 256),
]


@pytest.fixture(scope="module")
def cases():
    """The checks, where there is a GPU for them."""
    pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'linattn-ref[cuda12]'")
    device = importlib.import_module("linattn_ref.kernels.cuda.loops.device")
    if device.SIMULATED or not device.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    if device.cuda.get_current_device().compute_capability < (8, 0):
        pytest.skip("bfloat16 on tensor cores needs compute capability 8.0")
    return importlib.import_module("kernels.cuda.half_cases")


def put_torch(x):
    """With PyTorch's own bfloat16; NumPy has the bits only."""
    if x.dtype.itemsize != 2:
        return to_torch(x)
    torch = pytest.importorskip("torch", reason="compares with PyTorch's arrays")
    return to_torch(x.view(np.int16)).view(torch.float16 if x.dtype == np.float16 else torch.bfloat16)


def get_torch(x):
    torch = importlib.import_module("torch")
    if x.dtype not in (torch.bfloat16, torch.float16):
        return to_host(x)
    return to_host(x.view(torch.int16)).view(np.float16 if x.dtype == torch.float16 else "V2")


@FORMATS
def test_the_instruction_is_a_matrix_product(cases, numbers):
    cases.check_instruction(numbers)


@FORMATS
@pytest.mark.parametrize(("causal", "masked"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_softmax(cases, numbers, sizes, causal, masked):
    cases.check_softmax(numbers, sizes, causal=causal, masked=masked)


@FORMATS
@pytest.mark.parametrize(("normalised", "continued"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_causal_product(cases, numbers, sizes, normalised, continued):
    leading, n, _, c, m = sizes
    cases.check_causal_product(numbers, (leading, n, c, m), normalised=normalised, continued=continued)


@pytest.mark.parametrize(
    ("put", "get", "numbers"),
    [
        (put_torch, get_torch, "bfloat16"),
        (put_torch, get_torch, "float16"),
        (to_cupy, to_host, "float16"),
        (to_numba, to_host, "float16"),
    ],
    ids=["PyTorch bfloat16", "PyTorch float16", "CuPy", "Numba"],
)
@pytest.mark.parametrize("width", [40, 37])
def test_arrays_of_a_library_in_and_out(cases, put, get, numbers, width):
    sizes = (2, 3), 150, 200, width, width + 30
    cases.check_softmax(numbers, sizes, causal=True, masked=True, put=put, get=get)
    sizes = (2, 3), 150, width, width + 30
    cases.check_causal_product(numbers, sizes, normalised=True, continued=True, put=put, get=get)


def test_a_view_that_begins_at_an_odd_place(cases):
    """Such a tensor cannot be read as words; it is copied."""
    torch = pytest.importorskip("torch", reason="makes the tensor")
    cuda = importlib.import_module("linattn_ref.kernels.cuda")
    x = torch.randn(2 * 70 * 4 + 1, device="cuda").to(torch.bfloat16)[1:].view(2, 70, 4)
    results = (cuda.loops.softmax.softmax.forward(y, y, y, None, True, 0.5)[0] for y in (x, x.clone()))
    assert torch.equal(*results)


@FORMATS
def test_called_twice_the_same_bits(cases, numbers):
    cuda = importlib.import_module("linattn_ref.kernels.cuda")
    rng = np.random.default_rng(0)
    q, k, v, g = (cases.rounded(rng.uniform(size=(2, 300, 40)), numbers)[0] for _ in range(4))
    runs = []
    for _ in range(2):
        out, *rows = cuda.loops.softmax.softmax.forward(q, k, v, None, True, 0.2)
        results = out, *cuda.loops.softmax.softmax.backward(g, q, k, v, out, *rows, None, True, 0.2)
        out, denominator, s, z = cuda.loops.linear.causal_product.normalised_forward(q, k, v, None, None, 1e-6)
        inputs = q, k, v, None, None
        rest = cuda.loops.linear.causal_product.normalised_backward(g, None, None, *inputs, out, denominator)
        runs.append([x.tobytes() for x in (*results, out, denominator, s, z, *rest) if x is not None])
    assert runs[0] == runs[1]
