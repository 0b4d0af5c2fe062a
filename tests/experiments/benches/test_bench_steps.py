"""The bench of single tokens: what it runs and says. No time is tested."""

import numpy as np
import pytest

from linattn_ref.experiments.benches import bench_steps, limits
from linattn_ref.experiments.publishing import style

pytestmark = pytest.mark.slow  # kernels are compiled for float32 for the slow tests

SMALL = {"lengths": (1, 9), "widths": (4,), "rules": (4,), "batches": (2,), "heads": 2, "width": 32, "repeats": 2}
OF_CACHE = {"jit", "reference", "plain NumPy", "cache read once"}
OF_SUMS = {"jit", "linear, new state", "performer", "rfa", "state passed over"}


@pytest.fixture(scope="module")
def results():
    return bench_steps.compute(**SMALL)


def test_every_setting_has_a_row(results):
    expected = {("key/values", n, name) for n in SMALL["lengths"] for name in OF_CACHE}
    expected |= {("sums", 4, name) for name in OF_SUMS}
    expected |= {(rule, 4, name) for rule in bench_steps.RULES for name in ("jit", "jit, new state", "reference")}
    peers = set(bench_steps.LOOKS) - OF_CACHE | {bench_steps.RUN, bench_steps.BOUND}
    assert {(row.task, row.size, row.kernel) for row in results.rows if row.kernel not in peers} == expected
    assert {row.what for row in results.rows if row.task in bench_steps.RULES} == {"step", "kernel"}


def test_table_and_figure_show_all(results):
    lines = bench_steps.table(results).splitlines()
    assert sum(line.startswith("| key/values") for line in lines) == 1 + len(SMALL["lengths"])
    assert sum(line.startswith("| sums") for line in lines) == 2
    with style.use("paper"):
        figure = bench_steps.draw(results)
    assert all(len(axis.lines) >= len(OF_CACHE) for axis in figure.axes)


def test_a_wrong_token_is_no_result(monkeypatch):
    right = bench_steps._plain
    monkeypatch.setattr(bench_steps, "_plain", lambda *arguments: (right(*arguments)[0] + 1,))
    with pytest.raises(RuntimeError, match="key/values, size=1: plain NumPy and jit differ in out"):
        bench_steps.compute(**SMALL)


def test_limits_look_at_every_number():
    x = np.random.default_rng(0).standard_normal((3, 64, 32)).astype(np.float32)
    assert limits.read_all(x) == pytest.approx(x.sum(), rel=1e-4)
    before = x.copy()
    limits.pass_over(x)
    np.testing.assert_array_equal(x, before)
