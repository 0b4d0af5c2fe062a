"""Longformer against transformers' own and PyTorch's gradients (extra: peers).

Known differences of ``transformers.models.longformer``, none of which changes an unmasked row:

- It divides the projected queries by ``sqrt(D)`` *in place*; a caller who keeps them finds them scaled.
- Its window is ``attention_window // 2`` keys on each side; the length has to be a multiple of ``attention_window``.
- No dilation (the original CUDA kernel has it).
- The softmax is always in float32, in a float64 model too.
- A masked token is masked as a query as well: its output is 0, here it is an output like any other.
- Without a global token, a query whose window is masked altogether has a softmax over nothing. Its output is set to 0
  afterwards, but the gradient of everything is NaN. Hence no more padding here than a window.
- A global token's keys and values in ordinary rows are those of the local projections, as here.
"""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
pytest.importorskip("transformers", reason="needs the extra: peers")
import torch
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from linattn_ref.attention import longformer
from linattn_ref.kernels import jit

HEADS, WIDTH, WINDOW = 2, 5, 4
NAMES = ("query", "key", "value", "query_global", "key_global", "value_global")
FLOAT_32 = 2e-5  # its softmax is float32: errors of 6e-8 in weights that are summed up, and in gradients multiplied


def peer(seed):
    """Their layer with normal parameters, in float64 as far as it goes."""
    torch.manual_seed(seed)
    config = LongformerConfig(
        hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, num_hidden_layers=1, attention_window=[2 * WINDOW]
    )
    layer = LongformerSelfAttention(config, layer_id=0).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, 0.6)
    return layer


def run_theirs(layer, x, tokens, masked, d_out):
    """Their output, and the gradient of ``x``."""
    hidden = torch.tensor(x, requires_grad=True)
    mask = torch.zeros(x.shape[:2], dtype=torch.float64)
    mask[:, list(tokens)] = 10000
    mask[torch.tensor(masked)] = -10000
    out = layer(
        hidden,
        attention_mask=mask,
        is_index_masked=mask < 0,
        is_index_global_attn=mask > 0,
        is_global_attn=bool((mask > 0).any()),
    )[0]
    out.backward(torch.tensor(d_out))
    return out.detach().numpy(), hidden.grad.numpy()


def split(x, layer, name):
    """One of the projections, split into heads: (B, H, N, D)."""
    linear = getattr(layer, name)
    projected = x @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
    return projected.reshape(*x.shape[:2], HEADS, WIDTH).swapaxes(1, 2)


def joined(x):
    """(B, H, N, D) -> (B, N, H D)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def run_ours(layer, x, tokens, masked, d_out):
    arrays = [split(x, layer, name) for name in NAMES]
    key_mask = np.broadcast_to(~masked[:, None], (len(x), HEADS, x.shape[1]))
    out, saved = longformer.forward(*arrays, window=WINDOW, global_tokens=tokens, key_mask=key_mask, kernels=jit)
    heads = d_out.reshape(*x.shape[:2], HEADS, WIDTH).swapaxes(1, 2)
    gradients = longformer.backward(np.ascontiguousarray(heads), saved)
    pairs = zip(gradients, NAMES, strict=True)
    d_x = sum(joined(gradient) @ getattr(layer, name).weight.detach().numpy() for gradient, name in pairs)
    return joined(out), d_x


@pytest.mark.parametrize("tokens", [(0,), (3, 17, 31), ()])
@pytest.mark.parametrize("padding", [0, WINDOW])
def test_against_transformers(tokens, padding):
    """Outputs and, through the gradient of the layer's input, the gradients of all six arrays."""
    rng = np.random.default_rng(0)
    n = 4 * 2 * WINDOW
    layer, x = peer(0), rng.standard_normal((2, n, HEADS * WIDTH))
    masked = np.zeros((2, n), bool)
    masked[1, n - padding :] = True
    tokens = tuple(token for token in tokens if token < n - padding)  # a masked one is not global, for them
    d_out = np.where(masked[..., None], 0, rng.standard_normal(x.shape))
    theirs, their_gradient = run_theirs(layer, x, tokens, masked, d_out)
    ours, our_gradient = run_ours(layer, x, tokens, masked, d_out)
    assert abs(theirs).max() > 1
    np.testing.assert_allclose(ours[~masked], theirs[~masked], atol=FLOAT_32)
    np.testing.assert_allclose(our_gradient, their_gradient, atol=FLOAT_32 * abs(their_gradient).max())


@pytest.mark.parametrize("dilation", [1, 3])
def test_gradients_are_autograds(dilation):
    """Dense attention under the pattern, differentiated by PyTorch."""
    n, tokens = 30, [0, 7]
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((2, n, 4)) for _ in range(6)]
    d_out = rng.standard_normal((2, n, 4))
    _, saved = longformer.forward(*arrays, window=WINDOW, global_tokens=tokens, dilation=dilation, kernels=jit)
    ours = longformer.backward(d_out, saved)

    q, k, v, q_global, k_global, v_global = leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
    allowed = longformer.pattern(n, window=WINDOW, global_tokens=tokens, dilation=dilation)
    attend = torch.nn.functional.scaled_dot_product_attention
    ordinary = attend(q, k, v, attn_mask=torch.tensor(allowed))
    whole = attend(q_global, k_global, v_global)
    is_global = torch.zeros(n, 1, dtype=torch.bool)
    is_global[tokens] = True
    torch.where(is_global, whole, ordinary).backward(torch.tensor(d_out))
    for gradient, leaf in zip(ours, leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), atol=1e-13)
