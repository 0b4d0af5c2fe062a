"""The layer norm of keys and values in the Long-Short Transformer (Zhu et al. 2021; Ba et al. 2016).

    y = (x - mean x) / s,   s = sqrt(var x + 1e-5)           (1)
    norm(x) = a y + b                                        (2)  gain a and bias b, one number an entry

The gradient, by hand
---------------------
With ``G`` the gradient of a row of ``norm(x)``,

    da = sum G * y,   db = sum G                             (3)  over all rows
    dy = a G,   dx = (dy - mean dy - y mean(dy * y)) / s     (4)

In (4), ``mean dy`` comes from the mean of (1): a step that is the same in all entries does not change ``y``. The last
term comes from ``s``: since ``ds / dx_i = y_i / W``, ``y = (x - mean x) / s`` loses ``y_j y_i / (W s)``, which summed
with ``dy_j`` is ``y_i mean(dy * y) / s``.

References
----------
Ba, Kiros and Hinton (2016), "Layer normalization".
"""

from __future__ import annotations

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_shape

EPS = 1e-5
Pair = tuple[Array, Array]  # gain and bias, (W,) each
Norm = tuple[Pair, Pair]  # for keys (D,) and for values (M,)


def layer_norm(x: Array, pair: Pair | None) -> Array:
    """Equation (2) for each row of ``x (..., W)``; ``x`` itself where there is no norm."""
    if pair is None:
        return x
    (gain, bias), (y, _) = pair, standardise(x)
    return gain * y + bias  # (2)


def layer_norm_backward(d_out: Array, x: Array, pair: Pair | None) -> tuple[Array, Pair | None]:
    """Gradients of ``x`` and of gain and bias."""
    if pair is None:
        return d_out, None
    y, s = standardise(x)
    rows = tuple(range(x.ndim - 1))
    d_gain, d_bias = (d_out * y).sum(axis=rows), d_out.sum(axis=rows)  # (3)  (W,)
    d_y = pair[0] * d_out  # (4)
    d_x = (d_y - d_y.mean(axis=-1, keepdims=True) - y * (d_y * y).mean(axis=-1, keepdims=True)) / s  # (4)
    return d_x, (d_gain, d_bias)


def standardise(x: Array) -> tuple[Array, Array]:
    """``y`` and ``s (..., 1)`` of (1)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    s = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(EPS))
    return centred / s, s  # (1)


def check_norm(name: str, norm: Norm | None, k: Array, v: Array | None) -> None:
    """``norm`` is None or ``((gain, bias), (gain, bias))``, ``(D,)`` for keys, ``(M,)`` for values if there are any."""
    if norm is None:
        return
    if not (_is_pair(norm) and all(_is_pair(x) for x in norm)):
        raise TypeError(f"{name}: expected None or ((gain, bias) of keys, (gain, bias) of values), got {norm!r}")
    for pair, x, letter in ((norm[0], k, "D"), (norm[1], v, "M")):
        for array in pair if x is not None else ():
            check_array(name, array, ndim=1, dtype=k.dtype)
            check_shape(name, array, x.shape[-1:], f"({letter},)")  # type: ignore[union-attr]


def _is_pair(x: object) -> bool:
    return isinstance(x, (tuple, list)) and len(x) == 2
