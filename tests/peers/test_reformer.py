"""LSH attention beside Hugging Face's Reformer and PyTorch's automatic differentiation (extra: peers).

Known differences of transformers' ``LSHSelfAttention``:

- Its first chunk attends to the last one too (and, of the second round on, to the last one of the round before), where
  here it has none before it. What is compared leaves out the tokens of the first chunk.
- A pair that meets in several rounds counts as often: no correction by the number of rounds. With the same buckets in
  every round all pairs count alike, and the two agree.
- A token is hidden from itself by a score of -1e5, not minus infinity; other masked keys by -1e9.
- Keys are divided by their root mean square and then by sqrt(D), which comes to ``scale=1`` here; 1e-6 is added to the
  mean square, here taken out.
- All rounds are sorted as one sequence, their buckets numbered on; rotations are drawn in every call, a set a head.
- A masked token is still a query; its output is not 0.
"""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
pytest.importorskip("transformers", reason="needs the extra: peers")
import torch

from linattn_ref.attention import reformer
from linattn_ref.experiments.benches import bench_reformer
from linattn_ref.kernels import jit, reference

ROOMS = pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}  # float64: results of size 1 to 100 after sums of some hundred products


def draw(n, rounds, seed=0):
    rng = np.random.default_rng(seed)
    qk, v, d_out = rng.standard_normal((3, 2, n, 8))
    return bench_reformer.Inputs(qk, v, d_out), reformer.draw_rotations(rounds, 8, 6, rng)


@ROOMS
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_hugging_face(rounds, causal, kernels):
    """All but the tokens of the first chunk, both passes; rounds are the same one repeated."""
    inputs, rotations = draw(40, 1)
    hashing = bench_reformer.Hash(np.repeat(rotations, rounds, axis=0), 8, causal)
    out, saved = reformer.forward(inputs.qk, inputs.v, **hashing._asdict(), scale=1.0, kernels=kernels)
    d_out = bench_reformer.without_first_chunk(inputs.d_out, saved.order[:, :1], 8)
    gradients = reformer.backward(d_out, saved)

    peer = bench_reformer.find_peer()
    layer = bench_reformer.peer_layer(peer, hashing, 2, 8)
    layer._len_norm = partial(layer._len_norm, epsilon=0.0)
    buckets = reformer.buckets(inputs.qk, hashing.rotations).swapaxes(0, 1).astype(np.int64)  # (rounds, H, N)
    theirs = bench_reformer.run_peer(peer, layer, inputs._replace(d_out=d_out), bench_reformer.BOTH, buckets)
    there = bench_reformer.without_first_chunk(np.ones_like(d_out), saved.order[:, :1], 8)
    for mine, other in zip((out * there, *gradients), (theirs[0] * there, *theirs[1:]), strict=True):
        np.testing.assert_allclose(mine, other, **TOLERANCE)


@ROOMS
@pytest.mark.parametrize("rounds", [1, 3, 8])
@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True), (True, True)])
def test_automatic_differentiation(rounds, causal, masked, kernels):
    """PyTorch's gradient of a dense softmax under the union of the rounds."""
    inputs, rotations = draw(50, rounds)
    key_mask = np.random.default_rng(1).random((2, 50)) < (0.6 if masked else 2)
    options = {"rotations": rotations, "chunk": 6, "causal": causal, "key_mask": key_mask}
    out, saved = reformer.forward(inputs.qk, inputs.v, **options, kernels=kernels)
    gradients = reformer.backward(inputs.d_out, saved)

    pattern = torch.from_numpy(reformer.pattern(inputs.qk, **options))
    qk, v = (torch.tensor(x, requires_grad=True) for x in inputs[:2])
    scores = qk @ torch.nn.functional.normalize(qk, dim=-1).mT / 8**0.5
    weights = torch.softmax(scores.masked_fill(~pattern, -1e300), -1) * pattern.any(-1, keepdim=True)
    expected = weights @ v
    expected.backward(torch.from_numpy(inputs.d_out))
    for mine, other in zip((out, *gradients), (expected.detach(), qk.grad, v.grad), strict=True):
        np.testing.assert_allclose(mine, other, **TOLERANCE)
