"""Linformer's savings: what is run and how it is summed up. No time is tested, nor the size of a saving in time."""

import numpy as np
import pytest
from looks import each_look
from quick import assert_comes_back, assert_drawn_as_it_comes_back, quick

from linattn_ref.attention import linformer, softmax
from linattn_ref.experiments.cost import layer_savings, linformer_savings
from linattn_ref.experiments.cost.linformer_savings import FORMS, attend, draw_inputs
from linattn_ref.experiments.cost.resource_methods import Setting
from linattn_ref.experiments.measuring import points
from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.publishing.restore import Results

SMALL = Setting(heads=2, width=4)


@pytest.fixture
def results():
    """Lengths 4 and 8, k = 2 and 4, with ratios 2^0 ... 2^3 in time and their inverses in memory."""
    ratios = np.array([[2.0, np.nan], [8.0, 1.25]])
    savings = Results(time=ratios, memory=1 / ratios)
    return Results(lengths=(4, 8), reduced=(2, 4), forms=dict.fromkeys(FORMS, savings))


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_compute_the_mechanisms(form):
    """To some roundings in float32 of sums of 48 terms."""
    q, k, v, e, f = draw_inputs(48, 12, SMALL, seed=0)
    full, reduced = softmax.forward(q, k, v)[0], linformer.forward(q, k, v, e, f)[0]
    np.testing.assert_allclose(attend(form, (q, k, v)), full, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(attend(form, (q, k, v, e, f)), reduced, rtol=1e-5, atol=1e-5)


def test_savings_are_softmax_over_linformer(monkeypatch):
    """Softmax attention takes 8, 6, 4 seconds, Linformer with k = 2 takes 2, 3, 1: the median of 4, 2, 4 is 4."""
    seconds = {0: [8.0, 6.0, 4.0], 2: [2.0, 3.0, 1.0], 4: [4.0, 4.0, 4.0]}
    peaks = {0: 96, 2: 24, 4: 48}

    def measure(function, make, what, *rest, malloc):
        if function is points.memory_of:
            return np.array([peaks[int(what)]])
        return np.array([seconds[int(r)] for r in what])

    monkeypatch.setattr(points, "in_new_process", measure)
    found = linformer_savings.compute(lengths=(4, 8), reduced=(2, 4), rounds=3, setting=SMALL)
    for form in FORMS:
        savings = found.forms[form]
        np.testing.assert_array_equal(savings.time, [[4, np.nan], [4, 1.5]])
        np.testing.assert_array_equal(savings.memory, [[4, np.nan], [4, 2]])
        np.testing.assert_array_equal(savings.softmax_seconds, [6, 6])
        np.testing.assert_array_equal(savings.softmax_peak, [96, 96])


@each_look
def test_the_figure_shows_every_number(results, look):
    with style.use(look):
        figure = linformer_savings.draw(results)
        figure.canvas.draw()
    shown = [[text.get_text() for text in axis.texts] for axis in figure.axes]
    assert shown == [["2.0", "8.0", "1.2"], ["0.50", "0.12", "0.80"]] * 2
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        f"{what}, {form}" for form in FORMS for what in ("time", "memory")
    ]


@pytest.mark.slow
def test_a_quick_run_measures():
    found = quick("linformer_savings")
    assert_comes_back("linformer_savings", found)
    assert_drawn_as_it_comes_back("linformer_savings", found)
    for form in FORMS:
        savings = found.forms[form]
        assert savings.time.shape == savings.memory.shape == (1, 1)
        assert savings.time[0, 0] > 0
    # Scores, exponentials, quotients and P, 8 x 512 x 512 numbers each, beside those of P~, 8 x 512 x 128; half a MiB.
    assert found.forms["matrix kept"].softmax_peak[0] == pytest.approx(4 * 4 * 8 * 512 * 512, abs=2**19)
    assert 2 < found.forms["matrix kept"].memory[0, 0] < 4
    assert found.forms["online"].memory[0, 0] < 1


@pytest.mark.parametrize("name", ["lengths", "reduced"])
def test_bad_arguments(name):
    with pytest.raises(ValueError, match=f"{name}: expected at least 1, got 0"):
        linformer_savings.compute(**{name: (4, 0)})
    with pytest.raises(ValueError, match="rounds: expected at least 1, got 0"):
        linformer_savings.compute(rounds=0)


@pytest.mark.slow
def test_a_whole_layer_is_measured_in_the_same_way():
    results = quick("layer_savings")
    assert_comes_back("layer_savings", results)
    assert_drawn_as_it_comes_back("layer_savings", results)
    (savings,) = results.forms.values()
    assert list(results.forms) == [linformer_savings.LAYER]
    assert np.isfinite(savings.time).all()
    assert savings.softmax_peak[0] > 512 * 2048 * 4  # the feed-forward layer's rows, at least
    with style.use():
        assert len(layer_savings.draw(results).axes) == 2
