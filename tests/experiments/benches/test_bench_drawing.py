"""What a pixel costs, along an image: what is run, compared and added up. No time is tested."""

import json
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from linattn_ref.experiments.benches import bench_drawing
from linattn_ref.experiments.publishing import gallery, style

BEHIND = {"fast-transformers": 4, "PyTorch": 3, bench_drawing.OURS: 1}  # times as slow


def made_up(size, way, batch, rounds, seed, torch, package):
    """A pixel takes 1 s, times what the package takes longer; of all ways and batch sizes."""
    names = bench_drawing.packages(way, torch, package)
    return np.array([[float(BEHIND[name])] * len(size.positions) for name in names])


@pytest.mark.parametrize("name", bench_drawing.NETWORKS)
def test_an_image_is_exact_where_a_pixel_is_a_polynomial_of_its_position(name):
    size = bench_drawing.NETWORKS[name]
    for degree in range(4):
        cost = np.polynomial.Polynomial(np.arange(1.0, degree + 2))
        row = bench_drawing._row(name, "linear", "", 2, size, cost(np.array(size.positions)))
        assert row.image == pytest.approx(cost(np.arange(1, size.numbers + 1)).sum(), rel=1e-12)
        assert row.images_per_second == pytest.approx(2 / row.image)


def test_every_network_is_timed_to_its_last_number_at_batch_size_1():
    for name, size in bench_drawing.NETWORKS.items():
        assert size.positions[-1] == size.numbers
        assert size.positions[0] > bench_drawing.STEPS  # and a step before them
        assert all(bench_drawing.BATCHES[name, way][0] == 1 for way in bench_drawing.WAYS)


def test_the_table_says_the_best_batch_and_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(bench_drawing, "measured", made_up)
    results = bench_drawing.compute()
    assert bench_drawing.best(results, "MNIST", "linear").batch == 256  # each batch takes as long
    assert bench_drawing.best(results, "MNIST", "linear", "PyTorch") is None
    assert bench_drawing.told(results, "CIFAR-10", "linear", bench_drawing.OURS) == pytest.approx(
        (3072, 1, 256, 256 / 3072, 128)
    )
    text = bench_drawing.table(results)
    assert text.count(f"| {bench_drawing.OURS} |") == 10
    assert "| linear | linattn-ref | 784 | 1 | 256 | 0.327 | 64 | 5.5 | 1 | 143 | 317 |" in text
    assert "Not compared here: PyTorch, fast-transformers." in text


def test_measurements_are_kept_and_taken_over(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_drawing, "measured", made_up)
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: path.touch())  # every figure is drawn elsewhere
    options = {"quick": True, "style_name": "paper", "workers": 1, "parts": tmp_path / "parts"}
    gallery.draw("bench_drawing", tmp_path, **options)
    first = json.loads((tmp_path / "bench_drawing.json").read_text(encoding="utf-8"))
    assert set(first["results"]) == {"rounds", "versions", "rows"}
    assert "| CIFAR-10 | by |" in first["table"]

    def again(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(bench_drawing, "measured", again)
    gallery.draw("bench_drawing", tmp_path, **options)
    assert json.loads((tmp_path / "bench_drawing.json").read_text(encoding="utf-8")) == first


def test_what_takes_long_is_timed_once_more_or_not_again():
    lasting = (0.1, bench_drawing.LONG, bench_drawing.VERY_LONG)
    calls = []

    def pixel(seconds):
        calls.append(seconds)
        return seconds

    pixels = [lambda _, seconds=seconds: pixel(seconds) for seconds in lasting]
    assert bench_drawing._in_turn(pixels, 1, 3) == list(lasting)
    assert [calls.count(seconds) for seconds in lasting] == [4, 2, 1]


@pytest.mark.slow
def test_every_way_is_timed_with_both_networks():
    results = bench_drawing.compute(**bench_drawing.QUICK, rounds=1)
    found = [(row.network, row.way, row.by, row.batch) for row in results.rows]
    ours = {(*key, batch) for key, batches in bench_drawing.BATCHES.items() for batch in batches}
    assert len(set(found)) == len(found)
    assert {(name, way, batch) for name, way, by, batch in found if by == bench_drawing.OURS} == ours
    with style.use():
        bench_drawing.draw(results)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["softmax", "stateful-softmax", "linear"])
def test_a_wrong_answer_of_another_package_is_found(monkeypatch, way):
    torch = pytest.importorskip("torch", reason="needs the extra: peers")
    size = bench_drawing.QUICK["sizes"]["MNIST"]
    right = bench_drawing.measured(size, way, 2, 1, 0, torch, None)
    assert right.shape == (2, len(size.positions))
    rest = bench_drawing.ways._rest
    monkeypatch.setattr(bench_drawing.ways, "_rest", lambda *given: 1.01 * rest(*given) + 0.1)
    with pytest.raises(RuntimeError, match=f"{way}: PyTorch and linattn-ref differ in out"):
        bench_drawing.measured(size, way, 2, 1, 0, torch, None)
