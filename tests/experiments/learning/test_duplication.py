"""A tiny network learns to copy, and the commands train, are stopped and go on."""

import numpy as np
import pytest

from linattn_ref import cli, cli_train
from linattn_ref.experiments.learning import causal_attention, duplication, runs
from linattn_ref.experiments.learning.duplication import Shape
from linattn_ref.training import parameters

TINY = Shape(width=16, heads=2, layers=1, length=12, batch=4)


@pytest.mark.slow  # kernels in float32 that no other default test compiles
@pytest.mark.parametrize("attention", causal_attention.NAMES)
def test_every_mechanism_has_a_loss_and_a_gradient(attention):
    """The step along the gradient lowers the loss, by what the gradient says."""
    learned = duplication.task(attention, TINY)
    flat, params = parameters.flatten(duplication.start(attention, TINY, np.random.default_rng(0)))
    total, grads = parameters.flatten(parameters.zeros_like(params))
    given = learned.batch(np.random.default_rng(1))
    before = learned.learn(params, given, grads, 1.0, lambda shape, dtype: np.empty(shape, dtype))
    flat -= 1e-3 * total / np.linalg.norm(total)
    after = learned.learn(params, given, parameters.zeros_like(params), 1.0, np.empty)
    assert before - after == pytest.approx(1e-3 * np.linalg.norm(total), rel=0.1)  # the second order, and float32


@pytest.mark.slow
def test_it_learns_to_copy(tmp_path):
    """A word of three or four symbols, each told with a loss far below that of guessing, log 10."""
    duplication.run(tmp_path, attention="softmax", steps=1200, shape=TINY._replace(width=32, batch=16))
    assert runs.read(tmp_path).curves["loss"][-1] < 0.1 * np.log(10)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("duplication",), ("duplication", "--attention", "lsh-4")], ids=" ".join)
def test_the_command_trains_and_goes_on(tmp_path, words, capsys):
    words = ["train", *words, "--quick", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "after 40 steps" in told
    assert cli.main([*words, "--resume"]) == 0
    assert capsys.readouterr().out == told
    assert cli.main([*words, "--resume", "--seed", "1"]) == 2
    assert "error: resume: the run in" in capsys.readouterr().err


def test_the_command_offers_every_mechanism():
    """It names them itself, so that ``--help`` need not import them."""
    assert cli_train.AUTOREGRESSIVE == causal_attention.NAMES


def test_heads_that_do_not_fit_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="shape: a width of 16 cannot be halved and cut into 3 heads"):
        duplication.run(tmp_path, shape=TINY._replace(heads=3))
