"""Performer beside performer-pytorch, and every gradient beside PyTorch's automatic differentiation (extra: peers).

Known differences of performer-pytorch (1.1.4):

- Its positive features are ``exp(p - |x|^2/2 - max p) + 1e-4``: the ``1e-4`` comes after the stabiliser, so that the
  scale does not cancel, and what is added to a weight depends on the other keys. For keys the maximum is taken over
  the whole sequence of a head, in causal attention too: a later key moves earlier outputs. The tests leave the ``1e-4``
  out, or see how much it does.
- Its maximum is that of ``p`` alone, not of ``p - |x|^2/2``: for long keys all its exponentials underflow, and what is
  left is the ``1e-4``.
- Its causal form without CUDA adds ``1e-6`` to every entry of ``Z``, after the scale as well.
- Its orthogonal matrices are the Q of a QR decomposition without the signs of R's diagonal: not uniformly distributed.
  Here it is given our directions.
"""

import contextlib
import io
import math
import warnings

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
import torch

from linattn_ref.attention import feature_maps, performer

D, M, FEATURES = 8, 5, 32
# float64: results of size 1 after sums of some hundred products, with exponentials of exponents up to 30 in them
TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng, n, length, size=0.5):
    q, k, v, d_out = (rng.standard_normal((2, 3, *shape)) for shape in ((n, D), (length, D), (length, M), (n, M)))
    return size * q, size * k, v, d_out, feature_maps.orthogonal_gaussian(FEATURES, D, rng)


# --- PyTorch's gradients --------------------------------------------------------------------------------------------


def torch_features(x, omega, kind):
    x = x / D**0.25
    p, square = x @ omega.T, (x**2).sum(-1, keepdim=True) / 2
    if kind == "trig":
        return torch.exp(square) * torch.cat([torch.sin(p), torch.cos(p)], -1)
    if kind == "positive":
        return torch.exp(p - square)
    if kind == "hyperbolic":
        return torch.exp(torch.cat([p, -p], -1) - square)
    return torch.relu(p) + 1e-3


@pytest.mark.parametrize("kind", performer.KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_pytorchs(kind, causal, masked, rng):
    *qkv, d_out, omega = draw(rng, 20, 25)
    allowed = np.tri(20, 25, 5 if causal else 25, dtype=bool)
    key_mask = None
    if masked:
        key_mask = rng.random((2, 3, 25)) < 0.7
        key_mask[..., 0] = True
        allowed = allowed & key_mask[..., None, :]
    leaves = [torch.from_numpy(x).requires_grad_() for x in qkv]
    phi_q, phi_k = (torch_features(x, torch.from_numpy(omega), kind) for x in leaves[:2])
    similarity = phi_q @ phi_k.mT * torch.from_numpy(allowed)
    expected = similarity / similarity.sum(-1, keepdim=True) @ leaves[2]
    expected.backward(torch.from_numpy(d_out))
    out, saved = performer.forward(*qkv, omega, kind=kind, causal=causal, key_mask=key_mask)
    np.testing.assert_allclose(out, expected.detach().numpy(), **TOLERANCE)
    for gradient, leaf in zip(performer.backward(d_out, saved)[:3], leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), **TOLERANCE)


# --- performer-pytorch ----------------------------------------------------------------------------------------------


@pytest.fixture
def peer():
    """The module, its causal form the one without CUDA; a missing one skips the test."""
    reason = "needs performer-pytorch, local-attention, axial-positional-embedding, einops"
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # distutils, and operators that are deprecated
        return pytest.importorskip("performer_pytorch.performer_pytorch", reason=reason)


def peer_attention(peer, omega, **options):
    """Its module with our directions."""
    with contextlib.redirect_stdout(io.StringIO()):  # it says that it has no CUDA
        module = peer.FastAttention(D, FEATURES, **options).double()
    module.projection_matrix.copy_(torch.from_numpy(omega))
    return module


