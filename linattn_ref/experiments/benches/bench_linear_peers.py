"""Causal linear attention in other packages, as `bench_linear` calls it: PyTorch and two that stand on it.

PyTorch has no kernel for it, so its forms are written here, in the chunks of `kernels.reference.causal_product`: one
after the other, or all at once with the states by a cumulative sum, and the latter through ``torch.compile``. None is
the fastest everywhere.

fast-transformers (``pytorch-fast-transformers``, the package of the paper's authors) has Algorithm 1 in C++. A second
build of it is compared as well where it can be imported as ``fast_transformers_native``: the same source with
``CFLAGS="-O3 -march=native"`` (the variable replaces Python's own flags), and the folder ``fast_transformers`` renamed.

flash-linear-attention (``fla-core``) is for GPUs; its tests compare with plain PyTorch, of which the form in chunks is
taken from its file, since to import the package needs Triton. The length must be a multiple of 64.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.benches.harness import Call, in_torch

__all__ = [
    "FAST_TRANSFORMERS",
    "FLA",
    "FLA_ROWS",
    "Inputs",
    "fast_transformers_attention",
    "fast_transformers_product",
    "find_packages",
    "fla_attention",
    "fla_product",
    "torch_forms",
    "torch_product",
    "versions",
]

FAST_TRANSFORMERS = {"fast-transformers": "fast_transformers", "fast-transformers native": "fast_transformers_native"}
FLA, FLA_ROWS = "flash-linear-attention", 64  # rows of its chunks
LOOP, AT_ONCE = (32, 64), 64  # rows in a chunk
EPS = 1e-6  # of the denominator


class Inputs(NamedTuple):
    """Of a causal product, features in place of queries and keys; or of attention."""

    q: Array  # (B, H, N, C)
    k: Array  # (B, H, N, C)
    v: Array  # (B, H, N, M)
    d_out: Array  # (B, H, N, M)


def find_fast_transformers() -> dict[str, Any]:
    """The package, under the name it has in a table, and its other build; those that can be imported."""
    found = {}
    for name, package in FAST_TRANSFORMERS.items():
        try:
            importlib.import_module(f"{package}.causal_product")
            importlib.import_module(f"{package}.attention")
            importlib.import_module(f"{package}.masking")
            importlib.import_module(f"{package}.recurrent.attention")
        except ImportError:
            continue
        found[name] = importlib.import_module(package)
    return found


def find_fla() -> Any:
    """flash-linear-attention's naive file for linear attention as a module, or None where that cannot be had."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "ops" / "linear_attn" / "naive.py"
    spec = importlib.util.spec_from_file_location("fla_naive", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError):  # einops, or the file, is missing
        return None
    return module


def find_packages() -> dict[str, Any]:
    """All that can be imported, by name."""
    naive = find_fla()
    return find_fast_transformers() | ({} if naive is None else {FLA: naive})


def versions(torch: Any, packages: dict[str, Any]) -> dict[str, str]:
    """Version of each package that takes part."""
    found = {} if torch is None else {"PyTorch": torch.__version__}
    found |= {name: package.__version__ for name, package in packages.items() if name != FLA}
    return found | ({FLA: importlib.metadata.version("fla-core")} if FLA in packages else {})


# --- PyTorch --------------------------------------------------------------------------------------------------------


def torch_forms(torch: Any, *, compiled: bool) -> dict[str, Any]:
    """The causal product in PyTorch, ``(q, k, v) -> out``, by name; see :func:`loop` and :func:`at_once`."""
    forms: dict[str, Any] = {f"pytorch, loop of {rows}": partial(loop, torch, rows) for rows in LOOP}
    forms[f"pytorch, {AT_ONCE} at once"] = partial(at_once, torch, AT_ONCE)
    if compiled:
        torch.compiler.reset()  # compiled for these shapes, not for any that another call of this had
        form = torch.compile(lambda q, k, v: at_once(torch, AT_ONCE, q, k, v), dynamic=False)
        forms[f"pytorch, {AT_ONCE} at once, compiled"] = form
    return forms


