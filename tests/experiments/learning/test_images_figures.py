"""The figures of drawing: what is computed small, drawn and told again. No number of a training is tested."""

import numpy as np
import pytest

from linattn_ref.experiments.learning import images_drawn, images_learned, images_short, images_state, runs
from linattn_ref.experiments.publishing import style


def test_images_are_the_same_as_text():
    drawn = np.random.default_rng(0).integers(0, 256, (3, 5, 5), np.uint8)
    text = images_drawn.to_text(drawn)
    assert text[0][:2] == f"{drawn[0, 0, 0]:02x}"
    np.testing.assert_array_equal(images_drawn.from_text(text), drawn)


def test_the_effective_rank_counts_equal_singular_values():
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))
    matrices = np.stack([(basis[:, :r] * 3.0) @ basis[:r] for r in (1, 2, 5)])
    np.testing.assert_allclose(images_state.effective_rank(matrices), [1, 2, 5], rtol=1e-12)
    uneven = np.diag([1.0, 0.1, 0.0])
    assert 1 < images_state.effective_rank(uneven) < 1.1


def test_the_curves_are_those_of_the_gathered_runs():
    results = images_learned.compute()
    (shipped,) = (curve for curve in results.curves if curve.name == "linear")
    assert (np.diff(shipped.images) > 0).all()
    assert (np.diff(shipped.cpu_minutes) > 0).all()
    assert results.printed == {"softmax": 0.621, "linear": 0.644}
    assert {run.head for run in results.exercise} == {"softmax", "mixture"}
    with style.use():
        images_learned.draw(results)


def test_short_runs_are_put_together_by_kind():
    results = images_short.compute()
    kinds = results.kinds
    assert kinds["linear"].seeds == (0, 1, 2)
    assert len(np.unique(kinds["linear"].bits[:, -1])) == 3  # not one run three times
    assert (kinds["linear"].head, kinds["mixture"].head) == ("softmax", "mixture")
    assert (kinds["mixture"].attention, kinds["lsh-1"].attention) == ("linear", "lsh-1")
    found = runs.gathered(runs.RECORDS / "images_short.json")
    assert set(found) == {f"{name}-{seed}" for name, kind in kinds.items() for seed in kind.seeds}  # none is left out
    for name, kind in kinds.items():
        run = found[f"{name}-{kind.seeds[-1]}"]
        np.testing.assert_array_equal(kind.bits[-1], run.curves["bits"])
        np.testing.assert_array_equal(kind.cpu_minutes[-1], run.cpu_seconds / 60)
        assert kind.images[-1] == 8 * run.facts["steps"]  # each was trained to its end
    with style.use():
        left, right = images_short.draw(results).axes
    for axes in (left, right):
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), np.median(kinds["linear"].bits, axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("module", [images_drawn, images_state])
def test_small_figures_are_drawn_without_what_is_fetched(module):
    results = module.compute(rng=np.random.default_rng(0), quick=True)
    with style.use():
        module.draw(results)
