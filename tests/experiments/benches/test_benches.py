"""What every bench keeps to: counts are checked, each kernel has a row, the command prints the table and draws."""

import json
import re
import sys

import pytest

from linattn_ref import cli
from linattn_ref.experiments.benches import engine
from linattn_ref.experiments.publishing import catalogue, record, style
from linattn_ref.kernels import reference

# Options with which each takes seconds.
SMALL = {
    "softmax": {"lengths": (5, 16), "heads": 2, "width": 4, "repeats": 2},
    "linear": {"lengths": (8, 16), "heads": 1, "width": 4, "repeats": 1, "compile": False},
    "performer": {"lengths": (8, 16), "heads": 1, "width": 4, "features": 5, "repeats": 1},
    "patterns": {"lengths": (32, 35), "heads": 2, "width": 4, "window": 4, "block": 4, "drawn": 1, "repeats": 1},
    "reformer": {"lengths": (16, 32), "heads": 2, "width": 4, "rounds": 1, "chunk": 8, "repeats": 2},
    "delta": {"lengths": (64, 128), "heads": 1, "width": 4, "repeats": 1},
    "steps": {"lengths": (1, 9), "widths": (4,), "rules": (4,), "batches": (1,), "heads": 2, "width": 32, "repeats": 1},
}
COUNTS = {
    **SMALL,
    "generation": {"batches": (1,), "images": (1,), "pixels": 28, "repeats": 1},
    "encoder": {"layers": 1, "length": 1, "repeats": 1},
    "training": {"repeats": 1},
    "speech": {"lengths": (1,), "repeats": 1},
}


def counts(name):
    return [option for option, value in COUNTS[name].items() if not isinstance(value, bool)]


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in COUNTS for option in counts(name)])
def test_counts_are_at_least_1(name, option):
    given = COUNTS[name][option]
    wrong = (*given, 0) if isinstance(given, tuple) else 0
    with pytest.raises(ValueError, match=f"^{option}: expected "):
        catalogue.module_of(f"bench_{name}").compute(**{**COUNTS[name], option: wrong})


@pytest.fixture
def alone(monkeypatch):
    """No other package is installed."""
    packages = "torch", "performer_pytorch", "transformers", "fast_transformers", "fla", "onnxruntime", "openvino"
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.slow  # kernels are compiled for float32 for the slow tests
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["softmax", "performer", "patterns"])
def test_a_wrong_result_is_not_timed(name, monkeypatch):
    run = engine.run

    def wrong(page, arrays, d_out, passes, **options):
        out, *gradients = run(page, arrays, d_out, passes, **options)
        if options["kernels"] is reference and gradients:
            gradients[1] = 1.01 * gradients[1]
        return out, *gradients

    monkeypatch.setattr(engine, "run", wrong)
    with pytest.raises(RuntimeError, match=r"\+ backward.*: reference and jit differ in d_k by (1.0e-02|9.9e-03)"):
        catalogue.module_of(f"bench_{name}").compute(**SMALL[name])


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", SMALL)
def test_the_command_measures_prints_and_draws(name, tmp_path, capsys):
    words = ["bench", name, "--out", str(tmp_path)]
    for option, value in SMALL[name].items():
        numbers = value if isinstance(value, tuple) else (value,)
        words += ["--no-compile"] if option == "compile" else [f"--{option}", *map(str, numbers)]
    assert cli.main(words) == 0
    assert {path.name for path in tmp_path.iterdir()} == {f"bench_{name}.{x}" for x in ("svg", "png", "pdf", "json")}
    stored = json.loads((tmp_path / f"bench_{name}.json").read_text(encoding="utf-8"))
    results, module = catalogue.results_of(f"bench_{name}", stored), catalogue.module_of(f"bench_{name}")
    assert record.plain(results) == stored["results"]
    assert module.table(results) in capsys.readouterr().out
    lines = [line for line in module.table(results).splitlines() if re.match(r"\|(?! ---)", line)]
    settings = {json.dumps({k: v for k, v in row.items() if k in list(row)[:-5]}) for row in results.rows}
    assert len(lines) == len(settings) + {"linear": 2, "steps": 3}.get(name, 1)  # and the headers
    for row in results.rows:
        assert 0 <= row.min_ms <= row.median_ms
        assert row.ratio_min <= row.ratio_median
        if "jit" in row.values():
            assert row.ratio_min == row.ratio_median == 1
    assert "Not compared here: " in module.table(results)
    assert not any("pytorch" in str(word) for row in results.rows for word in row.values())
    with style.use("projector"):
        module.draw(results).draw_without_rendering()
