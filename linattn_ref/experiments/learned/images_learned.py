"""Bits per pixel of test images while networks learn to draw: against images seen, and against CPU time.

The runs are those of ``linattn-ref train images`` as it was when it evaluated on the first 512 test images (now it is
images held out from training), gathered in ``figures/records/images.json``; the same seed, size and schedule, so that
at the same number of images seen attention is all that differs. Beside them, not drawn, the two short runs of chapter
21's exercise.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.2.1, table 1.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from linattn_ref.data import reported
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing.kit import Array, Figure, Results, labels, style

__all__ = ["check_on_test_images", "compute", "draw"]

EXERCISE = 700  # steps


def compute(*, record: Path = runs.RECORDS / "images.json") -> Results:
    """The curves of the committed runs, or those in another file of `runs.gather`; nothing is trained."""
    found = runs.gathered(record)
    check_on_test_images(found)
    chains = {name: runs.commands(run.facts, lengthened=False) for name, run in found.items()}
    begun = {command for chain in chains.values() for command in chain[:-1]}
    curves = [_curve(name, chain, found) for name, chain in chains.items() if chain[-1] not in begun]
    return Results(
        curves=tuple(curve for curve in curves if curve.steps_planned != EXERCISE),
        exercise=tuple(curve for curve in curves if curve.steps_planned == EXERCISE),
        printed={name: reported.MNIST[name].bits_per_dim for name in ("softmax", "linear")},  # over 783 pixels
    )


def check_on_test_images(found: Mapping[str, runs.Run]) -> None:
    """Bits are of test images, as the captions say, and not of what newer runs are evaluated on."""
    if newer := [name for name, run in found.items() if "held_out" in run.facts]:
        raise ValueError(f"record: {', '.join(newer)}: evaluated on images held out from training, not on test images")


def _curve(name: str, chain: tuple[str, ...], found: Mapping[str, runs.Run]) -> Results:
    """Of a run, with those that it went on from before it, each as far as to the step it went on from."""
    of = {run.facts["command"]: run for run in found.values()}
    missing = [command for command in chain if command not in of]
    if missing:
        raise ValueError(f"record: {name} goes on from {missing[0]!r}, which is not in it")
    parts: list[tuple[Array, Array, Array]] = []  # of each run: steps, minutes, bits
    planned = [0]  # steps until each begins, and until the end
    for command, after in zip(chain, [*chain[1:], None], strict=True):
        run = of[command]
        first, spent = run.facts.get("start", {}).get("steps", 0), parts[-1][1][-1] if parts else 0.0
        last = run.facts["steps"] if after is None else of[after].facts["start"]["steps"] - first
        kept = run.steps <= last
        parts.append((first + run.steps[kept], spent + run.cpu_seconds[kept] / 60, run.curves["bits"][kept]))
        planned.append(planned[-1] + last)
    batch = run.facts["shape"]["batch"]
    steps, minutes, bits = map(np.concatenate, zip(*parts, strict=True))
    return Results(
        name=name,
        commands=chain,  # that trained it, each going on from the weights of the one before
        attention=run.facts["attention"],
        head=run.facts["head"],  # what is said of a pixel
        steps_planned=planned[-1],  # of all commands; the rate reaches 0 at the end of each
        images=steps * batch,  # (evaluations,), seen
        cpu_minutes=minutes,  # (evaluations,)
        bits=bits,  # (evaluations,), over all 784 pixels
        anew=tuple(n * batch for n in planned[1:-1]),  # images seen when a run went on from another, at a new rate
    )


def draw(results: Results) -> Figure:
    """Learning to draw MNIST digits, by networks of 4 layers of 64 with 2 heads, one of each: bits per pixel of the
    first 512 test images, against images seen and against CPU time of the training alone. At a circle another
    run goes on from the weights of the one before, with a learning rate that had come down to 0 and begins anew.
    Those 512 images are easier than all 10,000, by one or two hundredths of a bit. None of the networks has
    converged: in print, 8 layers of 256 see 15 million images.
    """
    figure, (seen, spent) = style.figure(1, 2, height=0.42, sharey=True)
    for axes, x_of in ((seen, lambda curve: curve.images / 1000), (spent, lambda curve: curve.cpu_minutes)):
        for curve in results.curves:
            colour, anew = style.MECHANISMS.get(curve.attention, style.GREY), np.isin(curve.images, curve.anew)
            name = f"{curve.attention}\n{curve.bits[-1]:.3f}"
            axes.plot(x_of(curve), curve.bits, color=colour, label=name)
            axes.plot(x_of(curve)[anew], curve.bits[anew], "o", color=colour, mfc="white")
    seen.set(xlabel="images seen (thousands)", ylabel="bits per pixel", title="By images")
    spent.set(xlabel="CPU minutes", title="By time")
    seen.set_ylim(min(curve.bits.min() for curve in results.curves) - 0.05, 1.25)
    for axes in (seen, spent):
        labels.at_ends(axes)
    printed = "\n".join(f"{name} {bits}" for name, bits in results.printed.items())
    told = f"circles: the learning\nrate begins anew\n\nin the paper:\n{printed}"
    labels.at(seen, 0.98, 0.98, told, style.GREY, xycoords="axes fraction", ha="right", va="top")
    return figure
