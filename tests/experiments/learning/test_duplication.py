"""A tiny network learns to copy, and the commands train, are stopped and go on."""

import json

import numpy as np
import pytest

from linattn_ref.data import duplication as words
from linattn_ref.experiments.learned import duplication_attention, duplication_curves
from linattn_ref.experiments.learning import causal_attention, duplication, learn, runs
from linattn_ref.experiments.learning.duplication import Shape
from linattn_ref.experiments.publishing import style
from linattn_ref.models import causal
from linattn_ref.training import parameters

TINY = Shape(width=16, heads=2, layers=1, length=12, batch=4)


@pytest.mark.slow  # kernels in float32 that no other default test compiles
@pytest.mark.parametrize("attention", causal_attention.NAMES)
def test_every_mechanism_has_a_loss_and_a_gradient(attention):
    """The step along the gradient lowers the loss, by what the gradient says."""
    learned = duplication.task(attention, TINY)
    flat, params = parameters.flatten(duplication.start(attention, TINY, np.random.default_rng(0)))
    given = learned.batch(np.random.default_rng(1))
    before, grads = learned.learn(params, given, 1.0)
    total, _ = parameters.flatten(grads)
    flat -= 1e-3 * total / np.linalg.norm(total)
    after, _ = learned.learn(params, given, 1.0)
    assert before - after == pytest.approx(1e-3 * np.linalg.norm(total), rel=0.1)  # the second order, and float32


@pytest.mark.slow
def test_it_learns_to_copy(tmp_path):
    """A word of three or four symbols, each told with a loss far below that of guessing, log 10."""
    how = {"attention": "softmax", "steps": 1200, "shape": TINY._replace(width=32, batch=16)}
    assert learn.run(duplication.begin, tmp_path, **how).run.curves["loss"][-1] < 0.1 * np.log(10)


def test_heads_that_do_not_fit_are_an_error():
    """And no others: half of a width is for places, and need not be cut into heads."""
    with pytest.raises(ValueError, match="shape: a width of 16 cannot be cut into 3 heads"):
        duplication.begin(shape=TINY._replace(heads=3))
    for width, heads in ((12, 4), (9, 3)):
        assert duplication.begin(shape=TINY._replace(width=width, heads=heads)).params.embedding.table.shape[1] < width


@pytest.fixture(scope="module")
def curves():
    return duplication_curves.compute()


