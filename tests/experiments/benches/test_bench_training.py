"""The bench of training: networks that PyTorch takes the same steps with, and what it counts as their products."""

import numpy as np
import pytest

from linattn_ref.experiments.benches import bench_training

SMALL = bench_training.Setting(1, 16, 2, "linear")


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_three_steps_are_pytorchs(attention):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra peers)")
    steps = bench_training.steps(SMALL._replace(attention=attention), 0, torch)
    losses = {name: [step() for step in [make()] * 3] for name, make in steps.items()}
    assert len(losses) > 1
    for name, found in losses.items():
        np.testing.assert_allclose(found, losses["jit"], rtol=1e-5, err_msg=name)
    assert losses["jit"][0] > losses["jit"][2]


def test_a_step_has_the_products_of_its_matrices():
    """Each of the parameters' matrices, but those of tokens and places, whose rows are looked up."""
    params, _ = bench_training._start(SMALL, 0)
    found = [one.w.shape for block in params.blocks for pair in block[1::2] for one in pair if hasattr(one, "w")]
    assert sorted([*found, params.head.w.shape]) == sorted(bench_training._sizes(SMALL))
