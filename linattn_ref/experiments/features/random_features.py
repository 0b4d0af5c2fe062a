"""How far estimates of a kernel by random features are off: closed forms against Monte Carlo.

Four panels: the softmax kernel's three estimators over the angle of query and key, and over their length; what
orthogonal directions gain; and four kernels of ``x - y`` by Bochner's theorem, over the number of directions. The
formulas are in `linattn_ref.theory.random_features`.
"""

from collections.abc import Sequence

import numpy as np

from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Generator, Ints, NDArray, Results, labels, style
from linattn_ref.theory import random_features as rf

__all__ = ["LOOKS", "compute", "draw", "slope"]

MARKERS: dict[rf.Unbiased, str] = {"trig": "o", "positive": "s", "hyperbolic": "^"}
LOOKS = {kind: (style.FEATURES[kind], marker) for kind, marker in MARKERS.items()}


M, WIDTH = 64, 16  # directions, and D, of the upper panels
LENGTH = 1.0  # |x| = |y| of the left one
TURN, LONGEST = 120, 2.0  # degrees between, and the greatest length, of the right one
WIDTHS = (4, 16, 64)  # m = D of orthogonal directions
DELTA = (0.8, -0.5, 0.3)  # x - y of the kernels
QUICK = {"trials": 200, "directions": (4, 16, 64)}


def compute(*, seed: int = 0, directions: Ints = (4, 16, 64, 256, 1024), trials: int = 4000) -> Results:
    """Evaluate the closed forms and measure some points of each.

    Parameters
    ----------
    seed : int
    directions : sequence of int
        ``m`` of the kernels.
    trials : int
        Draws of all directions per point; a quarter as many for the kernels.
    """
    rng = np.random.default_rng(seed)
    angles, points_angle = np.linspace(0, 180, 91), np.linspace(0, 180, 10)
    lengths, points_length = np.linspace(0.02, LONGEST, 91), np.linspace(0.2, LONGEST, 10)
    distances = np.linspace(0.02, 3, 150)

    def along(grid: tuple[Array, Array], points: tuple[Array, Array]) -> dict[str, Results]:
        return {kind: _curve(kind, grid, points, trials, rng) for kind in LOOKS}

    return Results(
        m=M,
        width=WIDTH,  # D
        length=LENGTH,  # |x| = |y| of the angles
        angles=angles,  # (G,), in degrees
        points_angle=points_angle,  # (P,)
        by_angle=along(pairs(LENGTH, angles), pairs(LENGTH, points_angle)),
        turn=TURN,  # the angle of the lengths
        lengths=lengths,  # (G,)
        points_length=points_length,  # (P,)
        by_length=along(pairs(lengths, TURN), pairs(points_length, TURN)),
        distances=distances,  # (G,), |s| of the gain
        widths=WIDTHS,
        gain={kind: [orthogonal_over_independent(kind, distances, d) for d in WIDTHS] for kind in LOOKS},
        directions=tuple(directions),  # (T,)
        delta=DELTA,  # x - y of the kernels
        kernels={  # errors over directions, not relative
            name: _kernel_curve(kernel, np.array(DELTA), directions, trials, rng) for name, kernel in rf.KERNELS.items()
        },
    )


def pairs(length: float | Array, degrees: float | Array, width: int = WIDTH) -> tuple[Array, Array]:
    """``x`` and ``y (P, D)`` of the same length at an angle; either may be an array ``(P,)``."""
    length, angle = np.broadcast_arrays(length, np.radians(degrees))
    x, y = np.zeros((2, *length.shape, width))
    x[..., 0], y[..., 0], y[..., 1] = length, length * np.cos(angle), length * np.sin(angle)
    return x, y


def _curve(
    kind: rf.Unbiased, grid: tuple[Array, Array], points: tuple[Array, Array], trials: int, rng: Generator
) -> Results:
    measured = [
        rf.mean_of(rf.squared_errors(kind, x, y, M, trials=trials, rng=rng) / rf.softmax_kernel(x, y) ** 2)
        for x, y in zip(*points, strict=True)
    ]
    # Relative mean squared errors: (G,) on a fine grid, (P,) at some points of it
    return Results(stated=rf.relative_mse(kind, *grid, M), measured=measured)


