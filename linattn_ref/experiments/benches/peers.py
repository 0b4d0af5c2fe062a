"""The other packages: finding them, what they are called, and what several benches call of them.

PyTorch has no kernel for causal linear attention, so its forms are written here, in the chunks of the
page `chunked_linear`: one after the other (`loop`), or all at once with the states by a cumulative sum (`at_once`).
None is the fastest everywhere.

fast-transformers (``pytorch-fast-transformers``, the package of the paper's authors) has Algorithm 1 in C++. A second
build of it is compared as well where it can be imported as ``fast_transformers_native``: the same source with
``CFLAGS="-O3 -march=native"`` (the variable replaces Python's own flags), and the folder ``fast_transformers`` renamed.

flash-linear-attention (``fla-core``) is for GPUs; its naive files are plain PyTorch, and taken one by one, since to
import the package needs Triton.
"""

import importlib.metadata
import importlib.util
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.experiments.benches.engine import find
from linattn_ref.op import Array

__all__ = ["EPS", "FAST", "FAST_TRANSFORMERS", "FLA", "FLA_ROWS", "PYTORCH", "Inputs", "at_once", "attention_module"]
__all__ += ["encoder", "fast_transformers", "in_torch", "layers", "leaves_of", "loop", "naive_file", "packed"]
__all__ += ["sums_in_place", "unpacked", "version", "versions"]

PYTORCH, FAST, FLA = "PyTorch", "fast-transformers", "flash-linear-attention, naive"
FAST_TRANSFORMERS = {FAST: "fast_transformers", f"{FAST} native": "fast_transformers_native"}
FLA_ROWS = 64  # of its chunks, of which a length must be a multiple
EPS = 1e-6  # of linear attention's denominator


class Inputs(NamedTuple):
    """Of attention; or of a causal product, features in place of queries and keys. Arrays, or tensors on the GPU."""

    q: Any  # (B, H, N, D)
    k: Any  # (B, H, N, D)
    v: Any  # (B, H, N, M)
    d_out: Any  # (B, H, N, M)


# --- Who is there ---------------------------------------------------------------------------------------------------


def fast_transformers(*parts: str) -> dict[str, Any]:
    """The package, under the name it has in a table, and its other build; those that can be imported with all parts."""
    there = {x: y for x, y in FAST_TRANSFORMERS.items() if all(find(f"{y}.{part}") for part in parts)}
    return {name: importlib.import_module(package) for name, package in there.items()}


def naive_file(folder: str) -> Any:
    """One of flash-linear-attention's naive files as a module, or None where that cannot be had."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        return SimpleNamespace(**runpy.run_path(f"{spec.submodule_search_locations[0]}/ops/{folder}/naive.py"))
    except (ImportError, OSError):  # einops, or the file, is missing
        return None


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def versions(torch: Any, packages: Mapping[str, Any]) -> dict[str, str]:
    """Version of each package that takes part; of flash-linear-attention there may be a file alone."""
    found = {} if torch is None else {PYTORCH: torch.__version__}
    for name, package in packages.items():
        if package is not None:
            found[name] = version("fla-core") if name == FLA else package.__version__.partition("-")[0]
    return found


def packed(x: Array) -> Array:
    """``(B, H, N, D)`` as ``(B, N, H D)``."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(len(x), x.shape[2], -1)


def unpacked(x: Array, heads: int) -> Array:
    """``(B, N, H D)`` as ``(B, H, N, D)``."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


# --- PyTorch --------------------------------------------------------------------------------------------------------


def in_torch(torch: Any, function: Any, arrays: Iterable[Array], d_out: Array, both: bool) -> Sequence[Array]:
    """``out`` of a function of tensors, and gradients by PyTorch's automatic differentiation; no array is copied."""
    leaves = [torch.from_numpy(x).requires_grad_(both) for x in arrays]
    out = function(*leaves)
    if not both:
        return (out.numpy(),)
    out.backward(torch.from_numpy(d_out))
    return tuple(x.numpy() for x in (out.detach(), *(leaf.grad for leaf in leaves)))


def loop(torch: Any, rows: int, q: Any, k: Any, v: Any) -> Any:
    """The causal product, a chunk after the other, each in four matrix products for all heads."""
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


