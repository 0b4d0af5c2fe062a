"""What `linattn-ref spectrum` costs beside the singular values themselves.

The yardstick is a bare loop of ``scipy.linalg.svdvals`` on one thread, over float32 attention matrices of the same size
(random queries and keys): its CPU time per matrix, times the number of matrices of the figure. The job is the command
itself in a process of its own, and everything counts: Python's start, imports, reading model and text, forward passes,
baselines, worker processes, drawing. The loop runs before and after it, since a shared machine's speed drifts.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits

from linattn_ref.experiments.publishing.kit import Array, Results
from linattn_ref.experiments.rank.spectrum_inputs import of_noise
from linattn_ref.theory.spectrum import Method

__all__ = ["compute", "table"]

SAMPLE = 120  # matrices of the loop, before and after


def compute(*, sentences: int = 32, length: int = 512, workers: int = 1, method: Method = "svd") -> Results:
    """Compare the CPU time of `linattn-ref spectrum` with a bare loop of scipy.linalg.svdvals.

    Both go over as many matrices of the same size; imports, forward passes, baselines, workers and drawing count too.

    Parameters
    ----------
    sentences : int
        Of the figure.
    length : int
        Tokens per sentence.
    workers : int
        Processes, of one BLAS thread each; of the command by default all cores.
    method : {"svd", "gram"}
        As in `linattn-ref spectrum`.

    Raises
    ------
    RuntimeError
        The command failed; what it said.
    """
    sample = next(of_noise(SAMPLE, length, length, 32, np.random.SeedSequence(0)))  # (SAMPLE, N, N)
    before = loop_seconds(sample)
    with tempfile.TemporaryDirectory() as out:
        options = {"sentences": sentences, "length": length, "workers": workers, "method": method}
        job_cpu, job_wall, n_matrices = run_job(Path(out), options)
    after = loop_seconds(sample)
    loop_cpu = n_matrices * statistics.mean([before, after])
    return Results(
        matrices=n_matrices,  # of the figure, without the baselines
        length=length,
        method=method,
        workers=workers,
        matrix_before=before,  # seconds of CPU for one matrix in the bare loop
        matrix_after=after,
        loop_cpu=loop_cpu,  # the bare loop over all matrices, seconds
        job_cpu=job_cpu,
        job_wall=job_wall,
        ratio=job_cpu / loop_cpu,
    )


def loop_seconds(matrices: Array) -> float:
    """CPU time for the singular values of one of the ``matrices (S, N, N)``, in a bare loop on one thread."""
    with threadpool_limits(1):
        scipy.linalg.svdvals(matrices[0])  # the first call loads code
        start = time.process_time()
        for matrix in matrices:
            scipy.linalg.svdvals(matrix)
        return (time.process_time() - start) / len(matrices)


def run_job(out: Path, options: dict[str, Any]) -> tuple[float, float, int]:
    """CPU and wall seconds of ``linattn-ref spectrum`` with these options, and how many matrices it went over."""
    command = [sys.executable, "-m", "linattn_ref", "spectrum", f"--out={out}"]
    command += [f"--{name}={value}" for name, value in options.items()]
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, os.times()
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
    given = json.loads((out / "spectrum.json").read_text(encoding="utf-8"))["results"]["curves"]["given"]
    cpu = sum(after[2:4]) - sum(before[2:4])  # children, user and system; its workers are among them
    return cpu, wall, given["sentences"] * sum(len(row) for row in given["at_k"])


def table(results: Results) -> str:
    """The comparison as lines of text."""
    per_matrix = f"{1e3 * results.matrix_before:.1f} ms before, {1e3 * results.matrix_after:.1f} ms after"
    lines = (
        f"{results.matrices} matrices {results.length} x {results.length}, float32",
        f"bare loop of scipy.linalg.svdvals, CPU      {results.loop_cpu:7.1f} s ({per_matrix}, a matrix)",
        f"linattn-ref spectrum --method {results.method:<4}, CPU      {results.job_cpu:7.1f} s",
        f"    wall, {results.workers} workers {results.job_wall:33.1f} s",
        f"CPU time over the loop's                    {results.ratio:7.2f}",
    )
    return "\n".join(lines)
