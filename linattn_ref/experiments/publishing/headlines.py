"""The few ratios that README.md shows, taken from the records of the benches: what, against whom, how much, where.

Then one sentence of shares: of memory, and of what the processor gives at best, measured in the same run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linattn_ref.experiments.publishing import markdown

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
        "Longformer, forward + backward, N = 4096",
        "Hugging Face's transformers",
        "bench_patterns",
        {"length": 4096, "mechanism": "longformer", "passes": "forward + backward", "kernel": "transformers"},
    ),
    Headline(
        "A token of a transformer of 8 layers, linear attention, B = 1",
        "fast-transformers",
        "bench_generation",
        {"batch": 1, "kernel": "fast-transformers"},
    ),
)


def memory(results: Mapping[str, Any], attention: str, kernel: str) -> float:
    """The peak of a training step over PyTorch's least."""
    peaks = {row["kernel"]: row["megabytes"] for row in results["memory"] if row["attention"] == attention}
    return float(peaks[kernel] / min(peak for name, peak in peaks.items() if not name.startswith("jit")))


def threads(results: Mapping[str, Any], attention: str) -> float:
    """What two threads gain over one, over what they would if they shared nothing."""
    row = next(row for row in results["threads"] if row["attention"] == attention)
    return float(row["ratio"] / row["limit"])


def reading(results: Mapping[str, Any]) -> float:
    """The time in which every weight is read once, over that of a token."""
    row = next(row for row in results["rows"] if row.get("batch") == 1 and row.get("kernel") == "weights read once")
    return float(row["ratio_median"])


def shares(figures: Path) -> str:
    """In one sentence, from the records in ``figures``."""
    training, generation = (
        json.loads((figures / f"{name}.json").read_text(encoding="utf-8"))["results"]
        for name in ("bench_training", "bench_generation")
    )
    linear, softmax = (memory(training, attention, "jit") for attention in ("linear", "softmax"))
    gained = [threads(training, attention) for attention in ("linear", "softmax")]
    return (
        f"That training step takes {linear:.0%} of PyTorch's memory (softmax {softmax:.0%}); "
        f"a second thread gains {gained[0]:.0%} (softmax {gained[1]:.0%}) of what products that share nothing gain; "
        f"{reading(generation):.0%} of that token's time is needed to read every weight once."
    )


def table(figures: Path) -> str:
    """As Markdown, from the records in ``figures``."""
    rows = []
    for headline in HEADLINES:
        record = json.loads((figures / f"{headline.bench}.json").read_text(encoding="utf-8"))
        row = find(record["results"]["rows"], headline)
        ratio = f"{row['ratio_median']:.1f} ({row['ratio_min']:.1f})"
        rows.append((headline.what, headline.whom, ratio, record["machine"]["processor"]))
    return "\n".join([*markdown.table(("what", "against", "ratio", "processor"), rows, "llrl"), "", shares(figures)])


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
