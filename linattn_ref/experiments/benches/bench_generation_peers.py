"""Whole networks that write, by other packages: for `bench_generation` and `bench_drawing`.

All get the parameters of a `linattn_ref.models.causal` network with norms last and GELU. Token by token (`Stateful`):

by hand             in PyTorch: linear attention's sums, moved on where they are by ``baddbmm_``, or keys and values in
                    arrays with room for all that will come
fast-transformers   its recurrent encoder, with ``"linear"`` or ``"full"`` attention
ONNX Runtime        one graph of the whole network with linear attention, inputs and sums bound once (`runtimes`)

and all tokens anew (`Anew`), of which the scores after the last are wanted:

by hand             ``scaled_dot_product_attention``, causal
fast-transformers   its encoder, with ``"full"`` or ``"reformer"`` attention and a causal mask

By hand is the fastest form found: ``torch.addmm`` with weights ``(E, F)`` (at batch size 1 ``F.linear`` takes 1.3 times
as long), linear attention's of four at batch sizes 1 and 64, and the cache, with its keys transposed, of six or within
the noise of it (``scaled_dot_product_attention`` among them). All PyTorch runs in ``torch.inference_mode``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.experiments.benches import engine, peers, runtimes
from linattn_ref.experiments.publishing.kit import Array, NDArray
from linattn_ref.models.causal import Params
from linattn_ref.nested import map_arrays

__all__ = ["CHUNK", "Anew", "Stateful", "Tokens", "anew_by_hand", "by_graph", "by_hand", "encoder", "recurrent_encoder"]

Tokens = NDArray[np.integer[Any]]
Anew = Callable[[Tokens], Array]  # tokens (B, t) to the scores of what comes next, (B, V)
CHUNK = 32  # of its Reformer, which reads whole chunks


class Stateful(NamedTuple):
    """A network that reads a token at a time."""

    states: Callable[[int], Callable[[int], Any]]  # of a batch: by the place of the next token, a state to go on from
    step: Callable[[Tokens, int, Any], tuple[Array, Any]]  # tokens (B,), their place, the state: scores and a state


# --- PyTorch --------------------------------------------------------------------------------------------------------


def by_hand(torch: Any, params: Params, heads: int, attention: str = "linear") -> Stateful:
    """Token by token, with ``"linear"`` or ``"softmax"`` attention."""
    network = map_arrays(torch.from_numpy, params)
    d, layers = len(network.norm.gain) // heads, range(len(network.blocks))
    room = len(network.positions.table)
    attend = {"linear": _sums, "softmax": _cache}[attention]

    def states(batch: int) -> Callable[[int], Any]:
        rows = batch * heads
        if attention == "linear":
            return lambda _: [(torch.zeros(rows, d, d), torch.zeros(rows, d)) for _ in layers]
        kept = [(torch.ones(rows, d, room), torch.ones(rows, room, d)) for _ in layers]
        return lambda _: kept

    def step(tokens_t: Tokens, place: int, state: Any) -> tuple[Array, Any]:
        with torch.inference_mode():
            x = network.embedding.table[torch.from_numpy(tokens_t)] + network.positions.table[place]
            for one, of_layer in zip(network.blocks, state, strict=True):
                projected = torch.addmm(one.attention.inner.b, x, one.attention.inner.w)
                q, k, v = projected.view(len(x), 3, heads, -1).transpose(0, 1).flatten(1, 2)  # (B H, D) each
                out = attend(torch, q, k, v, place, *of_layer)
                x = _rest(torch, one, x, out.view(len(x), -1))
            return _scores(torch, network, x).numpy(), state

    return Stateful(states, step)


def _sums(torch: Any, q: Any, k: Any, v: Any, place: int, s: Any, z: Any) -> Any:
    phi_q, phi_k = torch.nn.functional.elu(q).add_(1), torch.nn.functional.elu(k).add_(1)
    return peers.sums_in_place(torch, phi_q, phi_k, v, s, z)


def _cache(torch: Any, q: Any, k: Any, v: Any, place: int, keys: Any, values: Any) -> Any:
    keys[:, :, place], values[:, place] = k, v
    scores = torch.bmm(q.unsqueeze(1), keys[:, :, : place + 1]).mul_(q.shape[1] ** -0.5)  # (B H, 1, t)
    return torch.bmm(scores.softmax(-1), values[:, : place + 1])


def _rest(torch: Any, one: Any, x: Any, out: Any) -> Any:
    """Of a block with norms last, what is left to do with attention's ``out (rows, E)``."""
    functional, width = torch.nn.functional, x.shape[-1:]
    attended = torch.addmm(one.attention.outer.b, out, one.attention.outer.w)
    x = functional.layer_norm(attended.add_(x), width, *one.norm_1)
    h = functional.gelu(torch.addmm(one.feed_forward.inner.b, x, one.feed_forward.inner.w))
    fed = torch.addmm(one.feed_forward.outer.b, h, one.feed_forward.outer.w)
    return functional.layer_norm(fed.add_(x), width, *one.norm_2)


def _scores(torch: Any, network: Params, x: Any) -> Any:
    normed = torch.nn.functional.layer_norm(x, x.shape[-1:], *network.norm)
    return torch.addmm(network.head.b, normed, network.head.w)


