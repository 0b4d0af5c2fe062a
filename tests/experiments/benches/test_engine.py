"""What the benches share: what it refuses, says and draws. The only clock here is told what to say."""

import numpy as np
import pytest
from looks import each_look
from tqdm import tqdm

from linattn_ref.experiments.benches import engine
from linattn_ref.experiments.publishing import style


def row(causal, size, kernel, *times):
    names = ("median_ms", "min_ms", "ratio_median", "ratio_min")
    return engine.Results(causal=causal, size=size, kernel=kernel, **dict(zip(names, times, strict=True)))


ROWS = (
    row(False, 8, "jit", 2.0, 1.0, 1.0, 1.0),
    row(False, 8, "slow", 8.0, 6.0, 4.0, 3.0),
    row(True, 8, "jit", 0.5, 0.5, 1.0, 1.0),
    row(True, 8, "other", 0.25, 0.25, 0.5, 0.5),
)


def test_counts_are_at_least_1():
    engine.check_counts(heads=1, lengths=(1, 2))
    with pytest.raises(ValueError, match=r"^lengths: expected at least 1, got 0$"):
        engine.check_counts(heads=1, lengths=(1, 0))
    with pytest.raises(ValueError, match=r"^heads: expected at least 1, got -1$"):
        engine.check_counts(heads=-1)


def test_the_bar_counts_every_setting(monkeypatch):
    bars = []

    def bar(**options):
        bars.append(tqdm(**options | {"disable": True}))
        return bars[-1]

    @engine.bench("a", settings={"a": 1, "a b": 2})
    def compute(*, a=(1, 2, 3), b=(1, 2), seed=0):
        for x in a:
            yield engine.Results(kernel="jit", x=x)
            for y in b:
                for what in range(2):
                    yield engine.Results(kernel="jit", x=x, y=y, what=what)
        return {}

    monkeypatch.setattr(engine, "tqdm", bar)
    assert len(compute().rows) == 3 + 2 * 3 * 2 == bars[0].total


def test_what_is_not_installed_is_none():
    assert engine.find("numpy") is np
    assert engine.find("numpy.nothing") is None


@pytest.mark.parametrize("wrong", [1.02, np.nan])
def test_results_are_compared_as_far_as_they_go(wrong):
    right = [np.array([1.0, -4.0]), np.array([2.0])]
    engine.compare("x", {"jit": right, "forward alone": right[:1], "near": [1.001 * x for x in right]}, 0.01)
    with pytest.raises(RuntimeError, match=r"^x: far and jit differ in d_q by (2\.0e-02|nan) of its largest entry$"):
        engine.compare("x", {"jit": right, "far": [right[0], wrong * right[1]]}, 0.01)


def test_the_error_is_of_the_largest_entry_and_the_other_way_to_lay_out_an_array_is_the_same():
    right = np.arange(6.0).reshape(2, 3)
    off = right.copy()
    off[0, 0] = 0.04  # 0.008 of 5
    engine.compare("x", {"a": [off.ravel()], "b": [right]}, 0.01, to="b")
    with pytest.raises(RuntimeError, match=r"a and b differ in z by 8\.0e-03"):
        engine.compare("x", {"a": [off], "b": [right]}, 0.007, to="b", outputs="z")


def test_ratios_are_taken_round_by_round_and_times_are_of_one_call(monkeypatch):
    """A clock that gives jit 9 (not counted), 1, 2, 4 seconds and the other 9, 2, 6, 4: ratios 2, 3, 1."""
    durations = iter([9, 9, 1, 2, 2, 6, 4, 4])
    now = [0.0]
    calls = [0]

    def clock():
        calls[0] += 1
        if calls[0] % 2 == 0:
            now[0] += next(durations)
        return now[0]

    monkeypatch.setattr("time.process_time", clock)
    kernels = dict.fromkeys(("jit", "other"), lambda: None)
    jit, other = engine.measure({"causal": True, "size": 3}, kernels, 3, often=10)
    assert jit == row(True, 3, "jit", 200, 100, 1, 1)
    assert other == row(True, 3, "other", 400, 200, 2, 1)


