"""The ratios that README shows are those of the records, each of the hardest peer."""

import json
import re

import pytest

from linattn_ref.experiments.publishing.headlines import ROWS, YARDSTICKS, hardest, shares, table

WANTED = [row for rows in ROWS.values() for row in rows.values()]
VERSIONS = {"PyTorch": "2.0", "Peer": "1.5", "Peer native": "1.6"}
ROW = {"length": 8, "kernel": "peer, by hand", "ratio_median": 2.345, "ratio_min": 1.98}


def test_a_row_is_the_records(tmp_path):
    """Whatever the record says, the table says too."""
    for bench in ROWS:
        rows = [{**wanted, **ROW, **wanted} for wanted in WANTED]
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
    rows = [
        {"task": "forward + backward", "kernel": kernel + form, "length": length, "median_ms": ms * length}
        for kernel, ms in {"linear": 4.0, "softmax": 1.0, "SDPA": 2.0}.items()
        for form in ("", " bfloat16")
        for length in ((16, 32) if kernel in ("linear", "SDPA") else (16,))
    ]
    sizes = {"batch": 1, "heads": 2, "width": 4, "matrix_tflops": 1e9, "bfloat16_tflops": 1e9, "copy_gb_s": 3.072e-3}
    record = {"results": {"device": "NVIDIA chip", "rows": rows, **sizes}}
    (tmp_path / "bench_cuda.json").write_text(json.dumps(record), encoding="utf-8")
    lines, below = table(tmp_path).split("\n\n")
    shares, gpu = below.split("On an NVIDIA chip")
    assert re.findall(r"\d\.\d\d \(N = \d+\)", gpu) == ["2.00 (N = 16)"] * 2
    # 2 heads of 32 rows move 12 arrays of 4 numbers: 12,288 bytes, or half of that, in 4 and 2 ms; it takes 128
    assert "takes 32 times (bfloat16 64) the least" in gpu
    assert "need (N = 32)" in gpu
    lines = lines.splitlines()[2:]
    assert len(lines) == len(WANTED)
    assert all(line.endswith("| Peer 1.5, by hand | 2.3 (2.0) | a chip |") for line in lines)
    assert re.findall(r"\d+%", shares) == ["60%", "40%", "75%", "75%", "50%"]


def test_a_machine_of_one_thread_is_told(tmp_path):
    for name, results in (("training", {"threads": []}), ("generation", {})):
        (tmp_path / f"bench_{name}.json").write_text(json.dumps({"results": results}))
    with pytest.raises(ValueError, match=r"bench_training\.json: expected times with two threads, found none"):
        shares(tmp_path)


def test_the_hardest_peer_is_shown():
    """Neither what is no peer, nor a yardstick, nor another setting."""
    slower, native = {**ROW, "kernel": "PyTorch", "ratio_median": 3.0}, {**ROW, "kernel": "Peer native"}
    others = [{**ROW, "kernel": x, "ratio_median": 0.5} for x in ("jit", "reference", *YARDSTICKS)]
    others.append({**ROW, "length": 9, "ratio_median": 0.5})
    wanted = {"length": 8}
    assert hardest({"versions": VERSIONS, "rows": [slower, *others, ROW]}, wanted)["whom"] == "Peer 1.5, by hand"
    assert hardest({"versions": VERSIONS, "rows": [slower, native]}, wanted)["whom"] == "Peer native 1.6"
    with pytest.raises(ValueError, match=r"rows: expected a peer's with .*, found none"):
        hardest({"versions": VERSIONS, "rows": others}, wanted)
