"""The layers of `bench_encoder` in PyTorch and in fast-transformers, with the same weights.

PyTorch's are written with its own kernel for softmax attention, which keeps no matrix. fast-transformers' are what its
builder makes of the slides' arguments, without the norm after the last layer and without dropout.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.benches import bench_linear_peers
from linattn_ref.nn.block import EPS, Params

__all__ = ["layers"]

ATTENTION_TYPES = {"linear": "linear", "softmax": "full"}  # as fast-transformers calls them


def layers(
    torch: Any, attention: str, params: tuple[Params, ...], x: Array, heads: int
) -> dict[str, Callable[[], Array]]:
    """Calls that return the rows, by name; of the packages that are there and have such attention."""
    found = {"pytorch": in_pytorch(torch, params, x, heads)} if attention == "softmax" else {}
    for name in bench_linear_peers.find_fast_transformers():
        if name == "fast-transformers":
            found[name] = in_fast_transformers(torch, attention, params, x, heads)
    return found


def in_pytorch(torch: Any, params: tuple[Params, ...], x: Array, heads: int) -> Callable[[], Array]:
    """Post-norm layers of `torch.nn.functional`."""
    functions, given = torch.nn.functional, torch.from_numpy(x)
    weights = [_tensors(torch, one) for one in params]
    width = (x.shape[-1],)

    def call() -> Array:
        rows = given
        with torch.no_grad():
            for norm_1, inner, outer, norm_2, first, second in weights:
                projected = functions.linear(rows, *inner)  # (B, N, 3 E)
                q, k, v = projected.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, N, D)
                attended = functions.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # (B, N, E)
                rows = functions.layer_norm(rows + functions.linear(attended, *outer), width, *norm_1, EPS)
                fed = functions.linear(functions.relu(functions.linear(rows, *first)), *second)
                rows = functions.layer_norm(rows + fed, width, *norm_2, EPS)
        return rows.numpy()

    return call


def in_fast_transformers(
    torch: Any, attention: str, params: tuple[Params, ...], x: Array, heads: int
) -> Callable[[], Array]:
    """What the slides' builder makes."""
    builders = importlib.import_module("fast_transformers.builders")
    width, hidden = params[0].feed_forward.inner.w.shape
    network = builders.TransformerEncoderBuilder.from_kwargs(
        n_layers=len(params),
        n_heads=heads,
        query_dimensions=width // heads,
        value_dimensions=width // heads,
        feed_forward_dimensions=hidden,
        attention_type=ATTENTION_TYPES[attention],
        final_normalization=False,
    ).get()
    network.eval()
    with torch.no_grad():
        for layer, one in zip(network.layers, params, strict=True):
            norm_1, inner, outer, norm_2, first, second = _tensors(torch, one)
            projections = [getattr(layer.attention, f"{name}_projection") for name in ("query", "key", "value")]
            for part, w, b in zip(projections, inner[0].chunk(3), inner[1].chunk(3), strict=True):
                _put(part, (w, b))
            for part, pair in (
                (layer.attention.out_projection, outer),
                (layer.linear1, first),
                (layer.linear2, second),
                (layer.norm1, norm_1),
                (layer.norm2, norm_2),
            ):
                _put(part, pair)
    given = torch.from_numpy(x)

    def call() -> Array:
        with torch.no_grad():
            return network(given).numpy()

    return call


def _tensors(torch: Any, one: Params) -> tuple[tuple[Any, Any], ...]:
    """Norm, projections in and out, norm, the feed-forward layer's two: a weight ``(to, from)`` and a bias each."""

    def affine(given: Any) -> tuple[Any, Any]:
        return torch.from_numpy(given.w.T.copy()), torch.from_numpy(given.b)

    def norm(given: Any) -> tuple[Any, Any]:
        return torch.from_numpy(given.gain), torch.from_numpy(given.bias)

    inside, fed = one.attention, one.feed_forward
    return (
        *(norm(one.norm_1), affine(inside.inner), affine(inside.outer)),
        *(norm(one.norm_2), affine(fed.inner), affine(fed.outer)),
    )


def _put(part: Any, pair: tuple[Any, Any]) -> None:
    part.weight.copy_(pair[0])
    part.bias.copy_(pair[1])
