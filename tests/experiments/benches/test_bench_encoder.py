"""The bench of the slides' encoder: layers that give the same rows, by whomever; no time is tested."""

import numpy as np
import pytest

from linattn_ref.attention import linear, softmax
from linattn_ref.experiments.benches import bench_encoder
from linattn_ref.experiments.publishing import style
from linattn_ref.nn import mechanism, post_norm, relu

SMALL = bench_encoder.Sizes(length=20, heads=2, width=16, hidden=24)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_layers_are_the_packages_and_the_peers(attention):
    """Some thousand roundings in float32 in each of two layers."""
    params, x = bench_encoder._drawn(SMALL, 0, 2)
    inside, expected = mechanism.of({"linear": linear, "softmax": softmax}[attention]), x
    for one in params:
        expected, _ = post_norm.forward(expected, one, inside, heads=2, activation=relu)
    calls = bench_encoder.layers_of(attention, SMALL, 0, 2)
    for name, call in calls.items():
        for _ in range(2):  # nothing is left over from the first call
            np.testing.assert_allclose(call(), expected, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_the_table_multiplies_layers_and_sequences(monkeypatch):
    monkeypatch.setattr(bench_encoder, "in_new_process", lambda function, *arguments, malloc: function(*arguments))
    monkeypatch.setattr(bench_encoder, "Sizes", lambda length=20: SMALL._replace(length=length))
    results = bench_encoder.compute(length=20, repeats=1)
    lines = bench_encoder.table(results).splitlines()
    assert {row.kernel for row in results.rows} >= {"jit"}
    assert [line for line in lines if line.startswith("| linear | jit |")]
    assert set(results.all_layers) == {"linear", "softmax"}
    with style.use():
        assert len(bench_encoder.draw(results).axes[0].patches) == len(results.rows)
    with pytest.raises(ValueError, match="length: expected at least 1, got 0"):
        bench_encoder.compute(length=0)
