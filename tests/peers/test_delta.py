"""Gated linear attention and the delta rule beside flash-linear-attention's naive files (fla-core; extra: peers).

Only those are read, by their path: they are plain PyTorch, and the package itself cannot be imported without Triton.
Known differences of ``fla.ops.*.naive`` (0.6.0):

- All work is float32, by casts: the files as they are agree to float32's rounding. In the copies that are compared to
  1e-13 every cast goes to float64; nothing else is changed.
- Queries and keys come normalised, in ``modules/l2norm``, by ``x / sqrt(sum x^2 + 1e-6)``; ``beta`` and the gates come
  ready.
- The layout is ``(B, T, H, C)``, of ``delta_rule`` and ``retention`` alone ``(B, H, T, C)``.
- The chunk forms make ratios of gates as ``exp`` of a difference of sums of logarithms, above the diagonal too, where
  it overflows and then is masked: near a gate of 0 the gradients of ``naive_chunk_kda`` are NaN. So the recurrent
  files are compared.
"""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
pytest.importorskip("einops", reason="needs the extra: peers")
import torch

from linattn_ref.attention import delta, gated_linear

FLA = importlib.util.find_spec("fla")
pytestmark = pytest.mark.skipif(FLA is None, reason="needs the extra: peers")

B, H, N, C, M = 2, 3, 23, 5, 4
CASTS = {".float()": ".double()", "torch.float32": "torch.float64", "torch.float,": "torch.float64,"}
CASTS["torch.float)"] = "torch.float64)"


def naive(name, dtype):
    """A naive file of theirs, as it is or with its casts to float64."""
    path = Path(FLA.submodule_search_locations[0]) / "ops" / name / "naive.py"
    text = path.read_text(encoding="utf-8")
    if dtype == np.float64:
        for old, new in CASTS.items():
            text = text.replace(old, new)
    names = {}
    exec(compile(text, str(path), "exec"), names)  # theirs, from the installed package
    return SimpleNamespace(**names)


def draw(dtype):
    """Gates from a hundred-thousandth to 1, unit queries and keys, and the gradients of the output and the state."""
    rng = np.random.default_rng(0)
    q, k, v, d_out = (rng.standard_normal((B, H, N, width)) for width in (C, C, M, M))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    beta = rng.uniform(0, 1.9, (B, H, N))
    a_head, a_channel = (np.log(10 ** -rng.uniform(0, 5, (B, H, N, *shape))) for shape in ((), (C,)))
    state, d_state = rng.standard_normal((2, B, H, C, M))
    return [x.astype(dtype) for x in (q, k, v, beta, a_head, a_channel, state, d_out, d_state)]


def tokens_first(x):
    return x.transpose(1, 2)


def run_theirs(forward, inputs, state, d_out, d_state):
    """Output, state and all gradients; ``forward`` takes ``(B, H, N, ...)`` and the state."""
    leaves = [torch.tensor(x, requires_grad=True) for x in (*inputs, state)]
    out, last = forward(*leaves)
    ((out * torch.tensor(d_out)).sum() + (last * torch.tensor(d_state)).sum()).backward()
    return [x.detach().numpy() for x in (out, last, *(leaf.grad for leaf in leaves))]


def run_ours(module, inputs, state, d_out, d_state, **options):
    out, saved = module.forward(*inputs, state=module.State(state), **options)
    *gradients, of_state = module.backward(d_out, saved, d_state=module.State(d_state))
    return [out, saved.state.s, *(x for x in gradients if x is not None), of_state.s]


def compare(ours, theirs, dtype):
    # float32: sums of some hundred products, forward and back; the worst seen is 7.1e-7 of the largest number
    tolerance = 1e-13 if dtype == np.float64 else 1e-6
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype == dtype
        np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance * max(1, abs(other).max()))


DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


@DTYPES
def test_delta_net(dtype):
    q, k, v, beta, _, _, *rest = draw(dtype)
    theirs = run_theirs(naive("delta_rule", dtype).delta_rule_recurrence, (q, k, v, beta), *rest)
    compare(run_ours(delta, (q, k, v, beta), *rest, normalise=False), theirs, dtype)


@DTYPES
def test_gated_delta_net(dtype):
    q, k, v, beta, log_gate, _, *rest = draw(dtype)
    recurrent = naive("gated_delta_rule", dtype).naive_recurrent_gated_delta_rule

    def forward(q, k, v, beta, g, state):
        options = {"initial_state": state, "output_final_state": True}
        out, last = recurrent(*map(tokens_first, (q, k, v, beta, g)), **options)
        return tokens_first(out), last

    inputs = q, k, v, beta, log_gate
    compare(run_ours(delta, inputs, *rest, normalise=False), run_theirs(forward, inputs, *rest), dtype)


@DTYPES
def test_kimi_delta_attention(dtype):
    q, k, v, beta, _, log_gate, *rest = draw(dtype)
    recurrent = naive("kda", dtype).naive_recurrent_kda

    def forward(q, k, v, beta, g, state):
        q, k, v, g, beta = map(tokens_first, (q, k, v, g, beta))
        out, last = recurrent(q, k, v, g, beta, initial_state=state, output_final_state=True)
        return tokens_first(out), last

    inputs = q, k, v, beta, log_gate
    compare(run_ours(delta, inputs, *rest, normalise=False), run_theirs(forward, inputs, *rest), dtype)


@DTYPES
@pytest.mark.parametrize("member", ["gla", "simple_gla"])
def test_gated_linear_attention(member, dtype):
    """A gate a channel; and a gate a head, which is Mamba-2's too."""
    q, k, v, _, a_head, a_channel, *rest = draw(dtype)
    recurrent = getattr(naive(member, dtype), f"naive_recurrent_{member}")

    def forward(q, k, v, g, state):
        options = {"initial_state": state, "output_final_state": True}
        out, last = recurrent(*map(tokens_first, (q, k, v, g)), **options)
        return tokens_first(out), last

    inputs = q, k, v, a_channel if member == "gla" else a_head
    compare(run_ours(gated_linear, inputs, *rest), run_theirs(forward, inputs, *rest), dtype)


@DTYPES
def test_retention(dtype):
    """Without a state, and with the gates that its paper fixes."""
    q, k, v, *_, d_out, _ = draw(dtype)
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    theirs = naive("retention", dtype).naive_retention(*leaves)
    theirs.backward(torch.tensor(d_out))
    log_gate = np.broadcast_to(gated_linear.retention_gate(H, dtype=dtype), (B, H, N))
    out, saved = gated_linear.forward(q, k, v, log_gate)
    ours = [out, *gated_linear.backward(d_out, saved)[:3]]
    compare(ours, [x.detach().numpy() for x in (theirs, *(leaf.grad for leaf in leaves))], dtype)
