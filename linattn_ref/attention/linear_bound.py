"""A step of linear attention that is bound to its arrays, for a loop that decodes.

Decoding calls ``step`` once a token, for so little arithmetic that to look at the arguments can take longer. Where the
loop uses the same arrays throughout, they need be looked at only once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_kernels
from linattn_ref.attention.exponents import kernel_of
from linattn_ref.attention.feature_maps import FeatureMap, elu_plus_one
from linattn_ref.attention.linear_recurrent import State, check_eps, check_step
from linattn_ref.kernels import reference


class BoundStep(NamedTuple):
    """`linear.step` on arrays that were given once."""

    run: Callable[[], None]  # one token: reads q_t, k_t and v_t, writes out_t, moves the state on in place
    out_t: Array  # (..., M)


def bind_step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    *,
    feature_map: FeatureMap = elu_plus_one,
    eps: float = 1e-6,
    kernels: Any = reference,
) -> BoundStep:
    """`linear.step` for a loop that decodes into the same arrays again and again: everything is checked once, here.

    With the kernels of ``jit`` and ``elu_plus_one`` nothing is allocated later either, and the call is all of the work.

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
        C-contiguous, not on a GPU. What stands in them when ``run`` is called is the next token.
    state : State
        Its buffers, C-contiguous too, are the state throughout.
    feature_map : FeatureMap
        No exponential one: the scale of its state is another array after each step.
    eps, kernels
        As in `linear.step`.

    Returns
    -------
    BoundStep

    Raises
    ------
    TypeError, ValueError
        Naming the argument that breaks the conventions above.
    """
    kernel, eps = check_kernels(kernels, "causal_product"), check_eps(eps, feature_map)
    if feature_map.split is not None:
        raise ValueError(f"feature_map: expected one whose state has no scale, got {feature_map.name}")
    check_step(q_t, k_t, v_t, state, feature_map)
    for name, x in (("q_t", q_t), ("k_t", k_t), ("v_t", v_t), ("state.s", state.s), ("state.z", state.z)):
        if not x.flags.c_contiguous:
            raise ValueError(f"{name}: expected a C-contiguous array, got strides {x.strides} of shape {x.shape}")
    out_t = np.zeros_like(v_t)
    rest = v_t, state.s, state.z, eps, out_t
    with_features = kernel_of(feature_map, kernels)
    if with_features is not None and hasattr(with_features, "bind_step"):
        return BoundStep(with_features.bind_step(q_t, k_t, *rest), out_t)
    bind = getattr(kernel, "bind_step", partial(reference.causal_product.bind_step, step=kernel.step))
    phi_q, phi_k = (np.array(feature_map.forward(x)[0], order="C") for x in (q_t, k_t))  # (..., C)
    run = partial(_run, feature_map, q_t, k_t, phi_q, phi_k, bind(phi_q, phi_k, *rest))
    return BoundStep(run, out_t)


def _run(
    feature_map: FeatureMap, q_t: Array, k_t: Array, phi_q: Array, phi_k: Array, run_kernel: Callable[[], None]
) -> None:
    phi_q[...], phi_k[...] = feature_map.forward(q_t)[0], feature_map.forward(k_t)[0]
    run_kernel()