def sums_in_place(torch: Any, phi_q: Any, phi_k: Any, v: Any, s: Any, z: Any) -> Any:
    """A token of linear attention, all ``(B H, ...)``: its output; nothing is allocated that can be written over."""
    s.baddbmm_(phi_k.unsqueeze(2), v.unsqueeze(1))  # (B H, C, M)
    z.add_(phi_k)
    numerator = torch.bmm(phi_q.unsqueeze(1), s).squeeze(1)  # (B H, M)
    return numerator.div_((phi_q * z).sum(1, keepdim=True).add_(EPS))


def leaves_of(block: Any, take: Callable[[Any], Any]) -> tuple[tuple[Any, Any], ...]:
    """A block as PyTorch has it, whose weights are (to, from): norm, inner and outer, norm, first and second."""

    def affine(given: Any) -> tuple[Any, Any]:
        return take(given.w.T.copy()), take(given.b)

    def norm(given: Any) -> tuple[Any, Any]:
        return take(given.gain), take(given.bias)

    inside, fed = block.attention, block.feed_forward
    attention = norm(block.norm_1), affine(inside.inner), affine(inside.outer)
    return *attention, norm(block.norm_2), affine(fed.inner), affine(fed.outer)


def layers(torch: Any, blocks: Any, x: Any, heads: int, attend: Any, activation: Any, *, norm_first: bool) -> Any:
    """Blocks of `leaves_of`, as users of PyTorch would write them; ``attend`` is of ``q, k, v (B, H, N, D)``."""
    functions, width = torch.nn.functional, x.shape[-1:]
    for norm_1, inner, outer, norm_2, first, second in blocks:
        rows = functions.layer_norm(x, width, *norm_1) if norm_first else x
        q, k, v = functions.linear(rows, *inner).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + functions.linear(attend(q, k, v).transpose(1, 2).flatten(2), *outer)  # (B, N, E)
        rows = functions.layer_norm(x, width, *(norm_2 if norm_first else norm_1))
        fed = functions.linear(activation(functions.linear(rows, *first)), *second)
        x = x + fed if norm_first else functions.layer_norm(rows + fed, width, *norm_2)
    return x


# --- fast-transformers ----------------------------------------------------------------------------------------------


def attention_module(torch: Any, package: Any, batch: int, length: int, width: int) -> Callable[..., Any]:
    """Its module ``CausalLinearAttention``, of ``q, k, v`` in its own order of axes, ``(B, N, H, D)``."""
    module = package.attention.CausalLinearAttention(width)
    triangle = package.masking.TriangularCausalMask(length)
    lengths = package.masking.LengthMask(torch.full((batch,), length))
    return lambda q, k, v: module(q, k, v, triangle, lengths, lengths)


def encoder(torch: Any, builder: Any, network: Any, heads: int, kind: str, **options: Any) -> Any:
    """Its network of that builder and kind of attention with our blocks; and the norm at their end, if there is one."""
    blocks, norm = network.blocks, getattr(network, "norm", None)
    width, hidden = blocks[0].feed_forward.inner.w.shape
    reads = len(blocks[0].attention.inner.b) // width  # 2 where queries are keys, of which it computes both
    sizes = {"query_dimensions": width // heads, "value_dimensions": width // heads, "feed_forward_dimensions": hidden}
    end = {"dropout": 0.0, "final_normalization": norm is not None}
    sizes |= {"n_layers": len(blocks), "n_heads": heads}
    built = builder.from_kwargs(attention_type=kind, **sizes, **end, **options).get()
    with torch.no_grad():
        for layer, one in zip(built.layers, blocks, strict=True):
            norm_1, (w, b), outer, norm_2, first, second = leaves_of(one, torch.from_numpy)
            attention = layer.attention
            read = attention.query_projection, attention.key_projection, attention.value_projection
            for part, i in zip(read, (0, reads - 2, reads - 1), strict=True):
                rows = slice(i * width, (i + 1) * width)
                _put(part, w[rows], b[rows])
            given = {attention.out_projection: outer, layer.linear1: first, layer.linear2: second}
            for part, pair in {**given, layer.norm1: norm_1, layer.norm2: norm_2}.items():
                _put(part, *pair)
        if norm is not None:
            _put(built.norm, torch.from_numpy(norm.gain), torch.from_numpy(norm.bias))
    return built.eval().requires_grad_(False)


def _put(part: Any, weight: Any, bias: Any) -> None:
    part.weight.copy_(weight)
    part.bias.copy_(bias)
