"""Nyström attention against PyTorch's automatic differentiation and two public implementations (extra: peers).

Where the public ones differ, known and not compared:

- Both scale the first iterate by the largest sums over the whole batch and all heads, so that what a sequence gives
  depends on its neighbours. transformers has the scale of each matrix as well, behind an option that raises an error
  (``config["inv_init_coeff_option"]``, on a config that cannot be indexed); here it is switched on from outside.
- Lengths have to be multiples of the number of landmarks; nystrom-attention adds zeros in front until they are.
- Masks: transformers takes landmarks' means over masked keys too, and convolves masked values. nystrom-attention
  masks queries as well, and gives a landmark without keys equal weights in A, where here it has none.
"""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
import torch

from linattn_ref.attention import nystromformer
from linattn_ref.attention.parts import pinv_exact

# Double precision on both sides. The pseudo-inverse multiplies rounding by A's condition number, here below a hundred.
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-11)
B, H, N, L, D, M, K = 2, 3, 12, 16, 4, 5, 5


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng, n, n_keys, m):
    """Queries and keys in groups along a line, so that no landmark is a mixture of others, values and weights."""
    q, k = (rng.standard_normal((B, H, length, D)) for length in (n, n_keys))
    for x in (q, k):
        x += np.linspace(-2, 2, x.shape[-2])[:, None]
    return q, k, rng.standard_normal((B, H, n_keys, m)), rng.standard_normal((H, K))


def as_leaves(*arrays):
    return [torch.tensor(x, requires_grad=True) for x in arrays]


def gradients_of(out, d_out, leaves):
    out.backward(torch.tensor(d_out))
    return [x.grad.numpy() for x in leaves]


# --- Automatic differentiation --------------------------------------------------------------------------------------


def by_torch(q, k, v, landmarks, pinv, iterations=6, key_mask=None):
    """The formulas as they are, for one sequence; landmarks without a key are left out."""
    keys = torch.arange(len(k)) if key_mask is None else torch.tensor(np.flatnonzero(key_mask))
    pairs = []
    for rows, columns in zip(
        torch.arange(len(q)).tensor_split(landmarks), torch.arange(len(k)).tensor_split(landmarks), strict=True
    ):
        columns = columns[torch.isin(columns, keys)]
        if len(columns):
            pairs.append((q[rows].mean(dim=0), k[columns].mean(dim=0)))
    q_means, k_means = (torch.stack(means) for means in zip(*pairs, strict=True))
    scale = q.shape[-1] ** -0.5
    f, a, b = (
        torch.softmax(scale * x @ y.T, dim=-1) for x, y in ((q, k_means), (q_means, k_means), (q_means, k[keys]))
    )
    if pinv == "exact":
        z = torch.linalg.pinv(a)
    else:
        z = a.T / (a.sum(dim=0).max() * a.sum(dim=1).max())
        eye = torch.eye(len(a), dtype=a.dtype)
        for _ in range(iterations):
            z = z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z))) / 4
    return f @ z @ b @ v[keys]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pinv", nystromformer.PSEUDO_INVERSES)
def test_every_gradient_is_that_of_autograd(rng, pinv, masked):
    """Lengths 11 and 13 are no multiples of the 4 landmarks; under the mask a landmark has no key."""
    q, k, v, _ = draw(rng, 11, 13, M)
    mask = None
    if masked:
        mask = rng.random((B, H, 13)) < 0.8
        mask[0, 0, :4] = False
    d_out = rng.standard_normal((B, H, 11, M))
    leaves = as_leaves(q, k, v)
    rows = []
    for b, h in np.ndindex(B, H):
        one = (x[b, h] for x in leaves)
        rows.append(by_torch(*one, 4, pinv, key_mask=mask[b, h] if masked else None))
    expected = torch.stack(rows).reshape(B, H, 11, M)
    out, saved = nystromformer.forward(q, k, v, landmarks=4, pinv=pinv, key_mask=mask)
    close(out, expected.detach().numpy())
    for gradient, theirs in zip(
        nystromformer.backward(d_out, saved)[:3], gradients_of(expected, d_out, leaves), strict=True
    ):
        close(gradient, theirs)


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6)], ids=str)
def test_gradient_of_the_exact_pseudo_inverse_is_that_of_autograd(rng, shape):
    a, d_x = rng.standard_normal((5, *shape)), rng.standard_normal((5, *shape[::-1]))
    (leaf,) = as_leaves(a)
    x, saved = pinv_exact.forward(a)
    expected = torch.linalg.pinv(leaf)
    (d_a,) = gradients_of(expected, d_x, [leaf])
    # Normal matrices: condition numbers of up to some hundred, which the gradient multiplies rounding by twice.
    for ours, theirs in ((x, expected.detach().numpy()), (pinv_exact.backward(d_x, saved).a, d_a)):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11 * abs(theirs).max())


