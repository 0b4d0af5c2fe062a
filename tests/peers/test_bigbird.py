"""BigBird against transformers' own and PyTorch's gradients (extra: peers).

Known differences of ``transformers.models.big_bird``:

- A window of 3 blocks and the first and last block global: nothing else is offered. The length has to be a multiple of
  the block, and there have to be at least 5 blocks.
- Random blocks are drawn inside ``forward``, for each head, and in ``eval`` mode not at all: all of them are then block
  0, which is global too and so counts ``1 + r`` times. What is drawn in training never is a block that is covered.
- In the first and last block queries see everything; in the second and the last but one the window overlaps a global
  block, which is counted once there. It comes to the same as a set of blocks.
- Masked keys get a score of -10000 less instead of a weight of 0, and masked queries an output of 0.
"""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
pytest.importorskip("transformers", reason="needs the extra: peers")
import torch
from transformers import BigBirdConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

from linattn_ref.attention import bigbird
from linattn_ref.kernels import jit

HEADS, WIDTH, BLOCK, BLOCKS, RANDOM = 2, 5, 4, 12, 2
N = BLOCK * BLOCKS
ROUNDING = 1e-12  # numbers up to 30, some hundred roundings


def peer():
    """Their layer; the projections are not of interest here."""
    config = BigBirdConfig(
        hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, block_size=BLOCK, num_random_blocks=RANDOM
    )
    return BigBirdBlockSparseAttention(config).double().eval()


def run_theirs(q, k, v, key_mask, d_out, drawn, monkeypatch):
    """Their output and gradients with the random blocks ``drawn``; None for what they do by themselves."""
    layer = peer()
    if drawn is not None:
        blocks = [drawn[1:-1]] * HEADS  # their first and last block, which are global, have no rows
        monkeypatch.setattr(layer, "_bigbird_block_rand_mask_with_head", lambda **options: blocks)
    mask = torch.tensor(key_mask[:, 0].astype(float))
    blocked, band, from_mask, to_mask = BigBirdModel.create_masks_for_block_sparse_attn(mask, BLOCK)
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    out, _ = layer.bigbird_block_sparse_attention(
        *leaves,
        band,
        from_mask,
        to_mask,
        blocked,
        blocked,
        HEADS,
        RANDOM,
        WIDTH,
        BLOCK,
        BLOCK,
        len(q),
        N,
        N,
        seed=0,
        plan_from_length=None,
        plan_num_rand_blocks=None,
    )
    out = out.transpose(1, 2)  # (B, H, N, D)
    out.backward(torch.tensor(d_out))
    return out.detach().numpy(), [leaf.grad.numpy() for leaf in leaves]


def draw(padding):
    rng = np.random.default_rng(0)
    q, k, v, d_out = rng.standard_normal((4, 2, HEADS, N, WIDTH))
    key_mask = np.ones((2, HEADS, N), bool)
    key_mask[1, :, N - padding :] = False
    return q, k, v, key_mask, np.where(key_mask[..., None], d_out, 0)


@pytest.mark.parametrize("padding", [0, 1, 9])
def test_against_transformers(padding, monkeypatch):
    q, k, v, key_mask, d_out = draw(padding)
    drawn = bigbird.draw_random_blocks(BLOCKS, RANDOM, np.random.default_rng(1))
    theirs, their_gradients = run_theirs(q, k, v, key_mask, d_out, drawn, monkeypatch)
    out, saved = bigbird.forward(q, k, v, block=BLOCK, random_blocks=drawn, key_mask=key_mask, kernels=jit)
    np.testing.assert_allclose(out[key_mask], theirs[key_mask], atol=ROUNDING)
    for ours, expected in zip(bigbird.backward(d_out, saved), their_gradients, strict=True):
        np.testing.assert_allclose(ours, expected, atol=ROUNDING)


def test_in_eval_mode_they_count_block_zero_three_times(monkeypatch):
    """Which is another function: block 0's weights are ``1 + r`` times as large before they are normalised."""
    q, k, v, key_mask, d_out = draw(0)
    theirs, _ = run_theirs(q, k, v, key_mask, d_out, None, monkeypatch)
    times = np.ones((BLOCKS, BLOCKS))
    times[1:-1, 0] += RANDOM
    p = bigbird.matrix(q, k, block=BLOCK) * np.repeat(np.repeat(times, BLOCK, axis=0), BLOCK, axis=1)
    np.testing.assert_allclose(p / p.sum(axis=-1, keepdims=True) @ v, theirs, atol=ROUNDING)
    ours, _ = bigbird.forward(q, k, v, block=BLOCK, kernels=jit)
    assert abs(ours - theirs).max() > 0.1


@pytest.mark.parametrize("n", [7, 30])
def test_gradients_are_autograds(n):
    """Dense attention under the pattern, a ragged last block, differentiated by PyTorch."""
    rng = np.random.default_rng(2)
    q, k, v, d_out = rng.standard_normal((4, 2, n, 5))
    blocks = -(-n // BLOCK)
    options = {
        "block": BLOCK,
        "window_blocks": 1,
        "global_blocks": (1,),
        "random_blocks": rng.integers(0, blocks, (blocks, 2)),
    }
    ours = bigbird.backward(d_out, bigbird.forward(q, k, v, **options, kernels=jit)[1])
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    allowed = torch.tensor(bigbird.pattern(n, **options))
    torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=allowed).backward(torch.tensor(d_out))
    for gradient, leaf in zip(ours, leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), atol=ROUNDING)
