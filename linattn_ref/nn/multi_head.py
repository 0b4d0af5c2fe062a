"""Multi-head attention (Vaswani et al. 2017), with any mechanism inside.

    [q, k, v] = x W + b                                      (1)  one product for all heads
    o_h = attention(q_h, k_h, v_h)                           (2)  head h has D = E / H columns of each
    y = [o_1 ... o_H] W_o + b_o                              (3)

To cut the columns into heads moves no number: ``(B, N, 3 H D)`` seen as three times ``(B, H, N, D)``. The gradient is
that of the parts, last to first: (4), (5), (6).

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
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op import Array, Bool, Float, Of, op
from linattn_ref.op.options import check_sizes

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward", "init_state", "look", "step"]


class Params(NamedTuple):
    inner: Of[affine.Params, "E P"]  # W_q, W_k, W_v side by side; as many as the mechanism reads
    outer: Of[affine.Params, "M Y"]  # W_o
    own: tuple[Any, ...] = ()  # the mechanism's own, such as (e, f) of Linformer; last a tuple for each of its gates


class Saved(NamedTuple):
    outer: Of[affine.Saved, "M Y"]
    inner: Of[affine.Saved, "E P"]
    attention: Any  # the mechanism's
    backward: Callable[..., Any]  # the mechanism's
    gates: tuple[tuple[str, Callable[..., Any], Any], ...]  # the argument, its pair's backward, what that saved
    own: tuple[str, ...]  # the arguments that were `Params.own`
    reads: int
    heads: int


class Gradients(NamedTuple):
    x: Float[Array, "B N E"]
    params: Params


def look(x: Any, params: Params, mechanism: Any, heads: Any, key_mask: Any = None, **_: Any) -> None:
    """Check that heads divide the columns, and what the mechanism checks; ``x`` counts by its shape and dtype."""
    check_heads(params, mechanism, heads)
    options: dict[str, Any] = dict(mechanism.options)
    columns = params.inner.w.shape[1] // (mechanism.reads * heads)
    like_heads = np.broadcast_to(x.dtype.type(0), (x.shape[0], heads, x.shape[1], columns))  # no memory
    if key_mask is not None:
        options["key_mask"] = np.broadcast_to(key_mask[:, None], like_heads.shape[:-1])
    for name in mechanism.gates:
        options[name] = np.broadcast_to(x.dtype.type(0.5), like_heads.shape[:-1])
    if hasattr(mechanism.forward, "check"):
        own = split_own(params, mechanism)[0]
        mechanism.forward.check(*(like_heads,) * mechanism.reads, *own, **options)


def check_heads(params: Params, mechanism: Any, heads: Any, **_: Any) -> None:
    """Check that as many heads divide the columns."""
    check_sizes(heads=heads)
    inner, outer = params.inner.w.shape[1], params.outer.w.shape[0]
    if inner % (mechanism.reads * heads):
        raise ValueError(
            f"heads: {heads} heads of {mechanism.reads} projections need a multiple of as many columns of"
            f" params.inner.w, got {inner}"
        )
    if outer != inner // mechanism.reads:
        raise ValueError(f"params.outer.w: expected {inner // mechanism.reads} rows, got shape {params.outer.w.shape}")


@op(look=look)
def forward(
    x: Float[Array, "B N E"],
    params: Params,
    mechanism: Mechanism,
    *,
    heads: int,
    key_mask: Bool[Array, "B N"] | None = None,
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
    key_mask : ndarray of bool ``(B, N)``, optional
        True = may be attended, by all heads.

    Returns
    -------
    y : ndarray ``(B, N, E)``
    saved : Saved
    """
    projected, inner = affine.forward(x, params.inner)  # (1)
    parts = split(projected, mechanism.reads, heads)
    o, attention, gates, own = attend(parts, x, params, mechanism, key_mask)  # (2)
    y, outer = affine.forward(merge(o), params.outer)  # (3)
    return y, Saved(outer, inner, attention, mechanism.backward, gates, own, mechanism.reads, heads)


@op
def backward(d_y: Float[Array, "... Y"], saved: Saved) -> Gradients:
    """Back through (3), (2) and (1)."""
    d_merged, outer = affine.backward(d_y, saved.outer)  # (4)
    (d_o,) = split(d_merged, 1, saved.heads)
    grads = saved.backward(d_o, saved.attention)  # (5)
    d_x, inner = affine.backward(merge(*grads[: saved.reads]), saved.inner)  # (6)
    own = tuple(getattr(grads, name) for name in saved.own)
    for name, gate_backward, gate in saved.gates:
        d_x_of_gate, *d_gate = gate_backward(getattr(grads, name), gate)
        d_x, own = d_x + d_x_of_gate[:, 0], (*own, tuple(d_gate))
    return Gradients(d_x, Params(inner, outer, own))