def anew_by_hand(torch: Any, params: Params, heads: int) -> Anew:
    """All tokens, with softmax attention."""
    network = map_arrays(torch.from_numpy, params)

    def scores(tokens: Tokens) -> Array:
        with torch.inference_mode():
            x = network.embedding.table[torch.from_numpy(tokens)] + network.positions.table[: tokens.shape[1]]
            x = x.flatten(0, 1)  # (B t, E)
            for one in network.blocks:
                projected = torch.addmm(one.attention.inner.b, x, one.attention.inner.w)
                q, k, v = projected.view(*tokens.shape, 3, heads, -1).permute(2, 0, 3, 1, 4)  # (B, H, t, D) each
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = _rest(torch, one, x, out.transpose(1, 2).reshape(x.shape))
            last = x.view(*tokens.shape, -1)[:, -1]
            return np.asarray(_scores(torch, network, last).numpy())

    return scores


# --- ONNX Runtime ---------------------------------------------------------------------------------------------------


def by_graph(runtime: Any, params: Params, heads: int) -> Stateful:
    """Token by token, with linear attention: a sum of values and one of ones are two nodes LinearAttention."""
    width = len(params.norm.gain)
    d, layers = width // heads, range(len(params.blocks))
    graph = runtimes.Graph()
    x = graph.add("Add", graph.add("Gather", params.embedding.table, "tokens"), "position")
    for i, one in zip(layers, params.blocks, strict=True):
        q, k, v = graph.add("Split", graph.affine(x, one.attention.inner), outputs=3, axis=1, num_outputs=3)
        phi = [graph.add("Add", graph.add("Elu", each), np.float32(1)) for each in (q, k)]
        row_q, row_k, row_v = (graph.add("Unsqueeze", each, np.array([1])) for each in (*phi, v))
        numerator = graph.linear_attention(row_q, row_k, row_v, state=f"s{i}", heads=heads)  # (B, 1, E)
        denominator = graph.linear_attention(row_q, row_k, "ones", state=f"z{i}", heads=heads)  # (B, 1, H)
        numerator = graph.add("Reshape", numerator, np.array([-1, heads, d]))
        denominator = graph.add("Reshape", denominator, np.array([-1, heads, 1]))
        share = graph.add("Div", numerator, graph.add("Add", denominator, np.float32(peers.EPS)))
        out = graph.affine(graph.add("Reshape", share, np.array([-1, width])), one.attention.outer)
        x = graph.norm(graph.add("Add", x, out), one.norm_1)
        h = graph.add("Gelu", graph.affine(x, one.feed_forward.inner))
        x = graph.norm(graph.add("Add", x, graph.affine(h, one.feed_forward.outer)), one.norm_2)
    graph.affine(graph.norm(x, params.norm), params.head, outputs=["scores"])

    def states(batch: int) -> Callable[[int], Any]:
        sums = {f"s{i}": (batch, heads, d, d) for i in layers} | {f"z{i}": (batch, heads, d, 1) for i in layers}
        sizes = {"tokens": (batch,), "position": (1, width), "ones": (batch, 1, heads), **sums}
        run = graph.session(runtime, sizes, "scores")

        def start(_: int) -> Any:
            arrays = {name: np.zeros(size, np.float32) for name, size in sums.items()}
            arrays["ones"] = np.ones(sizes["ones"], np.float32)
            arrays["scores"] = np.zeros((batch, params.head.w.shape[1]), np.float32)
            return runtimes.bound(runtime, run, arrays, [*sums], "scores")

        return start

    places: Any = params.positions

    def step(tokens_t: Tokens, place: int, state: Any) -> tuple[Array, Any]:
        return state({"tokens": tokens_t, "position": places.table[place : place + 1]}), state

    return Stateful(states, step)


# --- fast-transformers ----------------------------------------------------------------------------------------------


def recurrent_encoder(torch: Any, builders: Any, params: Params, heads: int, attention: str = "linear") -> Stateful:
    """Its recurrent encoder, between an embedding and a head by hand; its cache is copied in each step."""
    network = map_arrays(torch.from_numpy, params)
    kind = {"linear": "linear", "softmax": "full"}[attention]
    built = peers.encoder(torch, builders.RecurrentEncoderBuilder, params, heads, kind, activation="gelu")
    d, layers = len(network.norm.gain) // heads, range(len(network.blocks))

    def states(batch: int) -> Callable[[int], Any]:
        if attention == "linear":
            return lambda _: None
        kept = [torch.ones(batch, heads, len(network.positions.table), d) for _ in layers]
        return lambda place: [[each[:, :, :place]] * 2 for each in kept] if place else None

    def step(tokens_t: Tokens, place: int, state: Any) -> tuple[Array, Any]:
        with torch.inference_mode():
            x = network.embedding.table[torch.from_numpy(tokens_t)] + network.positions.table[place]
            x, state = built(x, state)
            return torch.addmm(network.head.b, x, network.head.w).numpy(), state

    return Stateful(states, step)


def encoder(torch: Any, builders: Any, params: Params, heads: int, kind: str, **options: Any) -> Anew:
    """Its encoder; attention of this ``kind`` gets the options, and ``"reformer"`` whole chunks of tokens."""
    network = map_arrays(torch.from_numpy, params)
    built = peers.encoder(torch, builders.TransformerEncoderBuilder, params, heads, kind, activation="gelu", **options)
    masking = engine.find("fast_transformers.masking")

    def scores(tokens: Tokens) -> Array:
        count = tokens.shape[1]
        more = -count % CHUNK if kind == "reformer" else 0
        with torch.inference_mode():
            x = network.embedding.table[torch.from_numpy(tokens)] + network.positions.table[:count]
            x = torch.nn.functional.pad(x, (0, 0, 0, more))
            last = built(x, attn_mask=masking.TriangularCausalMask(count + more))[:, count - 1]
            return np.asarray(torch.addmm(network.head.b, last, network.head.w).numpy())

    return scores
