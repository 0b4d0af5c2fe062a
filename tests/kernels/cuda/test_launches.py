"""What the Python functions hand to kernels, without a GPU: the types that ``test_offline.py`` compiles, and no others.

A Python float where a float32 is meant would compile another kernel, with float64 in it, and only on a GPU.
"""

import os

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'linattn-ref[cuda12]'")
if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
    pytest.skip("the simulator has no types", allow_module_level=True)

import numba
from kernels.cuda.budgets import BUDGETS

from linattn_ref.attention.sparse import part
from linattn_ref.kernels import cuda
from linattn_ref.kernels.cuda.loops import arrays, device
from linattn_ref.kernels.cuda.loops.offline import signature_of
from linattn_ref.kernels.cuda.loops.sparse.pattern_tasks import SHORT

EXPECTED = {(budget.module, budget.kernel): budget.arguments for budget in BUDGETS}
HALF = {name for name in EXPECTED if name[0].startswith("half_")}
ALSO = {("arrays", "fill"): ["b1 bool"]}  # a mask without a masked key
MODES = list(np.ndindex(2, 2, 2))


@pytest.fixture
def launches(monkeypatch):
    """The kernels that are launched, by name, with the types of their arguments; nothing runs."""
    seen = set()

    def record(kernel, grid, block, stream, *arguments):
        assert all(isinstance(size, int) for size in (*grid, *block))
        function = kernel.py_func
        name = function.__module__.rpartition(".")[2], function.__name__
        seen.add((name, tuple(numba.typeof(x) for x in arguments)))

    def library(model):
        return arrays.Library(np.ascontiguousarray, np.zeros, None, lambda x: x, np.ascontiguousarray, 0)

    monkeypatch.setitem(arrays._LIBRARIES, "numpy", library)
    monkeypatch.setattr(device, "check_gpu", lambda: None)
    monkeypatch.setattr(device, "as_device_array", lambda x: x)
    monkeypatch.setattr(device, "check_tensor_cores", lambda: None)
    monkeypatch.setattr(device, "address", lambda x: 0)
    monkeypatch.setattr(device, "launch", record)
    return seen


def causal_product(dtype, continued):
    n, c, m = 70, 5, 3
    q, k, v, g = (np.ones((2, n, width), dtype) for width in (c, c, m, m))
    s, z = (np.ones((2, c, m), dtype), np.ones((2, c), dtype)) if continued else (None, None)
    product = cuda.causal_product
    product.forward(q, k, v, s)
    product.backward(g, s, q, k, v, s)
    product.forward_by_row(q, k, v, s)
    product.backward_by_row(g, s, q, k, v, s)
    out, denominator, *_ = product.normalised_forward(q, k, v, s, z, 1e-6)
    product.normalised_backward(g, s, z, q, k, v, s, z, out, denominator)


def delta_product(dtype, gated, erases, continued):
    n, c, m = 70, 5, 3
    q, k, v, g, e = (np.ones((2, n, width), dtype) for width in (c, c, m, m, c))
    s, product = np.ones((2, c, m), dtype) if continued else None, cuda.delta_product
    for log_gate in (np.zeros((2, n), dtype), np.zeros((2, n, c), dtype)) if gated else (None,):
        inputs = q, k, v, e if erases else None, log_gate, s
        _, _, u = product.forward(*inputs)
        product.backward(g, s, *inputs, u)
        product.step(*(None if x is None else x[:, 0] for x in inputs[:5]), np.ones((2, c, m), dtype))


def softmax(dtype, masked, causal):
    q, k, v, g = (np.ones((2, rows, width), dtype) for rows, width in ((5, 4), (7, 4), (7, 3), (5, 3)))
    mask = np.ones((2, 7), bool) if masked else None
    out, *rows = cuda.loops.softmax.softmax.forward(q, k, v, mask, causal, 0.5)
    cuda.loops.softmax.softmax.backward(g, q, k, v, out, *rows, mask, causal, 0.5)


