"""Every kernel compiled without a GPU, and what it may take of one."""

import importlib
import os
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("numba_cuda", reason="compiles with numba-cuda: pip install 'linattn-ref[cuda12]'")
if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
    pytest.skip("the simulator compiles nothing", allow_module_level=True)

import linattn_ref.kernels.cuda
from linattn_ref.kernels.cuda.offline import assemble, compile_to_ptx, find_ptxas

pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas: pip install 'linattn-ref[cuda12]'")


class Budget(NamedTuple):
    """Of a float32 kernel on sm_80 and sm_90; nothing may be spilled, and no thread needs a stack."""

    module: str
    kernel: str
    arguments: str  # as `offline.compile_to_ptx` reads them
    registers: int  # two blocks of 256 threads on a multiprocessor leave 128
    shared: int  # bytes; a block has at most 48 KiB, float64 included, which takes twice as much


BUDGETS = (
    Budget("rows", "fill", "x1 x", 16, 0),
    Budget("rows", "move", "x3 int x3 int int", 48, 0),
    Budget("rows", "one_where", "b1 x1", 16, 0),
    Budget("rows", "reciprocal", "x1 x1", 24, 0),
    Budget("rows", "scale", "x2 x1 int", 40, 0),
    Budget("rows", "dots", "x3 x3 x2 x", 48, 4160),
    Budget("causal_chunks", "products_of_gates", "x2 x2 x2 x2", 48, 0),
    Budget("causal_chunks", "sums", "x3 x3 x2 x2 x2 x4 x3", 128, 8320),
    Budget("causal_chunks", "scan", "x3 x2 x2 x2 bool", 64, 0),
    Budget("causal_chunks", "forward", "x3 x3 x3 x2 x2 x2 x4 x3 x x3 x2 bool bool", 128, 20800),
    Budget("causal_chunks", "gradient", "x3 x3 x3 x2 x2 x2 x2 x2 x2 x4 x3 x3 bool bool bool", 128, 20800),
    Budget("causal_chunks", "read", "x3 x2 x4 x3 x2 x3 bool", 128, 20800),
    Budget("causal_step", "step_of_a_head", "x2 x2 x2 x3 x2 x x2 bool", 64, 0),
    Budget("elu_plus_one", "write_phi", "x1 x1", 24, 0),
    Budget("elu_plus_one", "multiply_by_slope", "x1 x1", 24, 0),
    Budget("gate_gradient", "inner_products", "x3 x3 x3 x3 x2 x2 x2 x2 x4 x3 x4 x3 x4", 128, 20800),
    Budget("gate_gradient", "accumulate", "x4 x2 x2", 48, 0),
    Budget("pattern_tiles", "forward_tile", "x3 x3 x3 b2 i2 i2 i2 i1 x x2 x3 x2", 96, 22848),
    Budget("pattern_tiles", "gradient_tile", "x3 x3 x3 x3 x3 b2 i2 i2 i2 i1 x x2 x2 x x3 bool bool", 96, 22592),
    Budget("softmax_tiles", "forward_tile", "x3 x3 x3 b2 bool x x3 x2", 128, 21568),
    Budget("softmax_tiles", "gradient_tile", "x3 x3 x3 x3 x3 b2 bool x x2 x2 x x3 bool bool", 128, 20800),
)
capabilities = pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=lambda c: "sm_{}{}".format(*c))
budgets = pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: f"{b.module}.{b.kernel}")


def kernels_of(module):
    """The kernels of a module, by name; not the functions that are put in place of their calls."""
    return {
        name: x
        for name, x in vars(importlib.import_module(f"linattn_ref.kernels.cuda.{module}")).items()
        if hasattr(x, "py_func") and x.py_func.__module__.endswith(f".{module}") and not x.targetoptions.get("device")
    }


def test_every_kernel_has_a_budget():
    modules = (path.stem for path in Path(linattn_ref.kernels.cuda.__file__).parent.glob("[a-z]*.py"))
    found = {(module, kernel) for module in modules for kernel in kernels_of(module)}
    assert found == {(budget.module, budget.kernel) for budget in BUDGETS}


@capabilities
@budgets
def test_float32(budget, capability, tmp_path):
    ptx = compile_to_ptx(kernels_of(budget.module)[budget.kernel], budget.arguments, "float32", capability)
    assert ".f64" not in ptx, "float64 arithmetic in a float32 kernel"
    used = assemble(ptx, capability, tmp_path)
    assert used.registers <= budget.registers
    assert (used.stack, used.spilled) == (0, 0)
    assert used.shared == budget.shared


@pytest.mark.slow
@capabilities
@budgets
def test_float64(budget, capability, tmp_path):
    """It is there for checks, and may spill a number or two of the 128 registers' worth."""
    used = assemble(
        compile_to_ptx(kernels_of(budget.module)[budget.kernel], budget.arguments, "float64", capability),
        capability,
        tmp_path,
    )
    assert used.stack <= 64
    assert used.shared <= 2 * budget.shared <= 48 * 1024  # int32 stays as it is
