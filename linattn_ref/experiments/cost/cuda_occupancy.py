"""What the CUDA kernels take of a GPU, reported by NVIDIA's compiler on a machine without one; nothing is run.

A multiprocessor runs as many blocks at a time as its registers, its shared memory, its warps and its slots for blocks
allow, the smallest of the four. More blocks mean more warps to go on with while others wait for memory.

Three kernels of one line each are compiled as well, to show what a Python float does to a float32 kernel.

References
----------
NVIDIA, "CUDA C++ programming guide", technical specifications by compute capability; "CUDA occupancy calculator".
"""

import importlib
import importlib.metadata
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from linattn_ref.experiments.publishing.kit import Figure, Results, style

__all__ = ["LIMITS", "compute", "draw", "resident_warps"]

THREADS = 256
BOUND = 128  # registers per thread, which the compiler is told
# The kernels of linear and softmax attention: module, name, types of the arguments as `offline.compile_to_ptx` reads.
KERNELS = (
    ("linear.causal_states", "sums", "x3 x3 x2 x4 x3"),
    ("linear.causal_states", "scan", "x3 x3 x2 x2 x2 x2 bool"),
    ("linear.causal_chunks", "forward", "x3 x3 x3 x4 x3 x x3 x2 bool"),
    ("linear.causal_chunks", "gradient", "x3 x3 x3 x2 x2 x4 x3 x3 bool bool"),
    ("softmax.softmax_tiles", "forward_tile", "x3 x3 x3 b2 bool x x x3 x2 x2"),
    ("softmax.softmax_tiles", "gradient_tile", "x3 x3 x3 x3 x3 b2 bool x x x2 x2 x x3 bool bool"),
)


# --- What fits on a multiprocessor ----------------------------------------------------------------------------------


class Limits(NamedTuple):
    """Of one multiprocessor."""

    registers: int
    shared: int  # bytes
    warps: int
    blocks: int


LIMITS = {"sm_80": Limits(65_536, 164 * 1024, 64, 32), "sm_90": Limits(65_536, 228 * 1024, 64, 32)}
WARP = 32  # threads
PARTS = 4  # of a multiprocessor: each has a fourth of the registers, and a warp lives in one of them
REGISTERS_AT_ONCE = 256  # a warp's registers are given out in so many
SHARED_AT_ONCE, SHARED_OF_SYSTEM = 128, 1024  # bytes of a block, given out in so many; taken besides


