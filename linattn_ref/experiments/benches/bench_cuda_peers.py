"""Causal attention on a GPU, here and in other packages, as `bench_cuda` calls it."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from linattn_ref.attention import linear, softmax
from linattn_ref.experiments.benches.peers import version

__all__ = ["Call", "Inputs", "kernels"]


class Inputs(NamedTuple):
    q: Any  # (B, H, N, D), a tensor on the GPU
    k: Any
    v: Any
    d_out: Any


Call = Callable[[Inputs, bool], Sequence[Any]]  # inputs, whether to go back -> out; d_q, d_k, d_v


def kernels(torch: Any, cuda: Any) -> tuple[dict[str, Call], dict[str, str]]:
    """Each as a function of inputs and whether to go back, giving output and gradients; and versions of packages."""
    calls: dict[str, Call] = {
        "linear": partial(ours, linear, cuda),
        "softmax": partial(ours, softmax, cuda),
        "linear bfloat16": partial(our_linear_kernel, torch, cuda.causal_product),
        "softmax bfloat16": partial(our_softmax_kernel, cuda.softmax),
    }
    calls["SDPA"] = calls["SDPA bfloat16"] = partial(theirs, torch, partial(sdpa, torch))
    versions = {"PyTorch": torch.__version__, "numba-cuda": importlib.metadata.version("numba-cuda")}
    try:
        chunk = importlib.import_module("fla.ops.linear_attn").chunk_linear_attn
        calls["flash-linear-attention"] = partial(theirs, torch, partial(fla, torch, chunk))
        calls["flash-linear-attention bfloat16"] = calls["flash-linear-attention"]
        versions["flash-linear-attention"] = version("flash-linear-attention", "fla-core")
    except ImportError:
        pass
    try:
        importlib.import_module("fast_transformers.causal_product.causal_product_cuda")
        product = importlib.import_module("fast_transformers.causal_product").causal_dot_product
        calls["fast-transformers"] = partial(theirs, torch, partial(fast_transformers, torch, product))
        versions["fast-transformers"] = version("pytorch-fast-transformers")
    except ImportError:
        pass
    return calls, versions


def ours(mechanism: Any, cuda: Any, inputs: Inputs, both: bool) -> Sequence[Any]:
    q, k, v, d_out = inputs
    out, saved = mechanism.forward(q, k, v, causal=True, kernels=cuda)
    return (out, *mechanism.backward(d_out, saved)) if both else (out,)


def our_softmax_kernel(softmax: Any, inputs: Inputs, both: bool) -> Sequence[Any]:
    q, k, v, d_out = inputs
    options = None, True, q.shape[-1] ** -0.5
    out, log_sum_exp = softmax.forward(q, k, v, *options)
    return (out, *softmax.backward(d_out, q, k, v, out, log_sum_exp, *options)) if both else (out,)


def our_linear_kernel(torch: Any, product: Any, inputs: Inputs, both: bool) -> Sequence[Any]:
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in inputs[:2])
    arrays = phi_q, phi_k, inputs.v, None, None
    out, denominator, *_ = product.normalised_forward(*arrays, 1e-6)
    if not both:
        return (out,)
    d_phi_q, d_phi_k, d_v, *_ = product.normalised_backward(inputs.d_out, None, None, *arrays, out, denominator)
    return out, d_phi_q * phi_q.clamp(max=1), d_phi_k * phi_k.clamp(max=1), d_v  # slope 1, or exp(x) where below 0


def theirs(torch: Any, function: Callable[..., Any], inputs: Inputs, both: bool) -> Sequence[Any]:
    if not both:
        with torch.no_grad():
            return (function(*inputs[:3]),)
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    out = function(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, inputs.d_out)


def sdpa(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def fla(torch: Any, chunk: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    rows = (x.transpose(1, 2).contiguous() for x in (phi_q, phi_k, v))  # (B, N, H, D)
    out, _ = chunk(*rows, scale=1.0, normalize=True)
    return out.transpose(1, 2)


def fast_transformers(torch: Any, product: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    return product(phi_q, phi_k, v.contiguous())
