"""Multi-head attention (Vaswani et al. 2017), with any mechanism inside.

    [q, k, v] = x W + b                                      (1)  one product for all heads
    o_h = attention(q_h, k_h, v_h)                           (2)  head h has D columns of q and k, M columns of v
    y = [o_1 ... o_H] W_o + b_o                              (3)

To cut the columns into heads moves no number: ``(B, N, H D)`` is seen as ``(B, H, N, D)``. As a rule ``D = M = E / H``,
but the shapes of the parameters decide. The gradient is that of the parts, last to first: of (3), from ``dy``, (4); of
each head's attention (5); of (1), from ``[dq, dk, dv]``, (6).

Keys and values may come from a second sequence, the ``memory`` (cross-attention). With ``groups=G`` there are ``H / G``
heads of keys and values, each read by ``G`` heads of queries: `linattn_ref.attention.parts.shared_heads`.

Token by token (:func:`step`), where the mechanism has a recurrent form, it is the same layer as a recurrent network.

>>> from linattn_ref.attention import linear
>>> from linattn_ref.nn import mechanism
>>> rng = np.random.default_rng(0)
>>> params, x = draw(8, rng), rng.standard_normal((1, 5, 8))
>>> y, saved = forward(x, params, mechanism.of(linear, causal=True), heads=2)
>>> y.shape, backward(y, saved).params.inner.w.shape
((1, 5, 8), (8, 24))

References
----------
Vaswani et al. (2017), "Attention is all you need", section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.nn import affine
from linattn_ref.nn.heads import Part, cut, merge, parts_of, split
from linattn_ref.nn.mechanism import Mechanism, shared
from linattn_ref.op import Array, Bool, Float, Of, op
from linattn_ref.op.options import check_sizes

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward", "init_state", "look", "step"]


class Params(NamedTuple):
    inner: Of[affine.Params, "E P"]  # W_q, W_k, W_v side by side; as many as the mechanism reads
    outer: Of[affine.Params, "V Y"]  # W_o; V = H M
    own: tuple[Any, ...] = ()  # the mechanism's own, such as (e, f) of Linformer; last a tuple for each of its gates


class Saved(NamedTuple):
    outer: Of[affine.Saved, "V Y"]
    inner: Of[affine.Saved, "E P"]  # of the queries alone, where there is a memory
    attention: Any  # the mechanism's
    backward: Callable[..., Any]  # the mechanism's
    gates: tuple[tuple[str, Callable[..., Any], Any], ...]  # the argument, its pair's backward, what that saved
    own: tuple[str, ...]  # the arguments that were `Params.own`
    reads: int
    heads: int
    memory: Any  # `affine.Saved` of keys and values that come from a memory


class Gradients(NamedTuple):
    x: Float[Array, "B N E"]
    params: Params
    memory: Float[Any, "B L E"] = None


def look(
    x: Any,
    params: Params,
    mechanism: Any,
    heads: Any,
    key_mask: Any = None,
    memory: Any = None,
    groups: Any = 1,
    **_: Any,
) -> None:
    """Check that heads divide the columns, and what the mechanism checks; ``x`` counts by its shape and dtype."""
    check_heads(params, mechanism, heads, groups)
    mechanism, keys = shared(mechanism, groups), x if memory is None else memory
    if memory is not None and mechanism.reads != 3:
        raise ValueError(f"memory: expected a mechanism that reads q, k and v, got {mechanism.forward.__module__}")
    if key_mask is not None and key_mask.shape[1] != keys.shape[1]:
        raise ValueError(f"key_mask: expected shape (B, L) = {keys.shape[:2]}, got {key_mask.shape}")
    like_parts, gates = like_arguments(x, keys, params, mechanism, heads)
    options = {**mechanism.options, **gates}
    if key_mask is not None:
        options["key_mask"] = np.broadcast_to(key_mask[:, None], like_parts[-1].shape[:-1])
    if hasattr(mechanism.forward, "check"):
        mechanism.forward.check(*like_parts, *split_own(params, mechanism)[0], **options)


def like_arguments(x: Any, keys: Any, params: Params, mechanism: Any, heads: Any) -> tuple[list[Array], dict[str, Any]]:
    """Arrays like those that the mechanism is to read, and gates like its gates, without memory of their own."""
    if len(params.own) < len(mechanism.gates):
        names, got = ", ".join(mechanism.gates), len(params.own)
        raise TypeError(f"params.own: expected a tuple of parameters for each of the gates ({names}), got {got}")
    arrays, gates = [], {}
    for i, part in enumerate(parts_of(params, mechanism, heads)):
        shape = len(x), part.heads, (keys if i else x).shape[1], part.width
        arrays.append(np.broadcast_to(x.dtype.type(0), shape))
    for (name, pair), its in zip(mechanism.gates.items(), split_own(params, mechanism)[1], strict=True):
        of_token, _ = pair.forward(np.zeros_like(keys, shape=(1, 1, 1, keys.shape[-1])), *its)  # (1, H, 1)
        legal = of_token.dtype.type(-0.5 if name.startswith("log_") else 0.5)
        gates[name] = np.broadcast_to(legal, (len(keys), *of_token.shape[1:-1], keys.shape[1]))
    return arrays, gates


def check_heads(params: Params, mechanism: Any, heads: Any, groups: Any) -> None:
    """Check that as many heads divide the columns, and groups the heads."""
    check_sizes(heads=heads, groups=groups)
    mechanism = shared(mechanism, groups)
    check_sizes(groups=(groups := mechanism.options.get("groups", 1)))
    if heads % groups:
        raise ValueError(f"groups: expected a divisor of heads = {heads}, got {groups}")
    inner, outer, parts = params.inner.w.shape[1], params.outer.w.shape[0], parts_of(params, mechanism, heads)
    if outer % heads or min(part.width for part in parts) < 1 or inner != sum(a * b for a, b in parts):
        raise ValueError(
            f"heads: {heads} heads of {mechanism.reads} projections need a multiple of as many columns of"
            f" params.inner.w, and of {heads} rows of params.outer.w, got {inner} and {outer}"
        )


@op(look=look)
def forward(
    x: Float[Array, "B N E"],
    params: Params,
    mechanism: Mechanism,
    *,
    heads: int,
    memory: Float[Array, "B L E"] | None = None,
    key_mask: Bool[Array, "B L"] | None = None,
    groups: int = 1,
) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    x : ndarray ``(B, N, E)``
    params : Params
    mechanism : Mechanism
        From `linattn_ref.nn.mechanism.of`.
    heads : int
        ``H``.
    memory : ndarray ``(B, L, E)``, optional
        What keys and values are made of; without it, ``x``.
    key_mask : ndarray of bool ``(B, L)``, optional
        True = may be attended, by all heads; ``L = N`` without a memory.
    groups : int
        ``G``: how many heads of queries read each head of keys and values.

    Returns
    -------
    y : ndarray ``(B, N, E)``
    saved : Saved
    """
    mechanism = shared(mechanism, groups)
    parts, of_memory = parts_of(params, mechanism, heads), None
    if memory is None:
        projected, inner = affine.forward(x, params.inner)  # (1)
        arrays = split(projected, *parts)
    else:
        of_queries, of_others = cut(params.inner, parts)
        (queries, inner), (others, of_memory) = affine.forward(x, of_queries), affine.forward(memory, of_others)  # (1)
        arrays = split(queries, parts[0]) + split(others, *parts[1:])
    o, attention, gates, own = attend(arrays, x, memory, params, mechanism, key_mask)  # (2)
    y, outer = affine.forward(merge(o), params.outer)  # (3)
    return y, Saved(outer, inner, attention, mechanism.backward, gates, own, mechanism.reads, heads, of_memory)


