"""Local attention beside PyTorch's softmax attention under a mask, and beside fast-transformers' C++.

fast-transformers (``pytorch-fast-transformers`` 0.4.0) differs in that it takes an additive ``(N, N)`` mask and a
``local_context`` of ``2 window + 1``, and that it hides keys outside with a score of -1e24, so that a query that sees
nothing gets the mean of its window instead of 0: not compared.
"""

import numpy as np
import pytest

from linattn_ref.attention import block_local, local, patterns
from linattn_ref.kernels import jit, reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra peers)")

N, D, M = 75, 8, 5
rooms = pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])
causal_or_not = pytest.mark.parametrize("causal", [False, True])
# Sums of up to 75 products of normal numbers, in another order: some 100 roundings of eps times numbers up to 10.
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-4}


def draw(dtype):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 3, N, width)).astype(dtype) for width in (D, D, M, M)]


def by_autograd(attention, q, k, v, d_out):
    """The output, and the gradients by PyTorch's automatic differentiation."""
    leaves = [torch.from_numpy(x.copy()).requires_grad_() for x in (q, k, v)]
    out = attention(*leaves)
    out.backward(torch.from_numpy(d_out))
    return (out.detach().numpy(), *(x.grad.numpy() for x in leaves))


def assert_same(result, saved, backward, d_out, expected, dtype):
    for name, x, y in zip(("out", "d_q", "d_k", "d_v"), (result, *backward(d_out, saved)), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=TOLERANCE[dtype], err_msg=name)


@rooms
@causal_or_not
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("window", "dilation"), [(3, 1), (20, 1), (2, 5)])
def test_windows_are_pytorchs_attention_under_a_mask(room, causal, dtype, window, dilation):
    q, k, v, d_out = draw(dtype)
    allowed = torch.from_numpy(patterns.local(N, window=window, dilation=dilation, causal=causal))
    attention = torch.nn.functional.scaled_dot_product_attention
    expected = by_autograd(lambda *qkv: attention(*qkv, attn_mask=allowed), q, k, v, d_out)
    out, saved = local.forward(q, k, v, window=window, dilation=dilation, causal=causal, kernels=room)
    assert_same(out, saved, local.backward, d_out, expected, dtype)


@rooms
@causal_or_not
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("block", [1, 16, 80])
def test_blocks_are_pytorchs_attention_under_a_mask(room, causal, dtype, block):
    q, k, v, d_out = draw(dtype)
    allowed = torch.from_numpy(patterns.block_local(N, block=block, causal=causal))
    attention = torch.nn.functional.scaled_dot_product_attention
    expected = by_autograd(lambda *qkv: attention(*qkv, attn_mask=allowed), q, k, v, d_out)
    out, saved = block_local.forward(q, k, v, block=block, causal=causal, kernels=room)
    assert_same(out, saved, block_local.backward, d_out, expected, dtype)


@rooms
@causal_or_not
@pytest.mark.parametrize("window", [1, 7, 100])
def test_windows_are_fast_transformers(room, causal, window):
    """Its C++ is float32 only."""
    local_product = pytest.importorskip(
        "fast_transformers.local_product", reason="pytorch-fast-transformers is not installed"
    )
    q, k, v, d_out = draw(np.float32)
    mask = torch.zeros(N, N)
    if causal:
        mask.masked_fill_(torch.ones(N, N).triu(1).bool(), -1e24)

    def attention(q, k, v):
        scores = local_product.local_dot_product(q, k, mask, torch.full((2,), N), 2 * window + 1)
        return local_product.local_weighted_average(torch.softmax(D**-0.5 * scores, -1), v)

    expected = by_autograd(attention, q, k, v, d_out)
    out, saved = local.forward(q, k, v, window=window, causal=causal, kernels=room)
    assert_same(out, saved, local.backward, d_out, expected, np.float32)