def zeros_of_16_bits(numbers, *widths):
    """Rows of the widths, for two heads; bfloat16 as bits."""
    return [np.zeros((2, 70, width), np.int16).view("V2" if numbers == "bfloat16" else np.float16) for width in widths]


def half_causal_product(numbers, continued, odd):
    c, m = (5, 3) if odd else (6, 4)
    q, k, v, g = zeros_of_16_bits(numbers, c, c, m, m)
    s, z = (np.ones((2, c, m), np.float32), np.ones((2, c), np.float32)) if continued else (None, None)
    product = cuda.causal_product
    product.forward(q, k, v, s)
    product.backward(g, s, q, k, v, s)
    out, denominator, *_ = product.normalised_forward(q, k, v, s, z, 1e-6)
    product.normalised_backward(g, s, z, q, k, v, s, z, out, denominator)


def half_softmax(numbers, masked, causal):
    q, k, v, g = zeros_of_16_bits(numbers, 4, 4, 3, 3)
    mask = np.ones((2, 70), bool) if masked else None
    out, *rows = cuda.loops.softmax.softmax.forward(q, k, v, mask, causal, 0.5)
    cuda.loops.softmax.softmax.backward(g, q, k, v, out, *rows, mask, causal, 0.5)


def pattern_softmax(dtype, masked):
    n, n_keys = 5, SHORT + 1  # in two pieces
    q, k, v, g = (np.ones((2, rows, width), dtype) for rows, width in ((n, 4), (n_keys, 4), (n_keys, 3), (n, 3)))
    mask = np.ones((2, n_keys), bool) if masked else None
    pattern = (part.columns(n, n_keys, range(n_keys)),)
    out, *rows = cuda.loops.sparse.pattern_softmax.forward(q, k, v, mask, pattern, 0.5)
    cuda.loops.sparse.pattern_softmax.backward(g, q, k, v, out, *rows, mask, pattern, 0.5)


def lsh(dtype):
    q, k, v, g = (np.ones((2, 5, width), dtype) for width in (4, 4, 3, 3))
    order, seen = np.zeros((2, 2, 5), np.int32), np.full(2, 5)
    out, *rows = cuda.loops.sparse.lsh.forward(q, k, v, order, seen, 2, False, 0.5)
    cuda.loops.sparse.lsh.backward(g, q, k, v, out, *rows, order, seen, 2, False, 0.5)


def feature_map_and_steps(dtype):
    q, k, v, s = (np.ones(shape, dtype) for shape in ((2, 4), (2, 4), (2, 3), (2, 4, 3)))
    cuda.loops.linear.causal_product.step(q, k, v, s, q.copy(), 1e-6)
    cuda.elu_plus_one.step(q, k, v, s, q.copy(), 1e-6)
    phi, saved = cuda.elu_plus_one.forward(s)
    cuda.elu_plus_one.backward(phi, saved)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_types_are_those_that_are_compiled(launches, dtype):
    for mode in MODES:
        delta_product(dtype, *mode)
    for masked, causal in np.ndindex(2, 2):
        softmax(dtype, bool(masked), bool(causal))
    for on in (False, True):
        causal_product(dtype, on)
        pattern_softmax(dtype, on)
    lsh(dtype)
    feature_map_and_steps(dtype)
    assert set(EXPECTED) - HALF <= {name for name, _ in launches}, "these have a budget, and nothing launches them"
    check_types(launches, np.dtype(dtype).name)


@pytest.mark.parametrize("numbers", ["bfloat16", "float16"])
def test_types_of_16_bits(launches, numbers):
    for mode in np.ndindex(2, 2):
        half_causal_product(numbers, *mode)
        half_softmax(numbers, *map(bool, mode))
    assert {name for name, _ in launches} >= HALF, "these have a budget, and nothing launches them"
    check_types(launches, numbers)


def check_types(launches, real):
    for name, types in launches:
        known = [EXPECTED[name], *ALSO.get(name, ())]
        assert types in [signature_of(words, real) for words in known], name
