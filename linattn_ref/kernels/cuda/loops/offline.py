"""Compile kernels without a GPU: NVVM writes PTX, ptxas machine code, and says what a thread and a block take.

Both come with ``pip install 'linattn-ref[cuda12]'``. Numba's driver is not asked for anything.
"""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from numba import types

from linattn_ref.kernels.cuda.loops.device import cuda
from linattn_ref.kernels.cuda.loops.tensor_cores import BFLOAT16, FLOAT16


class Resources(NamedTuple):
    registers: int  # of a thread; 65 536 a multiprocessor
    stack: int  # bytes of a thread in memory that should have been registers
    spilled: int  # bytes stored because registers ran out
    shared: int  # bytes of a block


def find_ptxas():
    """The program's path, or None."""
    spec = importlib.util.find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("*/bin/ptxas")):
            return str(path)
    return shutil.which("ptxas")


def signature_of(arguments, real):
    """Numba's types for a string of words, see :func:`compile_to_ptx`."""
    half = {"bfloat16": BFLOAT16, "float16": FLOAT16}.get(real)
    kinds = {"x": types.float32 if half else getattr(types, real), "b": types.boolean, "i": types.int32}
    kinds |= {"s": types.int16, "h": getattr(types, half or FLOAT16)}
    scalars = {"x": kinds["x"], "i": types.int32, "bool": types.boolean, "int": types.int64}
    return tuple(
        scalars[word] if word in scalars else types.Array(kinds[word[0]], int(word[1:]), "C")
        for word in arguments.split()
    )


def compile_to_ptx(kernel, arguments, real, capability):
    """PTX of a kernel.

    Parameters
    ----------
    kernel : the dispatcher
    arguments : str
        A word for each argument: ``x3`` is a contiguous array of ``real`` with three axes, ``b2`` one of bool, ``i2``
        of int32, ``s2`` of int16, ``h3`` one of words of two 16-bit numbers, ``x`` and ``i`` a number of such,
        ``bool`` and ``int`` themselves.
    real : str
        ``"float32"`` or ``"float64"``; ``"bfloat16"`` or ``"float16"`` say what words hold, with float32 beside them.
    capability : tuple of int
    """
    signature = signature_of(arguments, real)
    ptx, _ = cuda.compile_ptx(
        kernel.py_func, signature, cc=capability, launch_bounds=kernel.targetoptions.get("launch_bounds")
    )
    return ptx


def assemble(ptx, capability, folder):
    """What ptxas says of it."""
    source = Path(folder) / "kernel.ptx"
    source.write_text(ptx)
    architecture = "sm_{}{}".format(*capability)
    command = [find_ptxas(), "-v", f"-arch={architecture}", str(source), "-o", str(source.with_suffix(".cubin"))]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    def number(pattern):
        found = re.search(pattern, told)
        return int(found[1]) if found else 0

    return Resources(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes smem"),
    )
