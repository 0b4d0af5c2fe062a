"""The ratios that README shows are those of the records, each of the hardest peer."""

import json
import re

import pytest

from linattn_ref.experiments.publishing.headlines import HEADLINES, YARDSTICKS, Headline, hardest, table

VERSIONS = {"PyTorch": "2.0", "Peer": "1.5", "Peer native": "1.6"}
ROW = {"length": 8, "kernel": "peer, by hand", "ratio_median": 2.345, "ratio_min": 1.98}


def test_a_row_is_the_records(tmp_path):
    """Whatever the record says, the table says too."""
    for bench in {headline.bench for headline in HEADLINES}:
        rows = [{**headline.row, **ROW, **headline.row} for headline in HEADLINES]
        rows.append({"batch": 1, "kernel": "weights read once", "ratio_median": 0.5})
        peaks = {"jit": 3.0, "pytorch": 6.0, "pytorch, loop": 5.0}
        results = {
            "versions": VERSIONS,
            "rows": rows,
            "memory": [
                {
                    "attention": attention,
                    "kernel": kernel,
                    "megabytes": 2 / 3 * peak if (attention, kernel) == ("softmax", "jit") else peak,
                }
                for attention in ("linear", "softmax")
                for kernel, peak in peaks.items()
            ],
            "threads": [
                {"attention": "linear", "ratio": 1.2, "limit": 1.6},
                {"attention": "softmax", "ratio": 1.5, "limit": 2.0},
            ],
        }
        record = {"results": results, "machine": {"processor": "a chip"}}
        (tmp_path / f"{bench}.json").write_text(json.dumps(record), encoding="utf-8")
    lines, shares = table(tmp_path).split("\n\n")
    lines = lines.splitlines()[2:]
    assert len(lines) == len(HEADLINES)
    assert all(line.endswith("| Peer 1.5, by hand | 2.3 (2.0) | a chip |") for line in lines)
    assert re.findall(r"\d+%", shares) == ["60%", "40%", "75%", "75%", "50%"]


def test_the_hardest_peer_is_shown():
    """Neither what is no peer, nor a yardstick, nor another setting."""
    slower, native = {**ROW, "kernel": "PyTorch", "ratio_median": 3.0}, {**ROW, "kernel": "Peer native"}
    others = [{**ROW, "kernel": x, "ratio_median": 0.5} for x in ("jit", "reference", *YARDSTICKS)]
    others.append({**ROW, "length": 9, "ratio_median": 0.5})
    headline = Headline("what", "bench_x", {"length": 8})
    assert hardest({"versions": VERSIONS, "rows": [slower, *others, ROW]}, headline)["whom"] == "Peer 1.5, by hand"
    assert hardest({"versions": VERSIONS, "rows": [slower, native]}, headline)["whom"] == "Peer native 1.6"
    with pytest.raises(ValueError, match=r"bench_x: expected a peer's row with .*, found none"):
        hardest({"versions": VERSIONS, "rows": others}, headline)
