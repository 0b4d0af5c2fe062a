"""Multi-head attention (Vaswani et al. 2017), with any mechanism inside.

    [q, k, v] = x W + b                                      (1)  one product for all heads
    o_h = attention(q_h, k_h, v_h)                           (2)  head h has D = E / H columns of each
    y = [o_1 ... o_H] W_o + b_o                              (3)

The gradient is that of the parts, last to first. To cut the columns into heads moves no number: heads are views of the
same memory, ``(B, N, H, D)`` seen as ``(B, H, N, D)``.

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

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, Mask, check_array, check_bool, check_shape, check_sizes
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import room_of
from linattn_ref.nn import affine
from linattn_ref.nn.buffers import Work, add_into, fresh
from linattn_ref.nn.mechanism import Mechanism, unchecked

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward", "init_state", "step"]


@documented
class Params(NamedTuple):
    """What is learned."""

    inner: affine.Params  # (E, 3 E), (3 E,): W_q, W_k, W_v side by side; as many as the mechanism reads
    outer: affine.Params  # (E, E), (E,): W_o
    own: tuple[Any, ...] = ()  # the mechanism's own, such as (e, f) of Linformer; last a tuple for each of its gates


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    inner: affine.Saved
    attention: Any  # the mechanism's
    outer: affine.Saved
    gates: tuple[tuple[str, str, Any], ...]  # the argument, the module of its pair, what that saved
    mechanism: str  # the module of its functions
    own: tuple[str, ...]  # the arguments that were `Params.own`
    reads: int
    heads: int


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (B, N, E)
    params: Params


def check_forward(
    x: Array, params: Params, mechanism: Mechanism, *, heads: int, key_mask: Mask | None = None, **_: Any
) -> None:
    """Shapes and dtypes of :func:`forward`, and what the mechanism says to them."""
    check_array("x", x, ndim=3)
    check_params(x, params, mechanism, heads)
    options = dict(mechanism.options)
    (b, n, _), d = x.shape, params.inner.w.shape[1] // (mechanism.reads * heads)
    if key_mask is not None:
        check_bool("key_mask", key_mask)
        check_shape("key_mask", key_mask, x.shape[:-1], "(B, N)")  # type: ignore[arg-type]
        options["key_mask"] = np.broadcast_to(key_mask[:, None], (b, heads, n))
    own = split_own(params, mechanism)[0]
    for name in mechanism.gates:
        options[name] = np.broadcast_to(x.dtype.type(0.5), (b, heads, n))
    check = getattr(mechanism.forward, "check", None)
    if check is not None:
        like_heads = np.broadcast_to(x.dtype.type(0), (b, heads, n, d))  # a shape and a dtype, no memory
        check(*(like_heads,) * mechanism.reads, *own, **options)


def check_params(x: Array, params: Params, mechanism: Mechanism, heads: int) -> None:
    """``params`` for rows of ``x (..., E)``."""
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism: expected what linattn_ref.nn.mechanism.of gives, got {mechanism!r}")
    check_sizes(heads=heads)
    width, inner = x.shape[-1], params.inner.w.shape[-1]
    if inner % (mechanism.reads * heads):
        raise ValueError(
            f"heads: {heads} heads of {mechanism.reads} projections need a multiple of as many columns of"
            f" params.inner.w, got {inner}"
        )
    affine.check_forward(x, params.inner)
    check_shape("params.inner.w", params.inner.w, (width, inner), "(E, reads E)")
    check_shape("params.outer.w", params.outer.w, (inner // mechanism.reads, params.outer.w.shape[-1]), "(E, E)")


@door(check_forward)
def forward(
    x: Array,
    params: Params,
    mechanism: Mechanism,
    *,
    heads: int,
    key_mask: Mask | None = None,
    work: Work = fresh,
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
    work
        See `linattn_ref.nn`.

    Returns
    -------
    y : ndarray ``(B, N, E)``
    saved : Saved
    """
    projected, inner = affine.forward.unchecked(x, params.inner, work=work)  # (1)  (B, N, reads E)
    parts = split_heads(projected, mechanism.reads, heads)  # reads of (B, H, N, D)
    options, gates, (own, of_gates) = dict(mechanism.options), [], split_own(params, mechanism)
    if key_mask is not None:
        options["key_mask"] = np.broadcast_to(key_mask[:, None], parts[0].shape[:-1])  # (B, H, N)
    for (name, pair), its in zip(mechanism.gates.items(), of_gates, strict=True):
        options[name], gate = unchecked(pair.forward)(x[:, None], *its)  # (B, H, N)
        gates.append((name, pair.__name__, gate))
    if "out" in mechanism.accepts["forward"]:
        options["out"] = split_heads(work((*x.shape[:-1], params.outer.w.shape[0]), x.dtype), 1, heads)[0]
    out, attention = unchecked(mechanism.forward)(*parts, *own, **options)  # (2)  (B, H, N, D)
    merged = merge_heads(out, work)  # (B, N, E)
    y, outer = affine.forward.unchecked(merged, params.outer, work=work)  # (3)
    names = mechanism.accepts["forward"][mechanism.reads :][: len(own)]
    module = mechanism.forward.__module__
    return y, Saved(inner, attention, outer, tuple(gates), module, names, mechanism.reads, heads)


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    affine.check_backward(d_y, saved.outer)


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Back through (3), (2) and (1)."""
    into_inner, into_outer, into_own = into or (None, None, None)
    d_merged, outer = affine.backward.unchecked(d_y, saved.outer, into=into_outer, work=work)  # of (3)
    d_out = split_heads(d_merged, 1, saved.heads)[0]  # (B, H, N, D)
    grads = unchecked(room_of(saved.mechanism).backward)(d_out, saved.attention)  # of (2)
    d_projected = work((*d_y.shape[:-1], saved.inner.params.w.shape[1]), d_y.dtype)  # (B, N, reads E)
    for part, gradient in zip(split_heads(d_projected, saved.reads, saved.heads), grads[: saved.reads], strict=True):
        part[...] = gradient
    d_x, inner = affine.backward.unchecked(d_projected, saved.inner, into=into_inner, work=work)  # of (1)
    own = tuple(getattr(grads, name) for name in saved.own)
    for name, pair, its in saved.gates:
        gate = unchecked(room_of(pair).backward)(getattr(grads, name), its)
        d_x += gate[0][:, 0]
        own += (tuple(gate[1:]),)
    return Gradients(d_x, Params(inner, outer, add_into(into_own, own) if own else own))


def split_own(params: Params, mechanism: Mechanism) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What the mechanism is given of ``own``, and what its gates are made with."""
    count = len(params.own) - len(mechanism.gates)
    return params.own[:count], params.own[count:]