@op
def backward(d_y: Float[Array, "... Y"], saved: Saved) -> Gradients:
    """Back through (3), (2) and (1)."""
    d_merged, outer = affine.backward(d_y, saved.outer)  # (4)
    (d_o,) = split(d_merged, Part(saved.heads, d_merged.shape[-1] // saved.heads))
    grads = saved.backward(d_o, saved.attention)  # (5)
    d_parts, d_memory = grads[: saved.reads], None
    if saved.memory is None:
        d_x, inner = affine.backward(merge(*d_parts), saved.inner)  # (6)
    else:
        d_x, of_x = affine.backward(merge(d_parts[0]), saved.inner)  # (6)
        d_memory, of_memory = affine.backward(merge(*d_parts[1:]), saved.memory)  # (6)
        inner = affine.Params(*(np.concatenate(pair, axis=-1) for pair in zip(of_x, of_memory, strict=True)))
    own = tuple(getattr(grads, name) for name in saved.own)
    for name, gate_backward, gate in saved.gates:
        d_keys, *d_gate = gate_backward(getattr(grads, name), gate)
        if d_memory is None:
            d_x = d_x + d_keys[:, 0]
        else:
            d_memory = d_memory + d_keys[:, 0]
        own = *own, tuple(d_gate)
    return Gradients(d_x, Params(inner, outer, own), d_memory)


def attend(arrays: Any, x: Array, memory: Any, params: Params, mechanism: Mechanism, key_mask: Any, **more: Any) -> Any:
    """Equation (2): ``o``, what the mechanism and its gates saved, and the arguments that were `Params.own`.

    Without a memory what is no key is no query either, to a mechanism that looks at several queries at once.
    """
    own, of_gates = split_own(params, mechanism)
    options, gates, keys = {**mechanism.options, **more}, [], x if memory is None else memory
    if key_mask is not None:
        options["key_mask"] = np.broadcast_to(key_mask[:, None], arrays[-1].shape[:-1])  # (B, H, L)
        if memory is None and "query_mask" in mechanism.accepts["forward"]:
            options["query_mask"] = options["key_mask"]
    for (name, pair), its in zip(mechanism.gates.items(), of_gates, strict=True):
        options[name], gate = pair.forward(keys[:, None], *its)  # (B, H, L)
        gates.append((name, pair.backward, gate))
    o, attention = mechanism.forward(*arrays, *own, **options)  # (2)
    names = mechanism.accepts["forward"][mechanism.reads :][: len(own)]
    return o, attention, tuple(gates), names


def split_own(params: Params, mechanism: Mechanism) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what of ``own`` are arguments of the mechanism, and what are parameters of its gates."""
    count = len(params.own) - len(mechanism.gates)
    return params.own[:count], params.own[count:]


# --- Token by token -------------------------------------------------------------------------------------------------


@op
def init_state(
    batch: int, params: Params, mechanism: Mechanism, *, heads: int, groups: int = 1, capacity: int | None = None
) -> Any:
    """Return the mechanism's state before the first token.

    Parameters
    ----------
    batch : int
        ``B``.
    params, mechanism, heads, groups
        As in :func:`forward`.
    capacity : int, optional
        How many tokens a cache has room for from the start, if the mechanism has one.
    """
    check_sizes(batch=batch, capacity=1 if capacity is None else capacity)
    check_heads(params, mechanism, heads, groups)
    mechanism = shared(mechanism, groups)
    if mechanism.init_state is None:
        raise ValueError(f"mechanism: {mechanism.forward.__module__} has no recurrent form")
    _, k, v = parts_of(params, mechanism, heads)
    options = {**mechanism.options, "capacity": capacity, "dtype": params.inner.w.dtype}
    accepted = {name: value for name, value in options.items() if name in mechanism.accepts["init_state"]}
    return mechanism.init_state((batch, heads), k.width, v.width, **accepted)


def look_at_step(
    params: Params, mechanism: Any, heads: Any, groups: Any = 1, x_t: Any = None, state: Any = None
) -> None:
    """Check that there is a recurrent form and, given a token and a state, what the mechanism checks of them."""
    check_heads(params, mechanism, heads, groups)
    if mechanism.step is None:
        raise ValueError(f"mechanism: {mechanism.forward.__module__} has no recurrent form")
    if x_t is not None and hasattr(mechanism.step, "check"):
        mechanism = shared(mechanism, groups)
        arrays, gates = like_arguments(x_t[:, None], x_t[:, None], params, mechanism, heads)
        gates_t = {f"{name}_t": gate[..., 0] for name, gate in gates.items()}
        mechanism.step.check(*(x[..., 0, :] for x in arrays), state, **mechanism.step_options, **gates_t)


@op(look=look_at_step)
def step(
    x_t: Float[Array, "B E"], params: Params, state: Any, mechanism: Mechanism, *, heads: int, groups: int = 1
) -> tuple[Array, Any]:
    """Equations (1)-(3) for one token: ``x_t (B, E)`` to ``y_t (B, E)``, and the state after it."""
    mechanism = shared(mechanism, groups)
    projected, _ = affine.forward(x_t, params.inner)  # (1)  (B, P)
    q_t, k_t, v_t = (x[..., 0, :] for x in split(projected[:, None], *parts_of(params, mechanism, heads)))  # (B, H, D)
    more = dict(mechanism.step_options)
    for (name, pair), its in zip(mechanism.gates.items(), split_own(params, mechanism)[1], strict=True):
        more[f"{name}_t"] = pair.forward(x_t[:, None, None], *its)[0][..., 0]  # (B, H)
    o_t, state = mechanism.step(q_t, k_t, v_t, state, **more)  # type: ignore[misc]  # (2)
    y_t, _ = affine.forward(o_t.reshape(len(x_t), -1), params.outer)  # (3)
    return y_t, state


@op
def draw(
    width: int,
    rng: np.random.Generator,
    *,
    reads: int = 3,
    groups: int = 1,
    key_columns: int | None = None,
    value_columns: int | None = None,
    own: tuple[Any, ...] = (),
    dtype: Any = np.float64,
) -> Params:
    """Draw parameters to start from, each projection as `affine.draw`; ``own`` are the mechanism's, as they are.

    ``key_columns`` are ``H D`` and ``value_columns`` are ``H M``; both are ``width`` unless given. With ``groups`` the
    projections of keys and of values have that many times fewer.
    """
    columns = [width if size is None else size for size in (key_columns, key_columns, value_columns)]
    if reads != 3 and (groups != 1 or columns != [width] * 3):
        raise ValueError(f"reads: expected 3 with groups or with columns of their own, got {reads}")
    if any(size % groups for size in columns[1:]):
        raise ValueError(f"groups: expected a divisor of the columns {columns[1]} and {columns[2]}, got {groups}")
    sizes = [columns[0], columns[1] // groups, columns[2] // groups] if reads == 3 else [width] * reads
    parts = [affine.draw(width, size, rng, dtype=dtype) for size in sizes]
    w, b = np.concatenate([part.w for part in parts], axis=1), np.concatenate([part.b for part in parts])
    return Params(affine.Params(w, b), affine.draw(columns[2], width, rng, dtype=dtype), own)
