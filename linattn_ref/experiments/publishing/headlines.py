"""The few ratios that README.md shows, from the records of the benches: of each row the hardest peer, and where.

Then one sentence of shares: of memory, and of what the processor gives at best, measured in the same run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linattn_ref.experiments.publishing import catalogue, markdown, record

__all__ = ["table"]


BOTH = "forward + backward"
ONE_TOKEN = {"batch": 1, "what": "kernel"}  # both sides move the state where it is
# By bench: what a line of the table is called, and which rows of the record it is about, equal but for the kernel
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "bench_softmax": {
        "Softmax attention, all keys, forward, N = 2048": {"length": 2048, "causal": False, "passes": "forward"},
        "Softmax attention, causal, forward + backward, N = 2048": {"length": 2048, "causal": True, "passes": BOTH},
    },
    "bench_linear": {
        "Linear attention's causal product, forward, N = 4096": {"size": 4096, "task": "product, forward"},
        "Linear attention, causal, forward + backward, N = 4096": {"size": 4096, "task": f"attention, {BOTH}"},
    },
    "bench_delta": {
        "The gated delta rule, forward, N = 4096": {"size": 4096, "task": "gated delta", "passes": "forward"},
    },
    "bench_steps": {
        "The gated delta rule's kernel, one token, D = 64, B = 1": {**ONE_TOKEN, "task": "gated delta", "size": 64}
    },
    "bench_training": {
        "A training step: 8 layers of 256, linear attention, N = 784": {"layers": 8, "attention": "linear"},
    },
    "bench_patterns": {
        "Longformer, forward + backward, N = 4096": {"length": 4096, "mechanism": "longformer", "passes": BOTH},
    },
    "bench_generation": {"A token of a transformer of 8 layers, linear attention, B = 1": {"batch": 1}},
}
YARDSTICKS = ("PyTorch's products",)  # kernels that do less than the whole


def shares(figures: Path) -> str:
    """In one sentence, from the records in ``figures``."""
    training, generation = (record.read(figures / f"bench_{x}.json")["results"] for x in ("training", "generation"))
    if not training["threads"]:
        raise ValueError("bench_training.json: expected times with two threads, found none: measure it on two cores")
    taken, gained = [], []  # memory, over the peers' least; speed-up, over that of products that share nothing
    for attention in ("linear", "softmax"):
        peaks = {row["kernel"]: row["megabytes"] for row in training["memory"] if row["attention"] == attention}
        taken.append(peaks["jit"] / min(peak for name, peak in peaks.items() if not name.startswith("jit")))
        gained += [row["ratio"] / row["limit"] for row in training["threads"] if row["attention"] == attention]
    ratios = {(row.get("batch"), row.get("kernel")): row["ratio_median"] for row in generation["rows"]}
    return (
        f"The training step takes {taken[0]:.0%} of its peers' least memory ({taken[1]:.0%} with softmax attention). "
        f"With two threads its speed-up is {gained[0]:.0%} ({gained[1]:.0%}) of that of two products that share"
        f" nothing. Of the time of the transformer's token, {ratios[1, 'weights read once']:.0%} is needed to read"
        " every weight once."
    )


def gpu(figures: Path) -> str:
    """The same ratio on a GPU, at the greatest length that both kernels came to; linear attention beside its limit."""
    results = catalogue.results_of("bench_cuda", record.read(figures / "bench_cuda.json"))
    limit_ms = catalogue.module_of("bench_cuda").limit_ms
    ms = {(row.kernel, row.length): row.median_ms for row in results.rows if row.task == BOTH}

    def longest(*kernels: str) -> int:
        return max(length for _, length in ms if all((kernel, length) in ms for kernel in kernels))

    ratios, limits, far = [], [], longest("linear", "linear bfloat16")
    for form in ("", " bfloat16"):
        n = longest(f"softmax{form}", f"SDPA{form}")
        ratios.append(f"{ms[f'SDPA{form}', n] / ms[f'softmax{form}', n]:.2f} (N = {n})")
        limits.append(f"{ms[f'linear{form}', far] / limit_ms(results, BOTH, far, f'limit of linear{form}'):.0f}")
    return (
        f"On an {results.device}, causal, {BOTH}: softmax attention {ratios[0]}, in bfloat16 {ratios[1]}, against SDPA;"
        f" linear attention takes {limits[0]} times (bfloat16 {limits[1]}) the least time that its arrays and products"
        f" need (N = {far}). Those in bfloat16 are the loops by themselves: `kernels=cuda` widens 16 bits to float32."
    )


def table(figures: Path) -> str:
    """As Markdown, from the records in ``figures``."""
    lines = []
    for bench, rows in ROWS.items():
        document = record.read(figures / f"{bench}.json")
        for what, wanted in rows.items():
            row = hardest(document["results"], wanted)
            ratio = f"{number(row['ratio_median'])} ({number(row['ratio_min'])})"
            lines.append((what, row["whom"], ratio, document["machine"]["processor"]))
    table = markdown.table(("what", "against", "ratio", "processor"), lines, "llrl")
    return "\n".join([*table, "", f"{shares(figures)} {gpu(figures)}"])


def number(ratio: float) -> str:
    """One decimal, and two where one would hide which side is ahead."""
    return f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"


def hardest(results: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Of the rows that are so, that of the fastest peer, and in ``whom`` its name with the version that took part.

    Raises
    ------
    ValueError
        There is none.
    """
    found = []
    for row in results["rows"]:
        packages = [x for x in results["versions"] if row.get("kernel", "").lower().startswith(x.lower())]
        if wanted.items() <= row.items() and packages and row["kernel"] not in YARDSTICKS:
            package = max(packages, key=len)
            found.append({**row, "whom": f"{package} {results['versions'][package]}{row['kernel'][len(package) :]}"})
    if not found:
        raise ValueError(f"rows: expected a peer's with {dict(wanted)}, found none")
    return min(found, key=lambda row: float(row["ratio_median"]))