def loop(torch: Any, rows: int, q: Any, k: Any, v: Any) -> Any:
    """A chunk after the other, each in four matrix products for all heads."""
    shape = v.shape
    q, k, v = (x.flatten(0, -3) for x in (q, k, v))  # (heads, N, C), (heads, N, C), (heads, N, M)
    s, outs = q.new_zeros(len(q), q.shape[-1], v.shape[-1]), []  # (heads, C, M)
    for q_t, k_t, v_t in zip(q.split(rows, 1), k.split(rows, 1), v.split(rows, 1), strict=True):
        scores = torch.bmm(q_t, k_t.mT).tril_()  # (heads, T, T)
        outs.append(torch.baddbmm(torch.bmm(q_t, s), scores, v_t))  # (heads, T, M)
        s = torch.baddbmm(s, k_t.mT, v_t)
    return torch.cat(outs, 1).reshape(shape)


def at_once(torch: Any, rows: int, q: Any, k: Any, v: Any) -> Any:
    """All chunks at once: the states before them are a cumulative sum, all kept."""
    n = q.shape[-2]
    pad = (0, 0, 0, -n % rows)
    q, k, v = (torch.nn.functional.pad(x, pad).unflatten(-2, (-1, rows)) for x in (q, k, v))  # (..., chunks, T, C or M)
    adds = k.mT @ v  # (..., chunks, C, M)
    out = torch.tril(q @ k.mT) @ v + q @ (adds.cumsum(-3) - adds)  # (..., chunks, T, M)
    return out.flatten(-3, -2)[..., :n, :]


def torch_product(torch: Any, form: Any, inputs: Inputs) -> tuple[Call, Call]:
    """A form of the product, forward, and forward with backward."""
    forward, both = (
        partial(in_torch, torch, form, inputs[:3], inputs.d_out, with_gradient) for with_gradient in (False, True)
    )
    return forward, both


# --- fast-transformers ----------------------------------------------------------------------------------------------


def fast_transformers_product(torch: Any, package: Any, inputs: Inputs) -> tuple[Call, Call]:
    """Its C++ kernels alone, forward, and forward with backward, into arrays that are there already."""
    kernels = package.causal_product
    q, k, v, d_out = (torch.from_numpy(x) for x in inputs)
    out, *gradients = (torch.zeros_like(x) for x in (v, q, k, v))

    def forward() -> Sequence[Array]:
        kernels.causal_dot_product_cpu(q, k, v, out)
        return (out.numpy(),)

    def both() -> Sequence[Array]:
        kernels.causal_dot_product_cpu(q, k, v, out)
        kernels.causal_dot_backward_cpu(q, k, v, d_out, *gradients)
        return tuple(x.numpy() for x in (out, *gradients))

    return forward, both


def fast_transformers_attention(torch: Any, package: Any, inputs: Inputs) -> Call:
    """Its module ``CausalLinearAttention``, forward and backward, on arrays in its own order ``(B, N, H, D)``."""
    q, k, v, d_out = (torch.from_numpy(x.swapaxes(1, 2).copy()) for x in inputs)
    module = package.attention.CausalLinearAttention(q.shape[-1])
    triangle = package.masking.TriangularCausalMask(q.shape[1])
    lengths = package.masking.LengthMask(torch.full((len(q),), q.shape[1]))

    def both() -> Sequence[Array]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = module(*leaves, triangle, lengths, lengths)
        out.backward(d_out)
        return tuple(x.numpy().swapaxes(1, 2) for x in (out.detach(), *(leaf.grad for leaf in leaves)))

    return both


# --- flash-linear-attention -----------------------------------------------------------------------------------------


def fla_product(naive: Any, q: Any, k: Any, v: Any) -> Any:
    """The causal product as a form of :func:`torch_forms`: its order of axes is ``(B, N, H, C)``."""
    return naive.naive_chunk_linear_attn(*(x.transpose(1, 2) for x in (q, k, v)), scale=1.0).transpose(1, 2)


def fla_attention(torch: Any, naive: Any, inputs: Inputs) -> Call:
    """With elu + 1 and the denominator, forward and backward."""
    elu = torch.nn.functional.elu

    def attention(q: Any, k: Any, v: Any) -> Any:
        features = (elu(q) + 1).transpose(1, 2), (elu(k) + 1).transpose(1, 2)
        return naive.naive_chunk_linear_attn(*features, v.transpose(1, 2), scale=1.0, normalize=True).transpose(1, 2)

    return torch_product(torch, attention, inputs)[1]
