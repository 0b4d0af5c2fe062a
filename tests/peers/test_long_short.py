"""Long-short attention beside PyTorch's automatic differentiation and beside long-short-transformer (extra: peers).

Known differences of long-short-transformer (0.0.5, by P. Wang; not the authors'):

- Keys and values are the same (one projection, one norm for both).
- Not causal, a query sees a whole window on each side of its own, not half of one.
- Causal, the last query of a segment sees the mixtures of its own segment too, which is over by then.
- Causal, more than one mixture a segment is an error of shapes.
- It turns queries and keys by rotary positions before all else. Here they are switched off.
- Positions are padded to a multiple of the window.
"""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
import torch

from linattn_ref.attention import long_short

D, M, R = 6, 4, 3
# float64: results of size 1 to 100 after sums of some hundred products
TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}


def draw(n, length, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((n, D), (length, D), (length, M), (n, M))
    q, k, v, d_out = (rng.standard_normal((2, 3, *shape)) for shape in shapes)
    local, far = (tuple(tuple(rng.standard_normal(w) for _ in range(2)) for w in (D, M)) for _ in range(2))
    return q, k, v, rng.standard_normal((3, D, R)), local, far, d_out


def torch_attention(q, k, v, w_p, local, far, window, causal, key_mask):
    """The whole matrix of scores with minus infinity where nothing is seen."""
    n, length = q.shape[-2], k.shape[-2]
    place, j = torch.arange(n)[:, None] + (length - n), torch.arange(length)
    start = place // window * window
    if causal:
        near = (start - window <= j) & (j <= place)
        parts = [slice(t, t + window) for t in range(0, length, window)]
    else:
        near = (start - window // 2 <= j) & (j < start + window + window // 2)
        parts = [slice(0, length)]
    scores = (k @ w_p).masked_fill(~key_mask[..., None], -1e300)
    mixed = [torch.softmax(scores[..., part, :], -2).mT @ x[..., part, :] for x in (k, v) for part in parts]
    far_k, far_v = torch.cat(mixed[: len(parts)], -2), torch.cat(mixed[len(parts) :], -2)
    sees = torch.stack([start[:, 0] >= (t + 1) * window if causal else start[:, 0] >= 0 for t in range(len(parts))], -1)
    norm = torch.nn.functional.layer_norm
    keys = torch.cat([norm(k, (D,), *local[0]), norm(far_k, (D,), *far[0])], -2)
    values = torch.cat([norm(v, (M,), *local[1]), norm(far_v, (M,), *far[1])], -2)
    allowed = torch.cat([near & key_mask[..., None, :], sees.repeat_interleave(R, -1).expand(2, 3, n, -1)], -1)
    weights = torch.softmax((q @ keys.mT / D**0.5).masked_fill(~allowed, -torch.inf), -1)
    return weights @ values


SQUARE = [(n, n, window, causal) for n, window in ((23, 5), (20, 4), (7, 30)) for causal in (False, True)]


@pytest.mark.parametrize(("n", "length", "window", "causal"), [*SQUARE, (9, 23, 6, True)])
@pytest.mark.parametrize("masked", [False, True])
def test_output_and_every_gradient(n, length, window, causal, masked):
    q, k, v, w_p, local, far, d_out = draw(n, length)
    key_mask = np.ones((2, 3, length), bool)
    if masked:
        key_mask[:, :, 1::3] = False  # some in each segment, so that every query sees something
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v, w_p)]
    norms = [[[torch.tensor(x, requires_grad=True) for x in pair] for pair in norm] for norm in (local, far)]
    expected = torch_attention(*leaves, *norms, window, causal, torch.tensor(key_mask))
    expected.backward(torch.tensor(d_out))

    options = {"window": window, "causal": causal, "key_mask": key_mask if masked else None}
    out, saved = long_short.forward(q, k, v, w_p, local, far, **options)
    np.testing.assert_allclose(out, expected.detach().numpy(), **TOLERANCE)
    grads = long_short.backward(d_out, saved)
    for name, leaf in zip(("q", "k", "v", "w_p"), leaves, strict=True):
        theirs = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        np.testing.assert_allclose(getattr(grads, name), theirs.numpy(), **TOLERANCE, err_msg=name)
    for norm, theirs in zip((grads.norm_local, grads.norm_global), norms, strict=True):
        for pair, their_pair in zip(norm, theirs, strict=True):
            for x, leaf in zip(pair, their_pair, strict=True):
                np.testing.assert_allclose(x, leaf.grad.numpy(), **TOLERANCE)


# --- long-short-transformer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_long_short_transformer(causal):
    """Its layer from the tokens on; not causal with one window, so that no query is near another's window."""
    peer = pytest.importorskip("long_short_transformer.long_short_transformer", reason="needs long-short-transformer")
    n, window, heads, width, reduced = 24, 8 if causal else 24, 3, 6, 1 if causal else R
    torch.manual_seed(0)
    layer = peer.LongShortAttention(
        dim=width * heads,
        heads=heads,
        dim_head=width,
        causal=causal,
        window_size=window,
        segment_size=window,
        r=reduced,
    ).double()
    layer.pos_emb, layer.to_out = None, torch.nn.Identity()
    for norm in (layer.local_norm, layer.global_norm):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    x = torch.randn(2, n, width * heads, dtype=torch.float64, requires_grad=True)
    d_out = torch.randn(2, n, width * heads, dtype=torch.float64)
    last = np.arange(n) % window == window - 1  # sees mixtures of its own segment there
    if causal:
        d_out[:, last] = 0
    expected = layer(x)
    expected.backward(d_out)

    def split(y):
        return y.detach().numpy().reshape(2, n, heads, width).swapaxes(1, 2)

    q, kv = split(layer.to_q(x)), split(layer.to_kv(x))
    w_p = layer.to_dynamic_proj.weight.detach().numpy().T
    norms = [
        ((norm.weight.detach().numpy(), norm.bias.detach().numpy()),) * 2
        for norm in (layer.local_norm, layer.global_norm)
    ]
    out, saved = long_short.forward(q, kv, kv, w_p, *norms, window=window, causal=causal)
    kept = ~last if causal else slice(None)
    np.testing.assert_allclose(out[:, :, kept], split(expected)[:, :, kept], **TOLERANCE)
    if causal:
        assert abs(out[:, :, last] - split(expected)[:, :, last]).max() > 1e-2

    grads = long_short.backward(split(d_out), saved)
    np.testing.assert_allclose(grads.w_p.T, layer.to_dynamic_proj.weight.grad.numpy(), **TOLERANCE)
    for ours, norm in zip((grads.norm_local, grads.norm_global), (layer.local_norm, layer.global_norm), strict=True):
        np.testing.assert_allclose(ours[0][0] + ours[1][0], norm.weight.grad.numpy(), **TOLERANCE)
        np.testing.assert_allclose(ours[0][1] + ours[1][1], norm.bias.grad.numpy(), **TOLERANCE)

    def joined(y):
        return y.swapaxes(1, 2).reshape(2, n, heads * width)

    d_x = joined(grads.q) @ layer.to_q.weight.detach().numpy()
    d_x = d_x + joined(grads.k + grads.v) @ layer.to_kv.weight.detach().numpy()
    np.testing.assert_allclose(d_x, x.grad.numpy(), **TOLERANCE)
