"""The few ratios that README.md shows, taken from the records of the benches: what, against whom, how much, where.

Then some shares: of memory, and of what the processor gives at best, measured in the same run.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["table"]


class Headline(NamedTuple):
    """One row of a bench's record."""

    what: str
    whom: str
    bench: str
    row: Mapping[str, Any]  # what the row says of itself


HEADLINES = (
    Headline(
        "Softmax attention, causal, forward + backward, N = 2048",
        "PyTorch's `scaled_dot_product_attention`",
        "bench_softmax",
        {"length": 2048, "causal": True, "passes": "forward + backward", "kernel": "pytorch"},
    ),
    Headline(
        "Linear attention, causal, forward + backward, N = 4096",
        "fast-transformers, by the paper's authors",
        "bench_linear",
        {"size": 4096, "task": "attention, forward + backward", "kernel": "fast-transformers"},
    ),
    Headline(
        "Linear attention, one token of the recurrent form",
        "fast-transformers",
        "bench_linear",
        {"size": 1, "task": "step", "kernel": "fast-transformers"},
    ),
    Headline(
        "A training step: 8 layers of 256, linear attention, N = 784",
        "PyTorch's eager mode with fast-transformers' product",
        "bench_training",
        {"layers": 8, "attention": "linear", "kernel": "fast-transformers"},
    ),
    Headline(
        "The same, softmax",
        "PyTorch's eager mode",
        "bench_training",
        {"layers": 8, "attention": "softmax", "kernel": "pytorch"},
    ),
    Headline(
        "Performer, all keys, forward, N = 4096",
        "performer-pytorch",
        "bench_performer",
        {"size": 4096, "task": "all keys", "passes": "forward", "name": "performer-pytorch"},
    ),
    Headline(
        "Longformer, forward + backward, N = 4096",
        "Hugging Face's transformers",
        "bench_patterns",
        {"length": 4096, "mechanism": "longformer", "passes": "forward + backward", "kernel": "transformers"},
    ),
    Headline(
        "Reformer's LSH attention, forward + backward, N = 4096",
        "Hugging Face's transformers",
        "bench_reformer",
        {"length": 4096, "causal": False, "passes": "forward + backward", "name": "transformers"},
    ),
    Headline(
        "A token of a transformer of 8 layers, linear attention, B = 1",
        "fast-transformers",
        "bench_generation",
        {"batch": 1, "kernel": "fast-transformers"},
    ),
)


class Share(NamedTuple):
    """A part of something that the same record has."""

    what: str
    whole: str
    bench: str
    share: Callable[[Mapping[str, Any]], float]  # of its results


def memory(attention: str, kernel: str) -> Callable[[Mapping[str, Any]], float]:
    """The peak of a training step over PyTorch's least."""

    def share(results: Mapping[str, Any]) -> float:
        peaks = {row["kernel"]: row["megabytes"] for row in results["memory"] if row["attention"] == attention}
        return peaks[kernel] / min(peak for name, peak in peaks.items() if not name.startswith("jit"))

    return share


def threads(attention: str) -> Callable[[Mapping[str, Any]], float]:
    """What two threads gain over one, over what they would if they shared nothing."""

    def share(results: Mapping[str, Any]) -> float:
        row = next(row for row in results["threads"] if row["attention"] == attention)
        return row["ratio"] / row["limit"]

    return share


def reading(results: Mapping[str, Any]) -> float:
    """The time in which every weight is read once, over that of a token."""
    row = next(row for row in results["rows"] if row.get("batch") == 1 and row.get("kernel") == "weights read once")
    return row["ratio_median"]


SHARES = (
    Share("Memory of that training step, linear", "PyTorch's least", "bench_training", memory("linear", "jit")),
    Share(
        "Memory, softmax, hidden units recomputed",
        "PyTorch's",
        "bench_training",
        memory("softmax", "jit, recomputed"),
    ),
    Share(
        "What that step gains by a second thread, linear",
        "what products on two threads that share nothing gain",
        "bench_training",
        threads("linear"),
    ),
    Share("The same, softmax", "the same", "bench_training", threads("softmax")),
    Share("The time to read every weight once", "that of a token, B = 1", "bench_generation", reading),
)


def table(figures: Path) -> str:
    """As Markdown, from the records in ``figures``."""
    lines = ["| what | against | ratio | processor |", "| --- | --- | ---: | --- |"]
    for headline in HEADLINES:
        record = json.loads((figures / f"{headline.bench}.json").read_text(encoding="utf-8"))
        row = find(record["results"]["rows"], headline)
        ratio = f"{row['ratio_median']:.1f} ({row['ratio_min']:.1f})"
        lines.append(f"| {headline.what} | {headline.whom} | {ratio} | {record['machine']['processor']} |")
    lines += ["", "| share | of | |", "| --- | --- | ---: |"]
    for each in SHARES:
        record = json.loads((figures / f"{each.bench}.json").read_text(encoding="utf-8"))
        lines.append(f"| {each.what} | {each.whole} | {each.share(record['results']):.0%} |")
    return "\n".join(lines)


def find(rows: list[dict[str, Any]], headline: Headline) -> dict[str, Any]:
    """The one row of a record that the headline means.

    Raises
    ------
    ValueError
        There is none, or more than one.
    """
    found = [row for row in rows if headline.row.items() <= row.items()]
    if len(found) != 1:
        raise ValueError(f"{headline.bench}: expected one row with {dict(headline.row)}, found {len(found)}")
    return found[0]
