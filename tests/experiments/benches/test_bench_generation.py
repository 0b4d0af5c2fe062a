"""The comparison of whole networks that write: what it runs and says. No time is tested."""

import sys

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.experiments.benches import bench_generation
from linattn_ref.experiments.publishing import record, style

pytestmark = pytest.mark.slow  # a network of float32 is compiled for no other test
SMALL = {"batches": (1, 3), "images": (1, 2), "pixels": 56, "repeats": 2}


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    monkeypatch.setattr(bench_generation, "SIZE", bench_generation.Size(2, 2, 8, 16, 784))


def test_without_peers_the_table_says_so(monkeypatch, tmp_path):
    for package in ("torch", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    results = bench_generation.compute(**SMALL)
    assert {(row.batch, row.kernel) for row in results.rows} == {
        (batch, name) for batch in (1, 3) for name in ("jit", "causal.step", "weights read once")
    }
    assert [(each.attention, each.batch, len(each.pixel_ms)) for each in results.images] == [
        (name, batch, 2) for name in ("linear", "softmax") for batch in (1, 2)
    ]
    for each in results.images:
        assert each.images_per_second * each.seconds == pytest.approx(each.batch)
    text = bench_generation.table(results)
    assert "Not compared here: PyTorch, ONNX Runtime, fast-transformers." in text
    with style.use():
        document = record.document(results, "bench", command="", seed=0)
        record.write(bench_generation.draw(results), document, tmp_path)


def test_beside_pytorch_and_fast_transformers():
    pytest.importorskip("torch", reason="needs the extra: peers")
    pytest.importorskip("fast_transformers", reason="needs pytorch-fast-transformers")
    pytest.importorskip("onnxruntime", reason="needs the extra: peers")
    names = {row.kernel for row in bench_generation.compute(**SMALL).rows}
    assert names == set(bench_generation.ORDER)


def test_a_wrong_answer_is_found(monkeypatch):
    by_text = bench_generation._by_text

    def wrong(*arguments):
        right = by_text(*arguments)

        def step(*given):
            scores, state = right.step(*given)
            return 1.01 * scores, state

        return right._replace(step=step)

    monkeypatch.setattr(bench_generation, "_by_text", wrong)
    with pytest.raises(RuntimeError, match=r"batch=1: causal\.step and jit differ in out"):
        bench_generation.compute(**SMALL)


def test_starts_again_where_no_place_is_left():
    params, model = bench_generation.network("linear", bench_generation.SIZE, np.random.default_rng(0))
    call = bench_generation._calls(params, model, np.array([[1], [2]]), None, None, None)["jit"]
    first, second, third = (call()[0].copy() for _ in range(3))
    np.testing.assert_array_equal(third, first)
    assert abs(second - first).max() > 0


@pytest.mark.parametrize("pixels", [30, 812])
def test_a_wrong_option_is_one_line(capsys, pixels):
    assert cli.main(["bench", "generation", "--pixels", str(pixels)]) == 2
    told = f"linattn-ref: error: pixels: expected a multiple of 28 up to 784, got {pixels}\n"
    assert capsys.readouterr().err.endswith(told)
