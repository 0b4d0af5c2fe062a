"""Sparse Transformer's patterns against PyTorch's masked attention and its gradients (extra: peers).

Known difference: what PyTorch gives a query that sees nothing depends on its version (NaN or 0); here it is 0.
"""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
import torch

from linattn_ref.attention import sparse_transformer
from linattn_ref.kernels import jit


@pytest.mark.parametrize("kind", sparse_transformer.KINDS)
@pytest.mark.parametrize("n", [1, 11, 37])
def test_against_pytorch(kind, n):
    n_keys, options = 37, {"kind": kind, "stride": 6, "summary": 2}
    rng = np.random.default_rng(0)
    q, k, v, d_out = (rng.standard_normal((2, rows, 5)) for rows in (n, n_keys, n_keys, n))
    allowed = sparse_transformer.pattern(n_keys, **options)[n_keys - n :]
    seen = allowed.any(axis=-1)
    assert seen.all() == (kind != "fixed_summary" or n < n_keys)
    out, saved = sparse_transformer.forward(q, k, v, **options, kernels=jit)
    ours = sparse_transformer.backward(d_out, saved)

    leaves = [torch.tensor(x, requires_grad=True) for x in (q[:, seen], k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=torch.tensor(allowed[seen]))
    theirs.backward(torch.tensor(d_out[:, seen]))
    # Numbers up to 10 after some hundred roundings.
    np.testing.assert_allclose(out[:, seen], theirs.detach().numpy(), atol=1e-13)
    assert not out[:, ~seen].any()
    assert not ours.q[:, ~seen].any()
    for gradient, leaf in zip((ours.q[:, seen], ours.k, ours.v), leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), atol=1e-13)
