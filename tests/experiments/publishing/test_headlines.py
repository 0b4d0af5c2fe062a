"""The ratios that README shows are those of the records, each of one row."""

import json
import re

import pytest

from linattn_ref.experiments.publishing.headlines import HEADLINES, Headline, find, table

ROW = {"length": 8, "kernel": "peer", "ratio_median": 2.345, "ratio_min": 1.98}


def test_a_row_is_the_records(tmp_path):
    """Whatever the record says, the table says too."""
    for bench in {headline.bench for headline in HEADLINES}:
        rows = [{**headline.row, "ratio_median": 2.345, "ratio_min": 1.98} for headline in HEADLINES]
        rows.append({"batch": 1, "kernel": "weights read once", "ratio_median": 0.5})
        peaks = {"jit": 3.0, "pytorch": 6.0, "pytorch, loop": 5.0}
        results = {
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
    assert all(line.endswith("| 2.3 (2.0) | a chip |") for line in lines)
    assert re.findall(r"\d+%", shares) == ["60%", "40%", "75%", "75%", "50%"]


@pytest.mark.parametrize("rows", [[], [ROW, ROW]])
def test_no_row_or_two_are_an_error(rows):
    headline = Headline("what", "whom", "bench_x", {"length": 8, "kernel": "peer"})
    assert find([ROW, {**ROW, "length": 9}], headline) is ROW
    with pytest.raises(ValueError, match=f"bench_x: expected one row with .*, found {len(rows)}"):
        find(rows, headline)
