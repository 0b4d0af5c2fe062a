"""The digits that rewinding loses: the state ``S_{i-1}`` taken back out of ``S_i``, against computing it again.

    S_i = g S_{i-1} + phi(k_i) v_i^T                         (1)  forward, in float32
    S_{i-1} = (S_i - phi(k_i) v_i^T) / g                     (2)  the same, solved for the state before

(2) needs no memory, and in exact arithmetic it is right. In float32 it keeps every rounding error that (1) has made on
the way to ``S_N``. Without a gate (``g = 1``) an error that was small compared with ``S_N`` is not small compared with
``S_1``. With a gate below 1 every step back multiplies the error by ``1 / g``, while the state itself does not grow.
The truth is (1) in float64 on the same inputs.
"""

from typing import Any

import matplotlib
import numpy as np

from linattn_ref.attention.features.feature_maps import elu_plus_one
from linattn_ref.experiments.measuring.points import check_lengths
from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Ints, NDArray, Results, labels, style

__all__ = ["NOTHING_LEFT", "compute", "draw", "forward_states", "rewound_states"]

LENGTHS = tuple(2**p for p in range(6, 15))
GATES = (1.0, 0.9999, 0.999, 0.99, 0.9)  # g of (1), one constant per run
HEADS, WIDTH = 4, 8  # errors are averaged over the heads; C = M = WIDTH
SAMPLES = 120  # positions kept for a curve
NOTHING_LEFT = 1.0  # a relative error of 1: no digit is right
SHOWN = 1e6  # larger errors are not drawn
ABOVE = 1.6  # of a title, in its letters: room for names where lines leave the axes


QUICK = {"lengths": LENGTHS[:4]}


def compute(*, seed: int = 0, lengths: Ints = LENGTHS) -> Results:
    """Errors of both ways along the longest sequence, and the worst of them at every length.

    Parameters
    ----------
    seed : int
        Keys and values are independent and normal; the keys then go through elu + 1.
    lengths : sequence of int
        Rising; each sequence is the beginning of the longest.
    """
    check_lengths(lengths)
    longest, rng = lengths[-1], np.random.default_rng(seed)
    phi_k, _ = elu_plus_one.forward(rng.standard_normal((longest, HEADS, WIDTH)).astype(np.float32))
    v = rng.standard_normal((longest, HEADS, WIDTH)).astype(np.float32)
    v = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)  # (N, H, M + 1): the last column gives Z

    some = np.unique(np.geomspace(1, longest, SAMPLES).astype(np.int64)) - 1
    rows = []
    for gate in np.array(GATES, np.float32):
        truth = forward_states(phi_k.astype(np.float64), v.astype(np.float64), gate.astype(np.float64))
        again = forward_states(phi_k, v, gate)
        s_again, z_again = errors(again, truth)
        s_back, z_back, worst = s_again, z_again, []
        for n in lengths:
            s_back, z_back = errors(rewound_states(again[n - 1], phi_k[:n], v[:n], gate), truth[:n])
            worst.append((s_again[:n].max(), s_back.max()))
        curves = (s_again[some], s_back[some], z_again[some], z_back[some], s_back[::-1][some])
        rows.append((float(gate), *curves, *zip(*worst, strict=True)))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Results(  # relative errors of the states, the mean over the heads
        lengths=np.array(lengths),  # (T,)
        gates=columns[0],  # (G,), as float32 has them; 1 is no gate
        positions=some + 1,  # (P,), 1 ... the greatest length
        recomputed_s=columns[1],  # (G, P)
        rewound_s=columns[2],  # (G, P)
        recomputed_z=columns[3],  # (G, P)
        rewound_z=columns[4],  # (G, P)
        steps=some,  # (P,), back from the greatest length
        after_steps=columns[5],  # (G, P), of S rewound so far
        worst_recomputed=columns[6],  # (G, T), of S, the largest over all positions
        worst_rewound=columns[7],  # (G, T)
    )


def forward_states(phi_k: Array, v: Array, gate: Any) -> Array:
    """Every ``S_i`` by (1): ``phi_k (N, H, C)`` and ``v (N, H, M)`` give ``(N, H, C, M)``."""
    states = np.empty((*phi_k.shape, v.shape[-1]), v.dtype)
    s = np.zeros(states.shape[1:], v.dtype)
    for i in range(len(v)):
        s = gate * s + phi_k[i, :, :, None] * v[i, :, None, :]  # (1)
        states[i] = s
    return states


