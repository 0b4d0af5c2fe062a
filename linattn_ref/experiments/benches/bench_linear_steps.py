"""One token of the recurrent form, by each package, called from Python: as `bench_linear` times it.

Decoding makes one small step after another, so that what a call costs before any arithmetic counts. ``jit`` works in
the arrays of the state (``overwrite_state=True``); ``jit, new state`` leaves them alone, and copies.
PyTorch's step is written in two ways: ``pytorch, new state`` as one would, with matrix products and a new state,
``S = S + bmm(k^T, v)``; and ``pytorch, in place`` with the fewest calls, the state moved on where it is.
fast-transformers has a module for it, ``RecurrentLinearAttention``, which takes queries and keys, also in place where
no gradient is asked for.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from linattn_ref.attention import linear
from linattn_ref.attention.features.feature_maps import elu_plus_one
from linattn_ref.experiments.benches.engine import BACKENDS, Call
from linattn_ref.experiments.benches.peers import EPS
from linattn_ref.experiments.publishing.kit import Array, Generator
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit.loops import causal_product

__all__ = ["STEP", "STEP_KERNEL", "steps"]

STEP_KERNEL, STEP = "kernel step", "step"


def steps(
    batch: int, heads: int, width: int, torch: Any, package: Any, rng: Generator
) -> Iterator[tuple[str, dict[str, Call]]]:
    """The two tasks of one token, each with its calls by name, ``jit`` first.

    ``package`` is fast-transformers.
    """
    q, k, v = rng.standard_normal((3, batch, heads, width)).astype(np.float32)
    phi_q, phi_k = elu_plus_one.forward(q)[0], elu_plus_one.forward(k)[0]
    start = partial(linear.init_state, (batch, heads), width, width, dtype=v.dtype)
    at_once = start()
    alone: dict[str, Call] = {"jit": lambda: (causal_product.step(phi_q, phi_k, v, at_once.s, at_once.z, EPS),)}
    whole: dict[str, Call] = {}
    for name, backend in BACKENDS.items():
        whole[name] = _step(backend, q, k, v, start(), overwrite_state=True)
    whole["jit, new state"] = _step(jit, q, k, v, start(), overwrite_state=False)
    if torch is not None:
        for name, make in (("pytorch, new state", new_state), ("pytorch, in place", in_place)):
            alone[name] = make(torch, phi_q, phi_k, v, *start()[:2], features=False)
            whole[name] = make(torch, q, k, v, *start()[:2], features=True)
    if package is not None:
        whole["fast-transformers"] = recurrent_module(torch, package, q, k, v, *start()[:2])
    yield from ((STEP_KERNEL, alone), (STEP, whole))


def _step(backend: Any, q: Array, k: Array, v: Array, state: linear.State, *, overwrite_state: bool) -> Call:
    def step() -> Sequence[Array]:
        nonlocal state
        out, state = linear.step(q, k, v, state, eps=EPS, kernels=backend, overwrite_state=overwrite_state)
        return (out,)

    return step


# --- PyTorch; all become tensors of the shapes that fit, before any clock starts ------------------------------------


def new_state(torch: Any, q: Any, k: Any, v: Any, s: Any, z: Any, *, features: bool) -> Call:
    """``q, k (B, H, C)``, ``v (B, H, M)``, ``s (B, H, C, M)``, ``z (B, H, C)``; elu + 1 of ``q, k`` if ``features``."""
    q, k, v, *state = (torch.from_numpy(x).flatten(0, 1) for x in (q, k, v, s, z))  # (B H, ...)
    elu = torch.nn.functional.elu

    def step() -> Sequence[Array]:
        phi_q, phi_k = (elu(q) + 1, elu(k) + 1) if features else (q, k)
        s = state[0] + torch.bmm(phi_k.unsqueeze(2), v.unsqueeze(1))  # (B H, C, M)
        z = state[1] + phi_k
        numerator = torch.bmm(phi_q.unsqueeze(1), s).squeeze(1)  # (B H, M)
        state[:] = s, z
        return (numerator / ((phi_q * z).sum(1, keepdim=True) + EPS),)

    return step


def in_place(torch: Any, q: Any, k: Any, v: Any, s: Any, z: Any, *, features: bool) -> Call:
    """The same, nothing allocated that can be written over."""
    q, k, v, s, z = (torch.from_numpy(x).flatten(0, 1) for x in (q, k, v, s, z))  # (B H, ...)
    elu = torch.nn.functional.elu

    def step() -> Sequence[Array]:
        phi_q, phi_k = (elu(q).add_(1), elu(k).add_(1)) if features else (q, k)
        s.baddbmm_(phi_k.unsqueeze(2), v.unsqueeze(1))  # (B H, C, M)
        z.add_(phi_k)
        numerator = torch.bmm(phi_q.unsqueeze(1), s).squeeze(1)  # (B H, M)
        return (numerator.div_((phi_q * z).sum(1, keepdim=True).add_(EPS)),)

    return step


# --- fast-transformers ----------------------------------------------------------------------------------------------


def recurrent_module(torch: Any, package: Any, q: Any, k: Any, v: Any, s: Any, z: Any) -> Call:
    """Its module for one token, in evaluation: no gradient is asked for."""
    module = package.recurrent.attention.RecurrentLinearAttention(q.shape[-1], eps=EPS).eval()
    q, k, v, s, z = (torch.from_numpy(x) for x in (q, k, v, s, z))
    state = [s, z]

    def step() -> Sequence[Array]:
        out, state[:] = module(q, k, v, state=state)
        return (out,)

    return step
