"""The resource figure: what is computed for it, what it shows. No time is tested."""

import json
from pathlib import Path

import numpy as np
import pytest
from looks import each_look
from quick import assert_comes_back, assert_drawn_as_it_comes_back

from linattn_ref.cli import main
from linattn_ref.experiments.cost import resources
from linattn_ref.experiments.cost.resource_methods import (
    METHODS,
    REDUCED,
    Setting,
    draw_inputs,
    methods_at,
    prepared,
    run,
)
from linattn_ref.experiments.measuring import points
from linattn_ref.experiments.measuring.counting import peak_bytes
from linattn_ref.experiments.measuring.memory import HAND_BACK, in_new_process
from linattn_ref.experiments.publishing import catalogue, record, style

SMALL = Setting(heads=3, width=8)
FLOAT32 = 4  # bytes


@pytest.fixture(scope="module")
def measured():
    """Made-up measurements of every method: quadratic ones 1 us times N^2, the others 1 ms times N."""
    found = points.Points({}, {})
    for n in resources.LENGTHS:
        names = methods_at(n, tuple(METHODS))
        unit = {name: 1e-3 * n if METHODS[name].longest is None else 1e-6 * n**2 for name in names}
        found.seconds[str(n)] = {name: unit[name] * np.array([0.5, 1, 8]) for name in names}
        long = names if n >= resources.MEMORY_FROM else []
        found.memory[str(n)] = {name: np.array([7000 * n, 500 * n]) for name in long}
    return found


@pytest.fixture(scope="module")
def results(measured):
    return resources.summarise(measured, resources.LENGTHS, 3, SMALL)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("n", [REDUCED, 300])
@pytest.mark.parametrize("setting", [SMALL, Setting(heads=8, width=16)])
def test_what_forward_keeps_is_what_the_formula_says(name, n, setting):
    method = METHODS[name]
    assert run(method, draw_inputs(method, n, setting, seed=0)) == FLOAT32 * method.kept(n, setting)


@pytest.mark.parametrize("n", [256, 1024])
def test_most_memory_in_use_is_about_what_the_formula_says(n):
    """Arrays are counted to the byte; the formula leaves out what is narrower than a row of W = 64 numbers.

    The other methods run kernels, whose memory only the operating system sees.
    """
    method, setting = METHODS["dense"], Setting(heads=2)
    found = peak_bytes(run, method, draw_inputs(method, n, setting, seed=0))
    formula = FLOAT32 * method.peak(n, setting)
    assert formula <= found <= 1.03 * formula


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_measured_memory_is_about_the_formula(name):
    """Half a MiB for whatever else a process does, and 3 % for what is narrower than a row of W numbers."""
    peak, kept = in_new_process(points.memory_of, prepared, name, 2048, (Setting(), 0), 256, malloc=HAND_BACK)
    formula = FLOAT32 * METHODS[name].peak(2048, Setting())
    assert abs(peak - formula) < 2**19 + 0.03 * formula
    assert kept == FLOAT32 * METHODS[name].kept(2048, Setting())


def test_quadratic_methods_stop_and_linformer_begins_at_its_k():
    assert "linformer" not in methods_at(REDUCED - 1, tuple(METHODS))
    assert "linformer" in methods_at(REDUCED, tuple(METHODS))
    assert methods_at(2**12, tuple(METHODS)) == list(METHODS)
    assert "dense" not in methods_at(2**13, tuple(METHODS))
    assert not {"dense", "online", "online_causal"} & set(methods_at(2**14, tuple(METHODS)))


def test_curves_are_medians_and_their_exponents(results):
    for name, curve in results.curves.items():
        power, unit = (1, 1e-3) if curve.stops_at is None else (2, 1e-6)
        np.testing.assert_allclose(curve.seconds, [unit * n**power for n in curve.lengths], rtol=1e-12)
        np.testing.assert_allclose(curve.least_seconds, np.array(curve.seconds) / 2, rtol=1e-12)
        assert curve.time_growth.exponent == pytest.approx(power, abs=1e-12)
        assert curve.memory_growth.exponent == pytest.approx(1, abs=1e-12)
        assert curve.memory_lengths[0] == resources.MEMORY_FROM
        assert curve.peak == tuple(7000 * n for n in curve.memory_lengths)
        assert curve.peak_formula == tuple(FLOAT32 * METHODS[name].peak(n, SMALL) for n in curve.memory_lengths)


def test_crossings_are_where_the_times_are_equal(results):
    assert [(pair.high, pair.low) for pair in results.pairs] == list(resources.PAIRS)
    for pair in results.pairs:
        assert pair.faster.length == pytest.approx(1000, rel=1e-12)
        assert pair.smaller.length is None  # all peaks are the same


def test_table_says_all_of_it(results):
    text = resources.table(results)
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    times, memory, powers, crossings = blocks
    assert [len(block) - 2 for block in blocks] == [
        len(resources.LENGTHS),
        8,
        len(METHODS),
        len(resources.PAIRS),
    ]
    for block in blocks:
        assert len({line.count("|") for line in block}) == 1
    assert times[-1] == "| 65536 |  |  |  |" + 6 * " 6.55e+04 |"
    assert memory[2].startswith("| 512 | 3.42 | 3.42 |")
    assert "N^2.00 (N = 512 to 4096; step by step 2.00 to 2.00) | N^1.00" in powers[2]
    assert "| 1000 (measured: after 512, at 1024) | not up to 4096 |" in crossings[2]


