"""What fits on a multiprocessor, and the committed record of what the kernels take."""

import json
from pathlib import Path

import pytest
from kernels.cuda.budgets import BUDGETS

from linattn_ref.experiments.cost import cuda_occupancy
from linattn_ref.experiments.cost.cuda_occupancy import LIMITS, resident_warps, room

RECORD = Path(__file__).parents[3] / "figures" / "cuda_occupancy.json"


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "warps"),
    [
        (128, 0, 256, 16),  # 65 536 / 128 = 512 threads
        (129, 0, 256, 8),  # 136 of each of 256 threads: one block
        (32, 0, 256, 64),
        (33, 0, 256, 48),  # rounded up to 40
        (40, 0, 64, 48),  # a fourth of the registers is for 12 warps
        (32, 0, 32, 32),  # as many warps as slots for blocks
        (16, 48 * 1024, 256, 24),  # three times 49 KiB of 164
        (255, 0, 1024, 0),  # cannot be started
    ],
)
def test_resident_warps(registers, shared, threads, warps):
    assert resident_warps(LIMITS["sm_80"], registers, shared, threads) == warps


def test_newer_architecture_has_more_shared_memory():
    assert [room(limits, 16, 48 * 1024)["shared memory"] for limits in LIMITS.values()] == [3, 4]


def test_float64_instructions_are_found():
    ptx = ".reg .f64 %fd<3>;\n\tcvt.f64.f32 \t%fd1, %f1;\n\tmul.f32 \t%f2, %f1, %f1;\n"
    assert cuda_occupancy.float64_instructions(ptx) == ("cvt.f64.f32 %fd1, %f1;",)


def test_record_is_of_the_kernels_as_they_are_called():
    budgets = {(b.module, b.kernel): b for b in BUDGETS}
    kernels = [(module.rpartition(".")[2], *rest) for module, *rest in cuda_occupancy.KERNELS]
    for module, kernel, arguments in kernels:
        assert budgets[module, kernel].arguments == arguments
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["results"]["rows"]
    told = {(row["module"], row["kernel"]) for row in rows}
    assert told == {(module, kernel) for module, kernel, _ in kernels}
    for row in rows:
        if row["dtype"] == "float32":
            budget = budgets[row["module"], row["kernel"]]
            assert row["registers"] <= budget.registers
            assert row["shared"] == budget.shared
            assert row["spilled"] == row["float64"] == 0