def rewound_states(last: Array, phi_k: Array, v: Array, gate: Any) -> Array:
    """Every ``S_i`` by (2), from ``S_N`` alone."""
    states = np.empty((*phi_k.shape, v.shape[-1]), v.dtype)
    s = last
    with np.errstate(over="ignore", invalid="ignore"):  # the errors leave the range of float32: that is the point
        for i in reversed(range(len(v))):
            states[i] = s
            s = (s - phi_k[i, :, :, None] * v[i, :, None, :]) / gate  # (2)
    return states


def errors(states: Array, truth: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``|S_i - truth| / |truth|`` and the same of ``Z_i``, its last column, at every position: ``(N,)`` each."""
    off = states.astype(np.float64) - truth
    parts = [
        np.linalg.norm(off[..., part], axis=(-2, -1)) / np.linalg.norm(truth[..., part], axis=(-2, -1))
        for part in (slice(None, -1), slice(-1, None))
    ]
    s, z = (np.nan_to_num(part.mean(axis=-1), nan=np.inf, posinf=np.inf) for part in parts)  # NaN: inf - inf
    return s, z


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """The state of causal linear attention in float32, rewound by subtraction (dashed) and computed again (solid),
    compared with float64. Without a gate the first states lose digits, more of them the longer the sequence; with a
    gate g every step back multiplies the error by 1/g (dotted), until no digit is left.
    """
    figure, axes = style.figure(1, 3, height=0.46, sharey=True)
    panels = {
        "without a gate": f"position i of {results.lengths[-1]:,}",
        "S with a gate g": "steps back from the last",
        "S, its worst position": "length N (tokens)",
    }
    for axis, (title, xlabel) in zip(axes, panels.items(), strict=True):
        axis.axhline(NOTHING_LEFT, color=style.GREY, linewidth=0.8)
        axis.set(xscale="log", yscale="log", ylim=(1e-8, 20), xlabel=xlabel)
        axis.set_title(title, pad=ABOVE * matplotlib.rcParams["axes.titlesize"])
    plain, gated, longer = axes

    x, z, s = results.positions, style.VERMILLION, style.BLUE
    plain.plot(x, results.rewound_z[0], "--", color=z)
    plain.plot(x, results.rewound_s[0], "--", color=s)
    for again, hue in ((results.recomputed_z[0], z), (results.recomputed_s[0], s)):
        plain.plot(x[again > 0], again[again > 0], "-", color=hue)  # the first state may have no error at all
    labels.at(plain, 4, 4e-4, "Z rewound", z, ha="left")
    labels.at(plain, 1, 1.2e-5, "S rewound", s, ha="left", va="top", xytext=(0, 0))
    labels.at(plain, 1, 2.5e-7, "S computed again", s, ha="left")
    labels.at(plain, x[-1], 8e-8, "Z computed again", z, ha="right", va="top", xytext=(0, 0))
    plain.set_ylabel("relative error of the state")
    plain.text(1, 1.4, "no digit left", color=style.GREY, fontsize="small")

    colours = style.sequence(len(results.gates))
    for gate, error, colour in zip(results.gates, results.after_steps, colours, strict=True):
        if gate < 1:
            with np.errstate(over="ignore"):
                amplified = error[0] * (1 / gate) ** results.steps
            for values, look in ((amplified, ":"), (error, "--")):
                shown = (values < SHOWN) & (results.steps > 0)
                gated.plot(results.steps[shown], values[shown], look, color=colour)
            end, height = results.steps[shown][-1], values[shown][-1]
            if height < NOTHING_LEFT:  # among the others: it is named where it begins
                end, height = 3, error[0]
            _name_gate(gated, end, height, gate, colour)

    lines = zip(results.gates, results.worst_rewound, results.worst_recomputed, colours, strict=True)
    for gate, rewound, recomputed, colour in lines:
        shown = rewound < SHOWN
        longer.plot(results.lengths[shown], rewound[shown], "o--", color=colour)
        longer.plot(results.lengths, recomputed, "s-", color=colour, markersize=2)
        _name_gate(longer, results.lengths[shown][-1], rewound[shown][-1], gate, colour)
    labels.at(longer, results.lengths[-1], 2e-8, "solid: computed again", style.BLACK, ha="right")
    return figure


def _name_gate(axis: Axes, x: float, y: float, gate: float, colour: Any) -> None:
    """Where its line leaves the axes, or ends."""
    name = "no gate" if gate == 1 else f"{gate:.4g}"
    where: dict[str, Any] = {"va": "top", "xytext": (0, -7)} if gate == 1 else {}
    labels.at(axis, x, y if y < 1 else 20, name, colour, **where)