def attend(parts: Any, x: Array, params: Params, mechanism: Mechanism, key_mask: Any, **options: Any) -> Any:
    """Equation (2): ``o``, what the mechanism and its gates saved, and the arguments that were `Params.own`."""
    own, of_gates = split_own(params, mechanism)
    options, gates = {**mechanism.options, **options}, []
    if key_mask is not None:
        options["key_mask"] = np.broadcast_to(key_mask[:, None], parts[0].shape[:-1])  # (B, H, N)
    for (name, pair), its in zip(mechanism.gates.items(), of_gates, strict=True):
        options[name], gate = pair.forward(x[:, None], *its)  # (B, H, N)
        gates.append((name, pair.backward, gate))
    o, attention = mechanism.forward(*parts, *own, **options)  # (2)
    names = mechanism.accepts["forward"][mechanism.reads :][: len(own)]
    return o, attention, tuple(gates), names


def split_own(params: Params, mechanism: Mechanism) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what of ``own`` are arguments of the mechanism, and what are parameters of its gates."""
    count = len(params.own) - len(mechanism.gates)
    return params.own[:count], params.own[count:]


def split(x: Array, count: int, heads: int) -> Array:
    """``(B, N, count H D)`` as ``count`` views ``(B, H, N, D)``."""
    b, n, width = x.shape
    return x.reshape(b, n, count, heads, width // (count * heads)).transpose(2, 0, 3, 1, 4)


def merge(*parts: Array) -> Array:
    """``(B, H, N, D)``, each of them, as ``(B, N, H D)``, side by side."""
    (b, _, n, _), rows = parts[0].shape, [part.swapaxes(1, 2) for part in parts]  # (B, N, H, D)
    return (rows[0] if len(rows) == 1 else np.stack(rows, axis=2)).reshape(b, n, -1)


# --- Token by token -------------------------------------------------------------------------------------------------


@op
def init_state(batch: int, params: Params, mechanism: Mechanism, *, heads: int, **more: Any) -> Any:
    """Return the mechanism's state before the first token.

    Parameters
    ----------
    batch : int
        ``B``.
    params, mechanism, heads
        As in :func:`forward`.
    **more
        What the mechanism's ``init_state`` needs besides its options: ``capacity`` of softmax's cache.
    """
    if mechanism.init_state is None:
        raise ValueError(f"mechanism: {mechanism.forward.__module__} has no recurrent form")
    check_sizes(batch=batch, heads=heads)
    width, dtype = params.inner.w.shape[1] // (mechanism.reads * heads), params.inner.w.dtype
    options = {**mechanism.options, **more, "dtype": dtype}
    accepted = {name: value for name, value in options.items() if name in mechanism.accepts["init_state"]}
    return mechanism.init_state((batch, heads), width, width, **accepted)


def look_at_step(params: Params, mechanism: Any, heads: Any, **_: Any) -> None:
    check_heads(params, mechanism, heads)
    if mechanism.step is None:
        raise ValueError(f"mechanism: {mechanism.forward.__module__} has no recurrent form")


@op(look=look_at_step)
def step(
    x_t: Float[Array, "B E"], params: Params, state: Any, mechanism: Mechanism, *, heads: int
) -> tuple[Array, Any]:
    """Equations (1)-(3) for one token: ``x_t (B, E)`` to ``y_t (B, E)``, and the state after it."""
    projected, _ = affine.forward(x_t, params.inner)  # (1)  (B, 3 E)
    q_t, k_t, v_t = projected.reshape(len(x_t), 3, heads, -1).swapaxes(0, 1)  # (B, H, D) each
    more = dict(mechanism.step_options)
    for (name, pair), its in zip(mechanism.gates.items(), split_own(params, mechanism)[1], strict=True):
        more[f"{name}_t"] = pair.forward(x_t[:, None, None], *its)[0][..., 0]  # (B, H)
    o_t, state = mechanism.step(q_t, k_t, v_t, state, **more)  # type: ignore[misc]  # (2)
    y_t, _ = affine.forward(o_t.reshape(len(x_t), -1), params.outer)  # (3)
    return y_t, state


@op
def draw(
    width: int, rng: np.random.Generator, *, reads: int = 3, own: tuple[Any, ...] = (), dtype: Any = np.float64
) -> Params:
    """Draw parameters to start from, each projection as `affine.draw`; ``own`` are the mechanism's, as they are."""
    parts = [affine.draw(width, width, rng, dtype=dtype) for _ in range(reads)]
    w, b = np.concatenate([part.w for part in parts], axis=1), np.concatenate([part.b for part in parts])
    return Params(affine.Params(w, b), affine.draw(width, width, rng, dtype=dtype), own)