def room(limits: Limits, registers: int, shared: int, threads: int = THREADS) -> dict[str, int]:
    """How many blocks fit by each limit, for ``registers`` per thread and ``shared`` bytes per block."""
    warps = -(-threads // WARP)
    of_a_warp = -(-registers * WARP // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE  # rounded up
    of_a_block = -(-(shared + SHARED_OF_SYSTEM) // SHARED_AT_ONCE) * SHARED_AT_ONCE
    return {
        "registers": PARTS * (limits.registers // PARTS // of_a_warp) // warps,
        "shared memory": limits.shared // of_a_block,
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }


def resident_warps(limits: Limits, registers: int, shared: int, threads: int = THREADS) -> int:
    """Warps that a multiprocessor keeps at a time."""
    return min(room(limits, registers, shared, threads).values()) * -(-threads // WARP)


# --- Compiling ------------------------------------------------------------------------------------------------------


def compute() -> Results:
    """Compile every kernel for float32 and float64 and two architectures.

    Raises
    ------
    ImportError
        The compiler is missing (extra cuda12).
    """
    offline: Any = importlib.import_module("linattn_ref.kernels.cuda.loops.offline")
    rows = []
    for module, name, arguments in KERNELS:
        kernel = getattr(importlib.import_module(f"linattn_ref.kernels.cuda.loops.{module}"), name)
        for dtype in ("float32", "float64"):
            for architecture, limits in LIMITS.items():
                capability = int(architecture[3]), int(architecture[4])
                ptx = offline.compile_to_ptx(kernel, arguments, dtype, capability)
                with tempfile.TemporaryDirectory() as folder:
                    used = offline.assemble(ptx, capability, folder)
                row = Results(module=module.rpartition(".")[2], kernel=name, dtype=dtype, architecture=architecture)
                row |= {name: getattr(used, name) for name in ("registers", "spilled", "shared")}  # spilled: bytes
                row |= {"float64": len(float64_instructions(ptx))}
                row |= {"warps": resident_warps(limits, used.registers, used.shared)}  # on a multiprocessor
                rows.append(row)
    lines = [  # kernels that multiply the entries of a float32 array
        Results(
            statement=statement,
            float64=float64_instructions(offline.compile_to_ptx(kernel, "x1 x x1", "float32", (9, 0))),
        )
        for statement, kernel in _one_line_kernels().items()
    ]
    packages = ("numba-cuda", "nvidia-cuda-nvcc-cu12")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return Results(compilers=versions, rows=tuple(rows), lines=tuple(lines))


def float64_instructions(ptx: str) -> tuple[str, ...]:
    """The lines of PTX with float64 in them."""
    return tuple(" ".join(line.split()) for line in ptx.splitlines() if ".f64" in line and ".reg" not in line)


def _one_line_kernels() -> Mapping[str, Any]:
    from linattn_ref.kernels.cuda.loops.device import cuda, kernel

    @kernel
    def a_tenth(x, factor, out):  # type: ignore[no-untyped-def]
        out[cuda.threadIdx.x] = x[cuda.threadIdx.x] * 0.1

    @kernel
    def a_half(x, factor, out):  # type: ignore[no-untyped-def]
        out[cuda.threadIdx.x] = x[cuda.threadIdx.x] * 0.5

    @kernel
    def by_an_argument(x, factor, out):  # type: ignore[no-untyped-def]
        out[cuda.threadIdx.x] = x[cuda.threadIdx.x] * factor

    return {"out[i] = x[i] * 0.1": a_tenth, "out[i] = x[i] * 0.5": a_half, "out[i] = x[i] * factor": by_an_argument}


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Registers and shared memory of the CUDA kernels, as NVIDIA's assembler reports them for compute capability 9.0.
    The staircases tell how many warps of blocks of 256 threads fit on a multiprocessor by either alone; a mark is a
    kernel of linear or of softmax attention. Filled: float32; hollow: float64. Dotted: what the compiler was told to
    stay below, but for the scan. Registers decide. Compiled; nothing was run.
    """
    figure, axes = style.figure(1, 2, height=0.42, sharey=True)
    limits = LIMITS["sm_90"]
    takes = (
        (range(16, 257), lambda x: resident_warps(limits, x, 0), "registers", 1),
        (range(0, 100 * 1024, 256), lambda x: resident_warps(limits, 1, x), "shared", 1024),
    )
    for axis, (sizes, warps, field, unit) in zip(axes, takes, strict=True):
        x, y = [size / unit for size in sizes], [warps(size) for size in sizes]
        axis.plot(x, y, "-", color=style.GREY, drawstyle="steps-pre")
        for row in results.rows:
            if row.architecture == "sm_90":
                of, marker = ("softmax", "s") if "softmax" in row.module else ("linear", "o")
                face, size = None if row.dtype == "float32" else "white", getattr(row, field)
                look = {"color": style.MECHANISMS[of], "mfc": face, "label": f"{of}, {row.dtype}", "clip_on": False}
                axis.plot(size / unit, warps(size), marker, zorder=3, **look)
    axes[0].axvline(BOUND, color=style.GREY, ls=":")
    axes[0].set(xlabel="registers per thread", ylabel="warps that fit", title="By registers", ylim=(0, 66))
    axes[0].set(xticks=range(0, 257, 64), yticks=range(0, 65, 16))
    axes[1].set(xlabel="shared memory per block (KiB)", title="By shared memory")
    named = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named, loc="outside lower center", ncols=4)
    return figure