@pytest.mark.parametrize("causal", [False, True])
def test_relu_features(peer, causal, rng):
    """Both passes of its generalised attention, ReLU + 1e-3 as ours but for the 1/sqrt(m), which cancels."""
    *qkv, d_out, omega = draw(rng, 30, 30)
    module = peer_attention(peer, omega, causal=causal, generalized_attention=True)
    leaves = [torch.from_numpy(x).requires_grad_() for x in qkv]
    expected = module(*leaves)
    expected.backward(torch.from_numpy(d_out))
    out, saved = performer.forward(*qkv, omega, kind="relu", causal=causal)
    # the 1e-6 in the denominator of its causal form, beside features of about 0.3 and at least 1e-3
    tolerance = {"rtol": 0, "atol": 1e-4} if causal else TOLERANCE
    np.testing.assert_allclose(out, expected.detach().numpy(), **tolerance)
    for gradient, leaf in zip(performer.backward(d_out, saved)[:3], leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), **tolerance)


def features_of(peer, q, k, omega, eps):
    """Its positive features of queries and keys."""
    omega = torch.from_numpy(omega)
    return (peer.softmax_kernel(x, projection_matrix=omega, is_query=i == 0, eps=eps) for i, x in enumerate((q, k)))


@pytest.mark.parametrize("causal", [False, True])
def test_positive_features_without_its_epsilons(peer, causal, rng):
    *qkv, d_out, omega = draw(rng, 30, 30)
    leaves = [torch.from_numpy(x).requires_grad_() for x in qkv]
    phi_q, phi_k = features_of(peer, *leaves[:2], omega, eps=0.0)
    form = peer.linear_attention
    if causal:
        form = lambda *x: peer.causal_linear_attention_noncuda(*x, chunk_size=4, eps=0.0)  # noqa: E731
    expected = form(phi_q, phi_k, leaves[2])
    expected.backward(torch.from_numpy(d_out))
    out, saved = performer.forward(*qkv, omega, causal=causal)
    np.testing.assert_allclose(out, expected.detach().numpy(), **TOLERANCE)
    for gradient, leaf in zip(performer.backward(d_out, saved)[:3], leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), **TOLERANCE)


@pytest.mark.parametrize("causal", [False, True])
def test_positive_features_with_them(peer, causal, rng):
    """As it is used: for short queries and keys close to ours, and the closer the shorter they are."""
    differences = []
    for size in (0.5, 0.05):
        *qkv, _, omega = draw(rng, 30, 30, size)
        expected = peer_attention(peer, omega, causal=causal)(*(torch.from_numpy(x) for x in qkv)).numpy()
        differences.append(abs(performer.forward(*qkv, omega, causal=causal)[0] - expected).max())
    assert 1e-7 < differences[1] < differences[0] < 0.1


def test_a_later_key_moves_its_earlier_outputs_and_not_ours(peer, rng):
    """Its maximum runs over the whole sequence: the 1e-4 beside it weighs more where a later key raises it."""
    q, k, v, _, omega = draw(rng, 30, 30)
    module = peer_attention(peer, omega, causal=True)
    later = k.copy()
    later[..., -1, :] = 3 * D**0.25 * omega[0] / np.linalg.norm(omega[0])
    outs = []
    for keys in (k, later):
        theirs = module(*(torch.from_numpy(x) for x in (q, keys, v))).numpy()
        ours, _ = performer.forward(q, keys, v, omega, causal=True)
        outs.append((theirs[..., :-1, :], ours[..., :-1, :]))
    assert abs(outs[0][0] - outs[1][0]).max() > 1e-3
    np.testing.assert_array_equal(outs[0][1], outs[1][1])


def test_its_orthogonal_matrices_are_not_uniformly_distributed(peer):
    """Without the signs the diagonal of Q leans to one side, and its estimates of ``exp(x.y)`` are off on average."""
    torch.manual_seed(0)
    theirs = np.stack([peer.gaussian_orthogonal_random_matrix(4, 4).numpy() for _ in range(3000)])
    rng = np.random.default_rng(1)
    ours = np.stack([feature_maps.orthogonal_gaussian(4, 4, rng) for _ in range(3000)])
    for draws, uniform in ((theirs, False), (ours, True)):
        first = draws[:, 0, 0]
        standard_error = first.std() / math.sqrt(len(first))
        assert (abs(first.mean()) < 5 * standard_error) == uniform