# --- Public implementations -----------------------------------------------------------------------------------------


class Given(torch.nn.Module):
    """Returns what it was given, whatever it is called with."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def forward(self, _):
        return self.x


def heads_last(x):
    """``(B, H, N, D)`` to ``(B, N, H D)``."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def transformers_attention(q, k, v, conv, landmarks):
    """transformers' module with these queries, keys, values ``(B, H, N, D)`` and weights ``(H, K)``."""
    modeling = pytest.importorskip(
        "transformers.models.nystromformer.modeling_nystromformer", reason="needs the extra: peers"
    )
    from transformers import NystromformerConfig

    n = q.shape[2]
    module = modeling.NystromformerSelfAttention(
        NystromformerConfig(
            hidden_size=q.shape[1] * q.shape[3],
            num_attention_heads=q.shape[1],
            segment_means_seq_len=n,
            num_landmarks=landmarks,
            conv_kernel_size=conv.shape[-1],
            attention_probs_dropout_prob=0.0,
        )
    ).double()
    for name, x in (("query", q), ("key", k), ("value", v)):
        setattr(module, name, Given(heads_last(x)))
    del module.conv.weight
    module.conv.weight = conv[:, None, :, None]
    return module, torch.zeros(q.shape[0], n, q.shape[1] * q.shape[3], dtype=q.dtype)


def heads_first(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def test_transformers(rng):
    """Output and every gradient, with the scale of each matrix."""
    arrays = draw(rng, N, N, D)
    leaves = as_leaves(*arrays)
    module, hidden = transformers_attention(*leaves, landmarks=4)
    module.init_option = "exact"
    theirs = heads_first(module(hidden)[0], H)
    out, saved = nystromformer.forward(*arrays, landmarks=4)
    close(out, theirs.detach().numpy())
    d_out = rng.standard_normal(out.shape)
    for gradient, expected in zip(
        nystromformer.backward(d_out, saved), gradients_of(theirs, d_out, leaves), strict=True
    ):
        close(gradient, expected)


def each_alone(attention, arrays):
    """The outputs of the sequences one by one, ``(B, H, N, D)``."""
    outs = np.empty((B, H, N, D))
    for b, h in np.ndindex(B, H):
        q, k, v = (x[b : b + 1, h : h + 1] for x in arrays[:3])
        outs[b, h] = attention(*as_leaves(q, k, v, arrays[3][h : h + 1])).detach().numpy()[0, 0]
    return outs


def assert_neighbours_matter(attention, arrays):
    """Each sequence alone agrees; side by side they give other outputs there, and the same here."""
    ours, _ = nystromformer.forward(*arrays, landmarks=4)
    close(each_alone(attention, arrays), ours)
    assert abs(attention(*as_leaves(*arrays)).detach().numpy() - ours).max() > 1e-4


def test_transformers_as_it_comes_scales_over_the_whole_batch(rng):
    def attention(*leaves):
        module, hidden = transformers_attention(*leaves, landmarks=4)
        return heads_first(module(hidden)[0], leaves[0].shape[1])

    assert_neighbours_matter(attention, draw(rng, N, N, D))


def nystrom_attention_of(q, k, v, conv, landmarks):
    """nystrom-attention's output for queries, keys, values ``(B, H, N, D)`` and weights ``(H, K)``."""
    package = pytest.importorskip("nystrom_attention", reason="needs nystrom-attention (pip install nystrom-attention)")
    module = package.NystromAttention(
        dim=1, dim_head=D, heads=q.shape[1], num_landmarks=landmarks, residual_conv_kernel=conv.shape[-1]
    ).double()
    module.to_qkv, module.to_out = torch.nn.Identity(), torch.nn.Identity()
    del module.res_conv.weight
    module.res_conv.weight = conv[:, None, :, None]
    return heads_first(module(torch.cat([heads_last(x) for x in (q, k, v)], dim=-1)), q.shape[1])


def test_nystrom_attention(rng):
    """One sequence of one head: output and every gradient."""
    q, k, v, conv = draw(rng, N, N, D)
    arrays = q[:1, :1], k[:1, :1], v[:1, :1], conv[:1]
    leaves = as_leaves(*arrays)
    theirs = nystrom_attention_of(*leaves, landmarks=4)
    out, saved = nystromformer.forward(*arrays, landmarks=4)
    close(out, theirs.detach().numpy())
    d_out = rng.standard_normal(out.shape)
    for gradient, expected in zip(
        nystromformer.backward(d_out, saved), gradients_of(theirs, d_out, leaves), strict=True
    ):
        close(gradient, expected)


def test_nystrom_attention_scales_over_the_whole_batch(rng):
    assert_neighbours_matter(partial(nystrom_attention_of, landmarks=4), draw(rng, N, N, D))