def orthogonal_over_independent(kind: rf.Unbiased, distances: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The mean squared error of ``m = D`` orthogonal directions over that of independent ones: of ``|s|`` alone."""
    x = np.zeros((len(distances), width))
    x[:, 0] = distances  # and y = 0: s = x for all three kinds
    y = np.zeros_like(x)
    return rf.mse(kind, x, y, width, orthogonal=True) / rf.mse(kind, x, y, width)


def _kernel_curve(kernel: rf.Kernel, delta: Array, directions: Ints, trials: int, rng: Generator) -> Results:
    stated, measured = np.array([rf.fourier_mse(kernel, delta, m) for m in directions]), []
    for m in directions:
        omega = kernel.draw(trials // 4 * m, len(delta), rng).reshape(-1, m, len(delta))
        measured.append(rf.mean_of((np.cos(omega @ delta).mean(axis=-1) - kernel.kappa(delta)) ** 2))
    return Results(stated=stated, measured=measured)


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Random features estimate a kernel without bias; these are their errors, by formula (lines) and measured (points,
    95% intervals): above roots of mean squares, below mean squares. Top left: the softmax kernel exp(x.y) for x and y
    of one length at all angles. Trigonometric features are worst where the kernel is smallest, positive ones where it
    is largest. Top right: the same pair at 120 degrees, longer and longer. Bottom left: the error with orthogonal
    directions over that with independent ones, as many as D: the exact ratio, for a narrow head and a wide one. Bottom
    right: four kernels of x - y by the cosine of directions drawn from their Fourier transforms; it falls as one over
    m.
    """
    figure, ((angle, length), (gain, kernels)) = style.figure(2, 2, height=0.78)
    _draw_errors(angle, results.angles, results.points_angle, results.by_angle)
    angle.set(title=f"By angle, |x| = |y| = {results.length:g}", xlabel="angle between x and y (degrees)")
    angle.set(xlim=(-5, 185), xticks=[0, 60, 120, 180])
    _draw_errors(length, results.lengths, results.points_length, results.by_length)
    length.set(title=f"By length, at {results.turn:g} degrees", xlabel="length |x| = |y|")
    labels.at_ends(length, rows=2)

    places = {"trig": (1, 0.3), "positive": (1.1, 1), "hyperbolic": (0.42, 0.6)}
    for kind, (colour, _) in LOOKS.items():
        narrow, *_, wide = results.gain[kind]
        gain.plot(results.distances, narrow, "-", color=colour)
        gain.plot(results.distances, wide, ":", color=colour)
        labels.at(gain, *places[kind], kind, colour)
    for width, line in zip((results.widths[0], results.widths[-1]), "-:", strict=True):
        gain.plot([], [], line, color=style.GREY, label=f"m = D = {width}")
    gain.axhline(1, color=style.GREY, linewidth=0.8)
    gain.set(xlabel="|x − y| (trig), |x + y| (others)", ylabel="mean squared error, ratio", ylim=(0, 1.1))
    gain.set_title("Orthogonal over independent")
    gain.legend(loc="lower right")

    m = np.array(results.directions)
    colours = style.BLACK, style.PURPLE, style.BROWN, style.SKY
    for (name, curve), marker, colour in zip(results.kernels.items(), "os^D", colours, strict=True):
        kernels.plot(m, curve.stated, "-", color=colour, label=name)
        _points(kernels, m, curve.measured, fmt=marker, color=colour)
    kernels.set(title="Other kernels, of x − y", xlabel="directions m", ylabel="mean squared error")
    kernels.set(xscale="log", yscale="log")
    labels.ticks(kernels, m)
    labels.at_ends(kernels, rows=2)
    return figure


def _draw_errors(axes: Axes, grid: Array, points: Array, curves: dict[str, Results]) -> None:
    for kind, (colour, marker) in LOOKS.items():
        axes.plot(grid, np.sqrt(curves[kind].stated), "-", color=colour, label=kind)
        _points(axes, points, curves[kind].measured, root=True, fmt=marker, color=colour)
    axes.axhline(1, linestyle="--", color=style.GREY)
    axes.set(ylabel="relative error", yscale="log", ylim=(1e-3, 30))


def _points(axes: Axes, x: Array, measured: Sequence[rf.Measured], *, root: bool = False, **look: object) -> None:
    """Means with their intervals; the root of each if asked for."""
    mean, low, high = np.array([(each.mean, max(each.low, 0), each.high) for each in measured]).T
    if root:
        mean, low, high = np.sqrt([mean, low, high])
    shown = mean > 0
    errors = np.array([mean - low, high - mean])[:, shown]
    axes.errorbar(x[shown], mean[shown], errors, elinewidth=0.8, **look)  # type: ignore[arg-type]


def slope(results: Results, name: str) -> float:
    """The exponent of the measured error against ``m``; by formula it is -1."""
    means = [each.mean for each in results.kernels[name].measured]
    return float(np.polyfit(np.log(results.directions), np.log(means), 1)[0])
