"""The bench of speech: everything is timed, the table and the drawing have it all."""

import pytest

from linattn_ref.experiments.benches import bench_speech
from linattn_ref.experiments.publishing import style


@pytest.mark.slow
def test_all_of_it_is_timed_and_told(monkeypatch):
    for name, size in (("LSTMS", ((2, 5, 3, 4),)), ("FRAMES", 200)):
        monkeypatch.setattr(bench_speech, name, size)
    results = bench_speech.compute(lengths=(100, 200), repeats=1)
    assert {(epoch.network, epoch.length) for epoch in results.epochs} == {
        (network, length) for network in bench_speech.NETWORKS for length in (100, 200)
    }
    assert all(epoch.seconds > 0 for epoch in results.epochs)
    text = bench_speech.table(results)
    for network in bench_speech.NETWORKS:
        assert f"| {network} |" in text
    with style.use("paper"):
        assert len(bench_speech.draw(results).axes[0].lines) == len(bench_speech.NETWORKS)


def test_bad_lengths():
    with pytest.raises(ValueError, match="lengths: expected numbers up to 2400, got 2401"):
        bench_speech.compute(lengths=[2401])