def split_heads(x: Array, count: int, heads: int) -> Any:
    """``(B, N, count H D)`` as ``count`` views ``(B, H, N, D)``."""
    b, n, width = x.shape
    return x.reshape(b, n, count, heads, width // (count * heads)).transpose(2, 0, 3, 1, 4)


def merge_heads(x: Array, work: Work = fresh) -> Array:
    """``(B, H, N, D)`` as ``(B, N, H D)``: a copy, unless its memory is in that order already."""
    b, h, n, d = x.shape
    rows = x.swapaxes(1, 2)  # (B, N, H, D)
    if not rows.flags.c_contiguous:
        merged = work(rows.shape, x.dtype)
        merged[...] = rows
        rows = merged
    return rows.reshape(b, n, h * d)


# --- Token by token -------------------------------------------------------------------------------------------------


@plain_numbers
def init_state(batch: int, params: Params, mechanism: Mechanism, *, heads: int, **more: Any) -> Any:
    """The mechanism's state before the first token.

    Parameters
    ----------
    batch : int
        ``B``.
    params, mechanism, heads
        As in :func:`forward`.
    **more
        What the mechanism's ``init_state`` needs beside its options: ``capacity`` of softmax's cache.
    """
    if mechanism.init_state is None:
        raise ValueError(f"mechanism: {mechanism.forward.__module__} has no recurrent form")
    check_sizes(batch=batch, heads=heads)
    width, dtype = params.inner.w.shape[1] // (mechanism.reads * heads), params.inner.w.dtype
    options = {**mechanism.options, **more, "dtype": dtype}
    accepted = {name: value for name, value in options.items() if name in mechanism.accepts["init_state"]}
    return mechanism.init_state((batch, heads), width, width, **accepted)


@plain_numbers
def step(
    x_t: Array, params: Params, state: Any, mechanism: Mechanism, *, heads: int, overwrite_state: bool = False
) -> tuple[Array, Any]:
    """Equations (1)-(3) for one token: ``x_t (B, E)`` to ``y_t (B, E)``, and the state after it.

    With ``overwrite_state`` a backend may work in the arrays of the state, whose content is undefined afterwards.
    """
    if mechanism.step is None:
        raise ValueError(f"mechanism: {mechanism.forward.__module__} has no recurrent form")
    check_array("x_t", x_t)
    check_params(x_t, params, mechanism, heads)
    projected, _ = affine.forward.unchecked(x_t, params.inner)  # (1)  (B, 3 E)
    q_t, k_t, v_t = projected.reshape(len(x_t), 3, heads, -1).swapaxes(0, 1)  # (B, H, D) each
    more: dict[str, Any] = dict(mechanism.step_options)
    if overwrite_state and "overwrite_state" in mechanism.accepts["step"]:
        more["overwrite_state"] = True
    for (name, pair), its in zip(mechanism.gates.items(), split_own(params, mechanism)[1], strict=True):
        more[f"{name}_t"] = unchecked(pair.forward)(x_t[:, None, None], *its)[0][..., 0]  # (B, H)
    out_t, state = mechanism.step(q_t, k_t, v_t, state, **more)  # (2)
    y_t, _ = affine.forward.unchecked(out_t.reshape(len(x_t), -1), params.outer)  # (3)
    return y_t, state


@plain_numbers
def draw(
    width: int, rng: np.random.Generator, *, reads: int = 3, own: tuple[Any, ...] = (), dtype: Any = np.float64
) -> Params:
    """Parameters to start from, each projection as `affine.draw`; ``own`` are the mechanism's, as they are."""
    parts = [affine.draw(width, width, rng, dtype=dtype) for _ in range(reads)]
    w, b = np.concatenate([part.w for part in parts], axis=1), np.concatenate([part.b for part in parts])
    return Params(affine.Params(w, b), affine.draw(width, width, rng, dtype=dtype), own)