def test_a_curve_has_a_row_a_seed(curves):
    found = runs.gathered(runs.RECORDS / "duplication.json")
    for name, curve in curves.mechanisms.items():
        assert curve.seeds == (0, 1, 2)
        for seed, *its in zip(curve.seeds, curve.cpu_seconds, curve.loss, curve.accuracy, strict=True):
            run = found[f"{name}-{seed}"]
            told = run.cpu_seconds, run.curves["training_loss"], run.curves["accuracy"]
            for got, said in zip(its, told, strict=True):
                np.testing.assert_array_equal(got, said)
        np.testing.assert_allclose(curve.at_the_end(), [x[-len(x) // 10 :].mean() for x in curve.loss])


def test_two_kinds_that_say_the_same_are_an_error(tmp_path):
    found = json.loads((runs.RECORDS / "duplication.json").read_text(encoding="utf-8"))
    (tmp_path / "few.json").write_text(json.dumps({f"{x}-0": found["linear-0"] for x in "ab"}), encoding="utf-8")
    with pytest.raises(ValueError, match="record: b has the attention and the network of another kind"):
        duplication_curves.compute(record=tmp_path / "few.json")


@pytest.mark.parametrize(
    ("after", "told"), [(0, "reduce_after: "), (40, "reduce_after: expected fewer than the 40 steps, got 40")]
)
def test_a_rate_that_is_never_or_always_reduced_is_an_error(after, told):
    with pytest.raises(ValueError, match=told):
        duplication.begin(steps=40, shape=TINY, reduce_after=after)


@pytest.mark.parametrize(("reduce_after", "last"), [(None, 799), (300, 299)])
def test_the_rate_falls_to_a_tenth(reduce_after, last):
    """After eight tenths of the steps, unless another step is given."""
    rate = duplication.begin(steps=1000, shape=TINY, reduce_after=reduce_after).settings.learning_rate
    np.testing.assert_allclose([rate(t) for t in (0, last, last + 1, 999)], [1e-3, 1e-3, 1e-4, 1e-4])


@pytest.mark.slow
def test_it_is_tested_on_the_same_words_and_other_hashes(monkeypatch):
    """Whatever the seed of training; a part of the words has the hashes of no other."""
    drawn = []
    original = causal_attention.draw

    def draw(name, rng, **sizes):
        mechanism = original(name, rng, **sizes)
        drawn.append(rng.bit_generator.state["state"]["state"])  # which numbers it has drawn
        return mechanism

    monkeypatch.setattr(causal_attention, "draw", draw)
    tasks = [duplication.task("performer", TINY) for _ in range(2)]
    params = duplication.start("performer", TINY, np.random.default_rng(0))
    assert tasks[0].evaluate(params) == tasks[1].evaluate(params)
    parts = duplication.HELD_OUT // duplication.AT_A_TIME
    assert drawn[:parts] == drawn[parts:]
    assert len(set(drawn)) == parts


def test_the_figure_has_a_line_a_mechanism(curves):
    def on(curve, processor):
        return type(curve)({**curve, "processor": processor})

    same = {name: on(curve, "another" if name == "local" else "one") for name, curve in curves.mechanisms.items()}
    elsewhere = {name: on(curve, "one" if name == "linear" else "another") for name, curve in curves.longer.items()}
    curves = type(curves)({**curves, "mechanisms": same, "longer": elsewhere})
    with style.use():
        against_updates, against_time, of_widths, longer = duplication_curves.draw(curves).axes
    for panel, names in (
        (against_updates, [*curves.mechanisms, "guessing"]),
        (against_time, [name for name in curves.mechanisms if name != "local"]),  # timed elsewhere
        (of_widths, [f"D = {width}" for width in curves.widths]),
        (longer, [name for name in curves.longer if name != "linear"]),
    ):
        assert [text.get_text() for text in panel.texts] == names
        assert len(panel.lines) == len({*names, "guessing"})


def test_runs_are_told_apart_by_what_they_say_of_themselves(tmp_path):
    """Not by their names."""
    found = json.loads((runs.RECORDS / "duplication.json").read_text(encoding="utf-8"))
    chosen = {}
    for kind, change in (("a", {}), ("b", {"heads": 16}), ("c", {"length": 128}), ("d", {"layers": 3}), ("e", {})):
        chosen[f"{kind}-0"] = one = json.loads(json.dumps(found["linear-0"]))
        one["facts"]["shape"].update(change)
    one["facts"]["reduce_after"] = duplication_curves.EARLY
    one["steps"] = [2 * step for step in one["steps"]]
    chosen["f-0"] = {**one, "facts": {**one["facts"], "shape": {**one["facts"]["shape"], "heads": 8}}}
    (tmp_path / "few.json").write_text(json.dumps(chosen), encoding="utf-8")
    results = duplication_curves.compute(record=tmp_path / "few.json")
    assert (list(results.mechanisms), list(results.widths)) == (["linear"], ["32", "4"])
    assert list(results.longer) == list(results.early) == ["linear"]
    np.testing.assert_array_equal(results.early["linear"].steps, 2 * results.mechanisms["linear"].steps)


def test_where_a_row_has_to_look():
    """By the definition: the key of row p has what row p is to tell."""
    drawn = words.draw(np.random.default_rng(0), count=20, length=13)
    copied, separator = duplication_attention.looked_for(drawn)
    for b, p, j in np.argwhere(copied):
        assert drawn.counts[b, p]
        assert drawn.read[b, j] == drawn.told[b, p]
    for b, p, j in np.argwhere(separator):
        assert drawn.counts[b, p]
        assert drawn.read[b, j] == 0
    n = drawn.counts.sum(axis=1) - 1
    np.testing.assert_array_equal(copied.sum(axis=(1, 2)), n)
    np.testing.assert_array_equal(separator.sum(axis=(1, 2)), n)


@pytest.mark.slow
@pytest.mark.parametrize("attention", duplication_attention.MECHANISMS)
def test_weights_are_what_attention_applied(attention):
    """Rows that sum to 1 and do not see the future; their products with the values are the layer's output."""
    params, model = duplication_attention.learned(attention)
    read = words.draw(np.random.default_rng(0), count=3, length=40).read
    _, saved = causal.forward(read, params, model)
    p = duplication_attention.weights_of(saved)
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-5)  # float32
    assert np.all(np.triu(p, 1) == 0)
    for layer, block in enumerate(saved.blocks):
        inside = block.attention.attention
        np.testing.assert_allclose(p[:, layer] @ inside.v, inside.out, rtol=0, atol=1e-4 * abs(inside.v).max())


@pytest.mark.slow
def test_the_committed_networks_copy():
    found = duplication_attention.compute(count=64)
    for network in found.networks.values():
        assert network.symbols > 0.98
    assert found.networks["softmax"].on_copied.max() > 0.8


@pytest.mark.parametrize("name", ["none", "4", "lsh-", "lsh-many"])
def test_a_name_that_is_no_mechanism(name):
    with pytest.raises(ValueError, match=f"attention: expected one of softmax, .*, got '{name}'"):
        causal_attention.draw(name, np.random.default_rng(0), width=4, length=8)