def test_a_kernel_can_be_called_often_and_some_are_compared_by_other_results():
    counts = {"jit": 0, "other": 0}

    def call(name):
        counts[name] += 1
        return (np.array([len(name)]),)

    kernels = {name: lambda name=name: call(name) for name in counts}
    setting = {"causal": True, "passes": "both", "size": 3}
    with pytest.raises(RuntimeError, match=r"^causal=True, both, size=3: other and jit differ in out"):
        engine.measure(setting, kernels, 1, tolerance=0.1)
    assert counts == {"jit": 1, "other": 1}
    same = dict.fromkeys(kernels, (np.ones(1),))
    for options in ({"apart": ["other"]}, {"expected": same}):
        rows = engine.measure(setting, kernels, 1, tolerance=0.1, called="name", often=5, **options)
        assert [row.name for row in rows] == ["jit", "other"]
    assert counts["other"] == 1 + 2 * 2 * 5  # compared once; a round that does not count, and one


def test_of_a_step_that_goes_on_the_second_result_is_compared():
    """The first does not depend on what the step does to its state."""
    kernels = {
        "jit": engine.going_on(lambda state: (np.array([1 + state]), state + 1), 0),
        "forgets": engine.going_on(lambda state: (np.array([1 + state]), state), 0),
    }
    with pytest.raises(RuntimeError, match=r"^size=3: forgets and jit differ in out by 5\.0e-01"):
        engine.measure({"size": 3}, kernels, 1, tolerance=0.1, often=5)


def test_what_a_bench_was_asked_for_is_in_its_results_and_checked():
    @engine.bench("heads", "name")
    def compute(*, lengths=(1, 2), heads=8, name="x", wide=False, seed=0):
        for n in lengths:
            yield row(False, n, "jit", 1.0, 1.0, 1.0, 1.0)
        return {"versions": {"PyTorch": "2"}, "rows": (), "more": heads}

    results = compute(heads=3)
    assert list(results) == ["heads", "name", "versions", "rows", "more"]
    assert [one.size for one in results.rows] == [1, 2]
    assert engine.rows_of(results, size=2) == [results.rows[1]]
    for wrong in ({"heads": 0}, {"lengths": (3, 0)}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected at least 1, got 0"):
            compute(**wrong)


def test_the_table_has_a_line_a_setting_and_a_column_a_kernel():
    assert engine.table(("causal", "N"), ROWS, ["nobody", "other"]) == [
        "| causal | N | jit | other | slow |",
        "| --- | --- | ---: | ---: | ---: |",
        "| no | 8 | 2.00 ms |  | 4.00 (3.00) |",
        "| yes | 8 | 0.50 ms | 0.50 (0.50) |  |",
    ]
    lines = engine.table(("N",), ROWS[:2], [], cells=lambda setting: (2 * setting[1],), unit=("µs", 1e3))
    assert lines[-1] == "| 16 | 2000.00 µs | 4.00 (3.00) |"


def test_who_took_part_is_said_and_who_did_not():
    assert engine.compared({"a": "1", "b": "2"}, ["b"]) == "a 1, b 2."
    assert engine.compared({"a": "1"}, ["a", "b", "c"]) == "a 1. Not compared here: b, c."
    assert engine.compared({}, ["b"]) == "Not compared here: b."


@pytest.mark.parametrize("log", [False, True])
@each_look
def test_a_panel_a_title_a_line_a_curve_and_a_name_on_each(look, log):
    rows = [
        engine.Results(panel=panel, kernel=kernel, size=size, median_ms=size / 1e3)
        for panel, kernel, sizes in (("left", "two", (4,)), ("right", "one", (4, 8)), ("right", "two", (4,)))
        for size in sizes
    ]
    rows.append(engine.Results(panel="left", kernel="one", size=4, median_ms=0.004))
    rows.append(engine.Results(panel="left", kernel="one", size=8, median_ms=0.24))
    lines = {"one": (style.BLUE, "o-", {"kernel": "one"}), "two": (style.GREY, "s--", {"kernel": "two"})}
    panels = {name: {"panel": name} for name in ("left", "right")}
    shown = [row for row in rows if (row.panel, row.kernel) != ("left", "two")]
    with style.use(look):
        figure = engine.draw(shown, panels, lines, "seconds", log=log)
        figure.draw_without_rendering()
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [1, 30])  # microseconds per token
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["left", "right"]
    assert [len(axes.get_lines()) for axes in figure.axes] == [1, 2]
    names = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert names == [["one"], ["two:\nno longer one was run", "one"]]  # no point without a name
    assert figure.axes[0].get_yscale() == ("log" if log else "linear")
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["4", "8"]
