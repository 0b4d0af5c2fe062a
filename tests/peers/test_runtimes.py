"""ONNX Runtime and OpenVINO beside the pages, as the benches call them (extra: peers): LinearAttention's four rules,
one token of each, and softmax attention. Their numbers are float32.
"""

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra: peers")
pytest.importorskip("onnx", reason="needs the extra: peers")

from linattn_ref.attention import delta, gated_linear, softmax
from linattn_ref.experiments.benches import runtimes

FOUND = runtimes.find_runtimes()
B, H, N, C, M = 2, 3, 23, 8, 4


def rule(gate, has_beta):
    """What LinearAttention gets, and our forward pass of the same."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((B, H, N, width)).astype(np.float32) for width in (C, C, M))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta = rng.random((B, H, N), np.float32) if has_beta else None
    shape = {None: None, "head": (B, H, N), "channel": (B, H, N, C)}[gate]
    log_gate = None if shape is None else -rng.random(shape, np.float32)
    if has_beta:
        out, _ = delta.forward(q, k, v, beta, log_gate, normalise=False)
    else:
        out, _ = gated_linear.forward(q, k, v, log_gate)
    return (q, k, v, beta, log_gate), out


RULES = pytest.mark.parametrize(
    ("gate", "has_beta"), [(gate, has_beta) for gate in (None, "head", "channel") for has_beta in (True, False)]
)


@RULES
def test_a_sequence(gate, has_beta):
    arrays, out = rule(gate, has_beta)
    (found,) = runtimes.linear_attention(FOUND[runtimes.ONNX], *arrays, scale=C**-0.5)()
    np.testing.assert_allclose(found, out, rtol=0, atol=1e-6 * abs(out).max())


@RULES
@pytest.mark.parametrize("bound", [False, True])
def test_the_same_token_twice(gate, has_beta, bound):
    """The state goes on from call to call."""
    arrays, _ = rule(gate, has_beta)
    token = [None if x is None else x[:, :, :1] for x in arrays]
    twice = [None if x is None else np.repeat(x, 2, axis=2) for x in token]
    if has_beta:
        out, _ = delta.forward(*twice, normalise=False)
    else:
        out, _ = gated_linear.forward(*twice[:3], twice[4])
    form = runtimes.bound_step if bound else runtimes.linear_attention
    call = form(FOUND[runtimes.ONNX], *token, scale=C**-0.5, **({} if bound else {"goes_on": True}))
    for t in range(2):
        np.testing.assert_allclose(call()[0][:, :, 0], out[:, :, t], rtol=0, atol=1e-6 * abs(out).max())


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("causal", [False, True])
def test_softmax(name, causal):
    q, k, v = np.random.default_rng(0).standard_normal((3, B, H, N, C)).astype(np.float32)
    out, _ = softmax.forward(q, k, v, causal=causal)
    np.testing.assert_allclose(runtimes.softmax_attention(name, FOUND[name], (q, k, v), causal)()[0], out, atol=2e-6)
