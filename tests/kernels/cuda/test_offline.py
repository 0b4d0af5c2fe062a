"""Every kernel compiled without a GPU, and what it may take of one."""

import importlib
import os
import re
from pkgutil import walk_packages

import pytest

pytest.importorskip("numba_cuda", reason="compiles with numba-cuda: pip install 'linattn-ref[cuda12]'")
if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0":
    pytest.skip("the simulator compiles nothing", allow_module_level=True)

from kernels.cuda.budgets import BUDGETS

from linattn_ref.kernels.cuda import loops
from linattn_ref.kernels.cuda.loops.offline import assemble, compile_to_ptx, find_ptxas

pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas: pip install 'linattn-ref[cuda12]'")

capabilities = pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=lambda c: "sm_{}{}".format(*c))
HALF = [budget for budget in BUDGETS if "h" in budget.arguments]  # with words of 16-bit numbers
budgets = pytest.mark.parametrize(
    "budget", [b for b in BUDGETS if b not in HALF], ids=lambda b: f"{b.module}.{b.kernel}"
)
halves = pytest.mark.parametrize("budget", HALF, ids=lambda b: f"{b.module}.{b.kernel}")
MODULES = {found.name.rpartition(".")[2]: found.name for found in walk_packages(loops.__path__, f"{loops.__name__}.")}


def kernels_of(module):
    """The kernels of a module, by name; not the functions that are put in place of their calls."""
    return {
        name: x
        for name, x in vars(importlib.import_module(MODULES[module])).items()
        if hasattr(x, "py_func") and x.py_func.__module__.endswith(f".{module}") and not x.targetoptions.get("device")
    }


def test_every_kernel_has_a_budget():
    found = {(module, kernel) for module in MODULES for kernel in kernels_of(module)}
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


@pytest.mark.parametrize(("numbers", "short"), [("bfloat16", "bf16"), ("float16", "f16")])
@capabilities
@halves
def test_16_bits(budget, numbers, short, capability, tmp_path):
    ptx = compile_to_ptx(kernels_of(budget.module)[budget.kernel], budget.arguments, numbers, capability)
    assert ".f64" not in ptx
    used = assemble(ptx, capability, tmp_path)
    assert used.registers <= budget.registers
    assert (used.stack, used.spilled) == (0, 0)
    assert used.shared == budget.shared
    products = set(re.findall(r"mma\.sync\S*", ptx))
    assert products == ({f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32"} if used.shared else set())


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
