"""Random feature attention and its learned gate beside PyTorch's automatic differentiation (extra: peers).

No published package has it: the authors' code is an extension of fairseq. Here its recurrence is written in PyTorch.
"""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
import torch

from linattn_ref.attention import feature_maps, rfa
from linattn_ref.attention.parts import gate
from linattn_ref.kernels import jit, reference

N, D, M, DIRECTIONS, E, EPS = 21, 5, 4, 48, 6, 1e-6
# float64: results of size 1 to 100 after sums of some hundred products
TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}


def draw(seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((N, D), (N, D), (N, M), (N, M))
    q, k, v, d_out = (rng.standard_normal((2, 3, *shape)) for shape in shapes)
    x, w_g, b_g = rng.standard_normal((2, 1, N, E)), rng.standard_normal((3, E)), rng.standard_normal(3)
    return q, k, v, d_out, feature_maps.gaussian(DIRECTIONS, D, rng), x, w_g, b_g


def torch_features(x, omega, kind):
    p = torch.nn.functional.normalize(x, dim=-1) @ omega.T
    phi = torch.cat([torch.sin(p), torch.cos(p)], -1) if kind == "gaussian" else torch.relu(p)
    return phi / DIRECTIONS**0.5


def torch_recurrence(q, k, v, omega, gates, kind):
    """Token by token; without gates, sums."""
    phi_q, phi_k = (torch_features(x, omega, kind) for x in (q, k))
    s, z, rows = 0, 0, []
    for t in range(q.shape[-2]):
        keep, add = (1, 1) if gates is None else (gates[..., t, None], 1 - gates[..., t, None])
        z = keep * z + add * phi_k[..., t, :]
        keep, add = (x if gates is None else x[..., None] for x in (keep, add))
        s = keep * s + add * phi_k[..., t, :, None] * v[..., t, None, :]
        numerator = (phi_q[..., t, None, :] @ s)[..., 0, :]
        rows.append(numerator / ((phi_q[..., t, :] * z).sum(-1, keepdim=True) + EPS))
    return torch.stack(rows, dim=-2)


@pytest.mark.parametrize("kernels", [reference, jit], ids=["reference", "jit"])
@pytest.mark.parametrize("kind", ["gaussian", "arccos"])
@pytest.mark.parametrize("gated", [False, True])
def test_output_and_every_gradient(kernels, kind, gated):
    q, k, v, d_out, omega, x, w_g, b_g = draw()
    leaves = {name: torch.tensor(a, requires_grad=True) for name, a in zip("qkv", (q, k, v), strict=True)}
    of_gate = {n: torch.tensor(a, requires_grad=True) for n, a in (("x", x), ("w_g", w_g), ("b_g", b_g))}
    theirs = None
    if gated:
        scores = (of_gate["x"] * of_gate["w_g"][:, None, :]).sum(-1) + of_gate["b_g"][:, None]
        theirs = torch.sigmoid(scores)
    expected = torch_recurrence(*leaves.values(), torch.tensor(omega), theirs, kind)
    expected.backward(torch.tensor(d_out))

    gates, gate_saved = gate.forward(x, w_g, b_g)
    out, saved = rfa.forward(q, k, v, omega, gates if gated else None, kind=kind, causal=True, eps=EPS, kernels=kernels)
    np.testing.assert_allclose(out, expected.detach().numpy(), **TOLERANCE)
    grads = rfa.backward(d_out, saved)
    for name, leaf in leaves.items():
        np.testing.assert_allclose(getattr(grads, name), leaf.grad.numpy(), **TOLERANCE, err_msg=name)
    if gated:
        learned = gate.backward(grads.gate, gate_saved)
        for name, leaf in of_gate.items():
            np.testing.assert_allclose(getattr(learned, name), leaf.grad.numpy(), **TOLERANCE, err_msg=name)


@pytest.mark.parametrize("kind", ["gaussian", "arccos"])
def test_not_causal(kind):
    q, k, v, d_out, omega, *_ = draw(1)
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    phi_q, phi_k = (torch_features(x, torch.tensor(omega), kind) for x in leaves[:2])
    similarity = phi_q @ phi_k.mT
    expected = similarity @ leaves[2] / (similarity.sum(-1, keepdim=True) + EPS)
    expected.backward(torch.tensor(d_out))
    out, saved = rfa.forward(q, k, v, omega, kind=kind, eps=EPS)
    np.testing.assert_allclose(out, expected.detach().numpy(), **TOLERANCE)
    for ours, leaf in zip(rfa.backward(d_out, saved)[:3], leaves, strict=True):
        np.testing.assert_allclose(ours, leaf.grad.numpy(), **TOLERANCE)