def test_what_is_always_below_is_told_as_such(measured):
    faster = {
        n: {name: (1e-9 if name == "linear" else 1.0) * int(n) * np.ones(3) for name in of_length}
        for n, of_length in measured.seconds.items()
    }
    found = resources.summarise(measured._replace(seconds=faster), resources.LENGTHS, 3, SMALL)
    assert "| linear against softmax, online | 64 or less |" in resources.table(found)
    with style.use("paper"):
        figure = resources.draw(found)
    assert sum(len(axes.get_lines()) for axes in figure.axes) >= len(METHODS)


@each_look
def test_the_figure_shows_every_method_with_its_name_and_exponent(results, look):
    with style.use(look):
        figure = resources.draw(results)
    assert {name for names in resources.COLUMNS.values() for name in names} == set(METHODS)
    for column, names in enumerate(resources.COLUMNS.values()):
        above, below = figure.axes[column], figure.axes[column + len(resources.COLUMNS)]
        lines = [line for line in above.get_lines() if len(line.get_xdata()) > 1]
        rings = [line for line in above.get_lines() if len(line.get_xdata()) == 1]
        assert len(lines) == len(names)
        crossed = [pair for pair in resources.PAIRS if set(pair) <= set(names) and pair[0].startswith("online")]
        assert [float(ring.get_xdata()[0]) for ring in rings] == pytest.approx([1000] * len(crossed))
        assert len(below.get_lines()) == 2 * len(names)  # measured and computed
        written = {text.get_text() for text in above.texts}
        power = {name: "2.00" if name in ("dense", "online", "online_causal") else "1.00" for name in names}
        assert {f"{label} $N^{{{power[name]}}}$" for name, label in names.items()} <= written


def test_the_record_says_where_it_was_measured_and_where_curves_stop(results):
    saved = json.loads(record.json_text(record.document(results, "resources", command="c", seed=0)))
    assert saved["results"]["curves"]["dense"]["stops_at"] == 4096
    assert saved["results"]["curves"]["linear"]["stops_at"] is None
    assert saved["machine"]["processor"]


@pytest.mark.slow
def test_a_quick_run_measures(tmp_path):
    found = resources.compute(**resources.QUICK, parts=tmp_path)
    assert set(found.curves) == set(resources.QUICK["methods"])
    for curve in found.curves.values():
        assert curve.lengths == curve.memory_lengths == (512, 1024)
        assert min(curve.seconds) > 0
    files = {path.name for path in tmp_path.glob("*.npy")}
    assert files == {"time-512.npy", "time-1024.npy"} | {
        f"memory-{name}-{n}.npy" for name in found.curves for n in (512, 1024)
    }
    assert resources.compute(**resources.QUICK, parts=tmp_path, resume=True) == found  # nothing is measured again
    assert_comes_back("resources", found)
    assert_drawn_as_it_comes_back("resources", found)


@pytest.mark.slow
def test_the_command_prints_tables_draws_and_goes_on_where_it_was_interrupted(tmp_path, capsys, monkeypatch):
    words = ["bench", "resources", "--lengths", "512", "600", "--methods", "linear", "--rounds", "1"]
    words += ["--out", str(tmp_path)]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.count("| 600 | ") == 2
    assert "| linear | N^" in text
    assert {path.name for path in tmp_path.glob("*.*")} == {f"resources.{end}" for end in ("svg", "png", "pdf", "json")}
    monkeypatch.setattr(points, "in_new_process", lambda *arguments, **options: pytest.fail("measured again"))
    assert main([*words, "--resume"]) == 0
    assert capsys.readouterr().out == text
    assert main([*words, "--resume", "--seed", "1"]) == 2
    assert "resume: the results in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (1024, 512)}, r"lengths: expected positive ascending ones, got \(1024, 512\)"),
        ({"lengths": (0, 512, 1024)}, "lengths: expected positive ascending ones"),
        ({"lengths": (64, 512)}, "lengths: dense needs two from 512 to 4096, got 1"),
        ({"lengths": (4096, 8192, 16384)}, "lengths: dense needs two from 512 to 4096, got 1"),
        ({"lengths": (128, 256), "methods": ("linear",)}, "lengths: linear needs two from 512 on, got 0"),
        ({"rounds": 0}, "rounds: expected at least 1, got 0"),
        ({"methods": ("linear", "lsh")}, "methods: expected some of dense, .*, got linear, lsh"),
        ({"methods": ()}, "got none"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        resources.compute(**options)


def test_the_committed_record_is_of_this_code():
    """What is computed beside its points, and what its longest points are, to three hundredths."""
    stored = json.loads((Path(__file__).parents[3] / "figures" / "resources.json").read_text(encoding="utf-8"))
    for name, curve in catalogue.results_of("resources", stored).curves.items():
        formula = [FLOAT32 * METHODS[name].peak(n, Setting()) for n in curve.memory_lengths]
        assert list(curve.peak_formula) == formula
        assert abs(curve.peak[-1] / formula[-1] - 1) < 0.03
