"""The network of `bench_training` in PyTorch's eager mode, from the same numbers: what its users would write.

Attention is PyTorch's own kernel for softmax. For linear attention PyTorch has none: it is the module of
fast-transformers where that is installed, and the causal product in chunks of `peers`, of which it is not
known beforehand which form is the faster. Adam is the fused one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.experiments.benches import peers
from linattn_ref.experiments.benches.peers import EPS
from linattn_ref.models.causal import Params

__all__ = ["attention_by_name", "products", "training_step"]

CHUNK = 64


def attention_by_name(torch: Any, attention: str, packages: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Functions of ``q, k, v (B, H, N, D)``, causal: ``linear`` or ``softmax``."""
    if attention == "softmax":
        return {"pytorch": partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)}
    forms = {"pytorch, at once": peers.at_once, "pytorch, loop": peers.loop}
    found: dict[str, Callable[..., Any]] = {
        name: partial(linear_attention, torch, partial(form, torch, CHUNK)) for name, form in forms.items()
    }
    for name, package in packages.items():
        if name in peers.FAST_TRANSFORMERS:
            found[name] = partial(fast_transformers, torch, package)
    return found


def linear_attention(torch: Any, product: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
    """The causal product of ``elu + 1``, and its denominator as fast-transformers has it."""
    elu = torch.nn.functional.elu
    q, k = elu(q) + 1, elu(k) + 1
    denominator = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + EPS
    return product(q, k, v) / denominator[..., None]


def fast_transformers(torch: Any, package: Any, q: Any, k: Any, v: Any) -> Any:
    """Its module; its own order of axes is ``(B, N, H, D)``."""
    b, _, n, d = q.shape
    triangle = package.masking.TriangularCausalMask(n)
    lengths = package.masking.LengthMask(torch.full((b,), n))
    module = package.attention.CausalLinearAttention(d)
    return module(*(x.transpose(1, 2) for x in (q, k, v)), triangle, lengths, lengths).transpose(1, 2)


def training_step(
    torch: Any, attend: Callable[..., Any], params: Params, heads: int, text: NDArray[np.int64], rate: float
) -> Callable[[], float]:
    """A step on ``text (B, N + 1)``: forward, backward, Adam; its loss. The parameters are copied."""
    functions, leaves = torch.nn.functional, []

    def leaf(array: Any) -> Any:
        leaves.append(torch.from_numpy(array.copy()).requires_grad_())
        return leaves[-1]

    table, places = leaf(params.embedding.table), leaf(params.positions.table)  # type: ignore[union-attr]
    blocks = [peers.leaves_of(one, leaf) for one in params.blocks]
    last = leaf(params.norm.gain), leaf(params.norm.bias)
    head = leaf(params.head.w.T.copy()), leaf(params.head.b)
    adam = torch.optim.Adam(leaves, lr=rate, fused=True)
    read, told, width = torch.from_numpy(text[:, :-1]), torch.from_numpy(text[:, 1:]).flatten(), (table.shape[1],)

    def forward() -> Any:
        x = functions.embedding(read, table) + places  # (B, N, E)
        for norm_1, inner, outer, norm_2, first, second in blocks:
            projected = functions.linear(functions.layer_norm(x, width, *norm_1), *inner)  # (B, N, 3 E)
            q, k, v = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, N, D)
            x = x + functions.linear(attend(q, k, v).transpose(1, 2).flatten(2), *outer)
            fed = functions.gelu(functions.linear(functions.layer_norm(x, width, *norm_2), *first))
            x = x + functions.linear(fed, *second)
        return functions.linear(functions.layer_norm(x, width, *last), *head)  # (B, N, V)

    def step() -> float:
        adam.zero_grad()
        loss = functions.cross_entropy(forward().flatten(0, 1), told)
        loss.backward()
        adam.step()
        return loss.item()

    return step


def products(torch: Any, rows: int, sizes: list[tuple[int, int]]) -> Callable[[], None]:
    """The matrix products of a step alone: ``x W``, and with its gradient ``G`` ``G W^T`` and ``x^T G``."""
    x = {size: torch.randn(rows, size) for pair in sizes for size in pair}
    weights = [(torch.randn(to, width), torch.randn(to)) for width, to in sizes]

    def call() -> None:
        with torch.no_grad():
            for w, b in weights:
                torch.nn.functional.linear(x[w.shape[1]], w, b)
                torch.mm(x[w.shape[0]], w)
                torch.mm(x[w.shape[0]].T, x[w.shape[1]])

    return call
