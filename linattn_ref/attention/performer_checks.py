"""What the Performer checks at its doors: directions, and what linear attention checks."""

from __future__ import annotations

from typing import Any

from linattn_ref.attention import linear_checks
from linattn_ref.attention.arguments import check_array
from linattn_ref.attention.feature_maps_favor import KINDS
from linattn_ref.attention.feature_maps_random import check_omega
from linattn_ref.attention.linear_state import check_sizes_of_state

__all__ = ["check_bind_step", "check_directions", "check_forward", "check_init_state", "check_step"]


def check_forward(
    q: Any, k: Any, v: Any, omega: Any, *, kind: Any = "positive", eps: Any = 0.0, **options: Any
) -> None:
    check_directions(omega, kind)
    linear_checks.check_forward(q, k, v, feature_map=KINDS[kind](omega), eps=eps, **options)
    check_directions(omega, kind, q.shape[-1])


def check_init_state(
    leading: Any, key_width: Any, value_width: Any, omega: Any, *, kind: Any = "positive", **options: Any
) -> None:
    check_sizes_of_state(leading, key_width, value_width, **options)
    check_directions(omega, kind, int(key_width))


def check_step(
    q_t: Any, k_t: Any, v_t: Any, state: Any, omega: Any, *, kind: Any = "positive", eps: Any = 0.0, **options: Any
) -> None:
    check_array("q_t", q_t, ndim=1)
    check_directions(omega, kind, q_t.shape[-1])
    linear_checks.check_step(q_t, k_t, v_t, state, feature_map=KINDS[kind](omega), eps=eps, **options)


def check_bind_step(q_t: Any, k_t: Any, v_t: Any, state: Any, omega: Any, **options: Any) -> None:
    check_step(q_t, k_t, v_t, state, omega, **options)
    linear_checks.check_contiguous(q_t=q_t, k_t=k_t, v_t=v_t, **{"state.s": state.s, "state.z": state.z})


def check_directions(omega: Any, kind: Any = "positive", width: int | None = None) -> None:
    """``kind`` is one, and ``omega (m, D)`` has ``D = width``, if that is given."""
    if not (isinstance(kind, str) and kind in KINDS):
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    check_omega(omega)
    if width is not None and omega.shape[-1] != width:
        raise ValueError(f"omega: expected one column an entry of q, D = {width}, got shape {omega.shape}")
