"""An utterance of *synthesised* speech: what is heard, what was said and when, and what networks make of each frame.

The utterance is of the test part: neither its voice nor its sentence was trained on. It stands in the results of the
runs that `speech_curves` draws.
"""

from pathlib import Path

import matplotlib
import numpy as np

from linattn_ref.experiments.learned import seeds
from linattn_ref.experiments.learned.speech_curves import COLOURS, TITLES
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing.kit import Axes, Figure, Results, style

__all__ = ["compute", "draw", "draw_likely"]

STEP = 0.010  # seconds per frame of the filterbank
NAMED = 0.5  # a label that is likelier than this is named


def compute(*, record: Path = runs.RECORDS / "speech.json") -> Results:
    """From the committed runs, those of the first seed, or from another file of `runs.gather`."""
    kinds = seeds.kinds(runs.gathered(record))
    found = {name: of_one_kind[0].facts["result"]["utterance"] for name, of_one_kind in kinds.items()}
    one = next(iter(found.values()))
    networks = {
        name: Results(
            likely={x: np.array(y) for x, y in found[name]["likely"].items()},  # of "", the blank, too; (T / 3,) each
            seconds=STEP * round(len(one["features"]) / len(found[name]["likely"][""])),  # from a row to the next
            said=found[name]["said"],
        )
        for name in TITLES
        if name in found
    }
    return Results(
        text=one["text"],
        speaker=one["speaker"],
        symbols=one["symbols"],
        starts=np.array(one["starts"]),  # seconds
        features=np.array(one["features"]) / 10,  # (T, 40)
        networks=networks,  # what each makes of it
    )


def draw(results: Results) -> Figure:
    """An utterance of the test part, synthesised by eSpeak NG: its filterbank (40 log-mel channels, normalised per
    voice) with the phonemes where eSpeak NG begins them. Below, for three of the networks, are the probability of the
    blank (grey) and of labels in each frame by CTC, and what the likeliest path spells. Nobody told the networks when a
    phoneme comes.
    """
    shown = {name: heard for name, heard in results.networks.items() if name != "lsh-4"}
    n = len(shown)
    figure, axes = style.figure(1 + n, 1, height=0.34 + 0.19 * n, sharex=True, height_ratios=[1.7, *[1] * n])
    seconds = len(results.features) * STEP
    axes[0].imshow(
        results.features.T, origin="lower", aspect="auto", cmap="magma", extent=(0, seconds, 0, 40), vmin=-2, vmax=2.5
    )
    axes[0].set_title(f"“{results.text}” (synthesised)", pad=14 * _unit())
    axes[0].set_ylabel("frequency channel")
    axes[0].grid(False)
    for start, symbol in zip(results.starts, results.symbols, strict=True):
        axes[0].axvline(start, color="white", linewidth=0.4 * _unit())
        axes[0].text(start, 41, symbol, fontsize=8 * _unit(), ha="left", va="bottom")
    for axis, (name, heard) in zip(axes[1:], shown.items(), strict=True):
        draw_likely(axis, heard, COLOURS[name])
        axis.set_ylabel(TITLES[name])
        axis.text(0, 1.04, " ".join(heard.said), transform=axis.transAxes, fontsize=8 * _unit(), va="bottom")
    axes[-1].set(xlabel="seconds", xlim=(0, seconds))
    return figure


def draw_likely(axis: Axes, heard: Results, colour: str) -> None:
    """Probabilities over time; what is likelier than one half somewhere is named at its peak."""
    for symbol, y in heard.likely.items():
        time = heard.seconds * np.arange(len(y))
        axis.plot(time, y, color=colour if symbol else style.GREY, linewidth=(1.0 if symbol else 0.7) * _unit())
        if symbol:
            for peak in np.flatnonzero((y > NAMED) & (y >= np.roll(y, 1)) & (y > np.roll(y, -1))):
                axis.text(time[peak], y[peak], symbol, fontsize=8 * _unit(), ha="center", va="bottom")
    axis.set(ylim=(0, 1.25), yticks=[0, 1])


def _unit() -> float:
    """A point of the printed page, in points of the style that is drawn in."""
    return float(matplotlib.rcParams["font.size"]) / 8
