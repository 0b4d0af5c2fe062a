"""Linear attention as a recurrent network: one step of its two hidden states, a token at a time.

    S_i = S_{i-1} + phi(k_i) v_i^T                           (1)  (C, M)
    Z_i = Z_{i-1} + phi(k_i)                                 (2)  (C,)
    out_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps)          (3)

Constant time and memory a token, where softmax attention reads a cache that grows. With ``H`` heads it is a network of
``2H`` hidden states.

>>> import numpy as np
>>> state = init_state((), 1, 1, feature_map=elu_plus_one)
>>> for k, v in (([2.0], [10.0]), ([0.0], [20.0])):  # phi(k) is 3, then 1; phi(q) is 1
...     out, state = step(np.zeros(1), np.array(k), np.array(v), state, eps=0.0)
>>> out, state.s, state.z
(array([12.5]), array([[50.]]), array([4.]))

Decoding calls :func:`step` once a token, for so little arithmetic that to look at the arguments can take longer. Where
the loop uses the same arrays throughout, :func:`bind_step` looks at them only once.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.4, equations 16-20.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from linattn_ref.attention import linear_scaled
from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.door import door
from linattn_ref.attention.feature_maps import FeatureMap, elu_plus_one, in_room, is_exponential
from linattn_ref.attention.fields import documented
from linattn_ref.attention.linear_checks import check_bind_step, check_step, check_summarise
from linattn_ref.attention.linear_state import State, init_state, spend
from linattn_ref.attention.linear_sums import add_up
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.ownership import Count, new_count
from linattn_ref.attention.rooms import CausalProductRoom
from linattn_ref.kernels import reference

__all__ = ["BoundStep", "bind_step", "init_state", "step", "summarise"]


@door(check_step)
def step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    *,
    feature_map: FeatureMap = elu_plus_one,
    eps: float = 1e-6,
    kernels: CausalProductRoom = reference,
) -> tuple[Array, State]:
    """One token of the recurrent network, equations (1)-(3).

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
    state : State
        From :func:`init_state`, ``step`` or ``forward``. It is spent, see ``ownership.py``.
    feature_map, eps, kernels
        As in ``forward``. A state on a GPU comes from ``forward`` there, or from ``init_state(..., like=q_t)``.

    Returns
    -------
    out_t : ndarray ``(..., M)``
    state : State
    """
    if is_exponential(feature_map):
        return linear_scaled.step(q_t, k_t, v_t, state, feature_map=feature_map, kernels=kernels)
    state, phi = spend(state), in_room(feature_map, kernels)
    if phi is not feature_map:  # a kernel for both at once
        return phi.step(q_t, k_t, v_t, state.s, state.z, eps), state  # (1)-(3)
    phi_q, phi_k = phi.forward(q_t)[0], phi.forward(k_t)[0]  # (..., C)
    return kernels.causal_product.step(phi_q, phi_k, v_t, state.s, state.z, eps), state  # (1)-(3)


@door(check_summarise)
def summarise(k: Array, v: Array, *, feature_map: FeatureMap = elu_plus_one, key_mask: Mask | None = None) -> State:
    """The state after some keys, equations (1) and (2) in one sum: what a machine has to say about its piece.

    Parameters
    ----------
    k, v : ndarray, ``(..., L, D)``, ``(..., L, M)``
    feature_map, key_mask
        As in ``forward``.
    """
    if is_exponential(feature_map):
        return linear_scaled.summarise(k, v, feature_map=feature_map, key_mask=key_mask)
    phi_k = zero_masked(feature_map.forward(zero_masked(k, key_mask))[0], key_mask)
    return State(*add_up(phi_k, zero_masked(v, key_mask)), steps=new_count())


# --- Bound to its arrays --------------------------------------------------------------------------------------------


@documented
class BoundStep(NamedTuple):
    """`linear.step` on arrays that were given once."""

    run: Callable[[], None]  # one token: reads q_t, k_t and v_t, writes out_t, moves the state on in place
    out_t: Array  # (..., M)
    arrays: State  # what it works in
    own: Count  # of the steps taken in them, those that it knows of

    @property
    def state(self) -> State:
        """The state after the last token, to go on from in another way; ``run`` is an error from there on."""
        return self.arrays._replace(taken=int(self.own[0]))


@door(check_bind_step)
def bind_step(
    q_t: Array,
    k_t: Array,
    v_t: Array,
    state: State,
    *,
    feature_map: FeatureMap = elu_plus_one,
    eps: float = 1e-6,
    kernels: CausalProductRoom = reference,
) -> BoundStep:
    """`linear.step` for a loop that decodes into the same arrays again and again: everything is checked once, here.

    With the kernels of ``jit`` and ``elu_plus_one`` nothing is allocated later either, and the call is all of the work.

    Parameters
    ----------
    q_t, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
        C-contiguous, not on a GPU. What stands in them when ``run`` is called is the next token.
    state : State
        It is spent. Its arrays, C-contiguous too, are moved on from token to token.
    feature_map, eps, kernels
        As in `linear.step`.
    """
    if is_exponential(feature_map):
        return BoundStep(*linear_scaled.bind_step(q_t, k_t, v_t, state, feature_map=feature_map, kernels=kernels))
    state, out_t = spend(state), np.zeros_like(v_t)
    own = state.steps.copy()  # type: ignore[union-attr]
    rest = v_t, state.s, state.z, eps, out_t
    phi, turns = in_room(feature_map, kernels), (state.steps, own)
    if phi is not feature_map and hasattr(phi, "bind_step"):
        return BoundStep(phi.bind_step(q_t, k_t, *rest, turns=turns), out_t, state, own)
    bind = getattr(kernels.causal_product, "bind_step", None) or partial(
        reference.causal_product.bind_step, step=kernels.causal_product.step
    )
    phi_q, phi_k = (np.array(feature_map.forward(x)[0], order="C") for x in (q_t, k_t))  # (..., C)
    run = partial(_run, feature_map, q_t, k_t, phi_q, phi_k, bind(phi_q, phi_k, *rest, turns=turns))
    return BoundStep(run, out_t, state, own)


def _run(
    feature_map: FeatureMap, q_t: Array, k_t: Array, phi_q: Array, phi_k: Array, run_kernel: Callable[[], None]
) -> None:
    phi_q[...], phi_k[...] = feature_map.forward(q_t)[0], feature_map.forward(k_t)[0]
    run_kernel()
