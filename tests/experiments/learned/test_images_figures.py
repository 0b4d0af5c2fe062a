"""The figures of drawing: what is computed small, drawn and told again. No number of a training is tested."""

import json

import numpy as np
import pytest

from linattn_ref.experiments.learned import drawing, images_drawn, images_learned, images_short, images_state
from linattn_ref.experiments.learning import images, runs
from linattn_ref.experiments.publishing import style
from linattn_ref.models import causal


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
    found = runs.gathered(runs.RECORDS / "images.json")
    by_command = {run.facts["command"]: run for run in found.values()}
    curves = (*results.curves, *results.exercise)
    assert sorted(command for curve in curves for command in curve.commands) == sorted(by_command)  # each is in one
    for curve in curves:
        parts = [by_command[command] for command in curve.commands]
        assert parts[-1] is found[curve.name]
        steps = minutes = at = 0
        for part in parts:  # one behind the other
            its = slice(at, at := at + len(part.steps))
            np.testing.assert_array_equal(curve.images[its], 8 * (steps + part.steps))
            np.testing.assert_allclose(curve.cpu_minutes[its], minutes + part.cpu_seconds / 60, rtol=1e-12)
            np.testing.assert_array_equal(curve.bits[its], part.curves["bits"])
            assert part.facts.get("start", {}).get("steps", 0) == steps
            steps, minutes = curve.images[at - 1] // 8, curve.cpu_minutes[at - 1]
        assert at == len(curve.bits)
        assert curve.steps_planned == steps  # each was trained to its end
        assert curve.head == parts[-1].facts["head"]
    assert {run.head for run in results.exercise} == {"softmax", "mixture"}
    assert results.printed == {"softmax": 0.621, "linear": 0.644}
    with style.use():
        seen, spent = images_learned.draw(results).axes
    for curve, circles in zip(results.curves, seen.lines[1::2], strict=True):
        np.testing.assert_array_equal(circles.get_xdata(), np.array(curve.anew) / 1000)
    for curve, left, right in zip(results.curves, seen.lines[::2], spent.lines[::2], strict=True):
        np.testing.assert_array_equal(left.get_xdata(), curve.images / 1000)
        np.testing.assert_array_equal(right.get_xdata(), curve.cpu_minutes)


def chained(tmp_path, held_out=None, **start):
    """A record of two runs with four evaluations each, the second with ``start``."""
    first = json.loads((runs.RECORDS / "images.json").read_text())["exercise"]
    first["facts"] |= {"command": "one", "steps": 400} | ({} if held_out is None else {"held_out": held_out})
    first |= {name: first[name][:4] for name in ("steps", "cpu_seconds")}
    first["curves"] = {name: curve[:4] for name, curve in first["curves"].items()}
    second = {**first, "facts": {**first["facts"], "command": "two", "start": {"command": "one", **start}}}
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"a": first, "b": second}))
    return path


def test_a_run_that_went_on_from_the_midst_of_another_has_its_curve_as_far_as_there(tmp_path):
    (curve,) = images_learned.compute(record=chained(tmp_path, steps=200)).curves
    assert (curve.name, curve.commands, curve.steps_planned) == ("b", ("one", "two"), 600)
    assert curve.anew == (8 * 200,)
    np.testing.assert_array_equal(curve.images, 8 * np.array([100, 200, 300, 400, 500, 600]))
    assert (np.diff(curve.cpu_minutes) > 0).all()
    np.testing.assert_array_equal(curve.bits[:2], curve.bits[2:4])


def test_a_run_that_went_on_from_an_unknown_one_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="record: b goes on from 'none', which is not in it"):
        images_learned.compute(record=chained(tmp_path, command="none", steps=200))


@pytest.mark.parametrize("module", [images_learned, images_short])
def test_runs_that_were_not_evaluated_on_test_images_are_refused(tmp_path, module):
    with pytest.raises(ValueError, match="record: a, b: evaluated on images held out from training"):
        module.compute(record=chained(tmp_path, steps=200, held_out=512))


@pytest.mark.slow
def test_a_state_after_rows_is_that_of_its_pixels_one_by_one():
    network = drawing.load()
    pixels = np.random.default_rng(0).integers(0, 256, 784)
    ranks, size = images_state._ranks(network, pixels, 28)
    state = causal.init_state(1, network.params, network.model)
    for token in images.shifted(pixels[None])[0, :56]:
        _, state = causal.step(np.array([token]), network.params, state, network.model)
    expected = [images_state.effective_rank(one.s[0]).mean() for one in state.blocks]
    np.testing.assert_allclose(ranks[1], expected, rtol=1e-3)  # float32, summed in another order
    assert size == 4 * 2 * (32 * 32 + 32) * 4  # layers, heads, S and z, bytes


def test_short_runs_are_put_together_by_kind():
    results = images_short.compute()
    kinds = results.kinds
    for name in ("linear", "softmax"):
        assert kinds[name].seeds == (0, 1, 2)
        assert len(np.unique(kinds[name].bits[:, -1])) == 3  # not one run three times
    assert {name: (kind.attention, kind.head) for name, kind in kinds.items()} == {
        "linear": ("linear", "softmax"),
        "softmax": ("softmax", "softmax"),
        "mixture": ("linear", "mixture"),
        "lsh-1": ("lsh-1", "softmax"),
    }
    found = runs.gathered(runs.RECORDS / "images_short.json")
    assert set(found) == {f"{name}-{seed}" for name, kind in kinds.items() for seed in kind.seeds}  # none is left out
    for name, kind in kinds.items():
        run = found[f"{name}-{kind.seeds[-1]}"]
        np.testing.assert_array_equal(kind.bits[-1], run.curves["bits"])
        np.testing.assert_array_equal(kind.cpu_minutes[-1], run.cpu_seconds / 60)
        assert kind.command == found[f"{name}-0"].facts["command"]
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
