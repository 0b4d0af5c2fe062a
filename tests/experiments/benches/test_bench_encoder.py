"""The bench of the slides' encoder: layers that give the same rows, by whomever; no time is tested."""

import json

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.attention import linear, softmax
from linattn_ref.experiments.benches import bench_encoder
from linattn_ref.experiments.benches.bench_encoder import layers_of
from linattn_ref.experiments.benches.engine import Results
from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.publishing.restore import restore
from linattn_ref.nn import block, mechanism, post_norm, relu

SMALL = bench_encoder.Sizes(layers=2, length=20, heads=2, width=16, hidden=24)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_layers_are_the_packages_and_the_peers(attention):
    """Some thousand roundings in float32 in each of two layers."""
    rng = np.random.default_rng(0)
    params = [block.draw(SMALL.width, SMALL.hidden, rng, dtype=np.float32) for _ in range(2)]
    inside, expected = mechanism.of({"linear": linear, "softmax": softmax}[attention]), rng.random((1, 20, 16), "f")
    for one in params:
        expected, _ = post_norm.forward(expected, one, inside, heads=2, activation=relu)
    for name, call in layers_of(attention, SMALL, 0).items():
        for _ in range(2):  # nothing is left over from the first call
            np.testing.assert_allclose(call()[0], expected, rtol=0, atol=2e-5, err_msg=name)


def test_the_table_multiplies_sequences():
    rows = (
        Results(attention="linear", kernel="jit", median_ms=1500.0, ratio_median=1.0, ratio_min=1.0),
        Results(attention="linear", kernel="pytorch", median_ms=3100.0, ratio_median=2.07, ratio_min=2.0),
    )
    memory = tuple(Results(attention="linear", kernel=row.kernel, megabytes=10.0) for row in rows)
    results = Results(sizes=SMALL, repeats=1, versions={"PyTorch": "3"}, rows=rows, memory=memory)
    text = bench_encoder.table(results)
    assert "| 2 layers on one sequence, s |" in text
    assert "| linear | jit | 1.5 | 1.00 (1.00) | 15 | 10 |" in text
    assert "| linear | pytorch | 3.1 | 2.07 (2.00) | 31 | 10 |" in text
    assert "PyTorch 3. Not compared here: fast-transformers." in text
    with style.use():
        bars, _ = bench_encoder.draw(results).axes
    assert [bar.get_width() for bar in bars.patches] == [1.5, 3.1]


@pytest.mark.slow
def test_the_command_measures_time_and_memory_of_each(tmp_path, capsys):
    words = ["bench", "encoder", "--layers", "2", "--length", "256", "--repeats", "1", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    assert {path.name for path in tmp_path.iterdir()} == {f"bench_encoder.{x}" for x in ("svg", "png", "pdf", "json")}
    document = json.loads((tmp_path / "bench_encoder.json").read_text(encoding="utf-8"))
    results = restore(Results, document["results"])
    assert bench_encoder.table(results) in capsys.readouterr().out
    assert results.sizes == bench_encoder.Sizes(layers=2, length=256)._asdict()
    there = [(attention, name) for attention in ("linear", "softmax") for name in layers_of(attention, SMALL, 0)]
    for found in (results.rows, results.memory):
        assert [(one.attention, one.kernel) for one in found] == there
    hidden_units = 4 * results.sizes.length * results.sizes.hidden / 1e6  # of one layer, which all have to compute
    for row, one in zip(results.rows, results.memory, strict=True):
        assert 0 < row.min_ms <= row.median_ms
        assert one.megabytes > hidden_units
