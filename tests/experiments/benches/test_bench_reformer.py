"""The comparison of LSH attention: what it runs and says. No time is tested."""

import sys

import pytest
from looks import each_look

from linattn_ref.experiments.benches import bench_reformer
from linattn_ref.experiments.publishing import record, style

pytestmark = pytest.mark.slow  # kernels are compiled for float32 for the slow tests

SMALL = {"lengths": (16, 32), "heads": 2, "width": 4, "chunk": 8, "repeats": 2}


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("without_torch")
def test_every_setting_has_a_row_and_the_missing_peer_is_told():
    results = bench_reformer.compute(**SMALL)
    assert len(results.rows) == 2 * 2 * 2
    assert {row.name for row in results.rows} == {"jit"}
    assert results.versions == {}
    text = bench_reformer.table(results)
    assert "Not compared here: transformers." in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {5}
    record.plain(results)


@each_look
def test_beside_the_peer(look):
    pytest.importorskip("transformers", reason="needs the extra: peers")
    pytest.importorskip("torch", reason="needs the extra: peers")
    results = bench_reformer.compute(**SMALL)
    assert {row.name for row in results.rows} == {"jit", "transformers"}
    text = bench_reformer.table(results)
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {6}
    assert f"transformers {results.versions['transformers']}" in text
    with style.use(look):
        bench_reformer.draw(results).draw_without_rendering()


def test_a_wrong_result_is_not_timed(monkeypatch):
    pytest.importorskip("transformers", reason="needs the extra: peers")
    right = bench_reformer.run_peer
    monkeypatch.setattr(bench_reformer, "run_peer", lambda *args: [1.01 * x for x in right(*args)])
    with pytest.raises(RuntimeError, match=r"transformers and jit differ in out by 1\.0e-02"):
        bench_reformer.compute(**SMALL)


@pytest.mark.parametrize("bad", [{"lengths": (8,)}, {"lengths": (20,)}])
def test_bad_lengths(bad):
    with pytest.raises(ValueError, match=rf"^{next(iter(bad))}: expected"):
        bench_reformer.compute(**{**SMALL, **bad})
