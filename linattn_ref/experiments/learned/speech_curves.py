"""How networks learn to tell phonemes, and how many they get wrong in the end, on *synthesised* speech.

``linattn-ref train speech`` was run once for each network and seed; ``linattn-ref gather`` made the record. A run of
the name ``linear-0`` is one of linear attention with seed 0.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.3, Table 3.
"""

from pathlib import Path

import numpy as np
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from linattn_ref.experiments.learned import seeds
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing.kit import Figure, Results, labels, style

__all__ = ["COLOURS", "TITLES", "compute", "draw", "table_rows"]

M = style.MECHANISMS
COLOURS = {"lstm": style.GREEN, "softmax": M["softmax"], "lsh-4": M["reformer"], "linear": M["linear"]}
TITLES = {"lstm": "Bi-LSTM", "softmax": "softmax", "lsh-4": "lsh-4", "linear": "linear"}


def compute(*, record: Path = runs.RECORDS / "speech.json") -> Results:
    """The curves of the committed runs, or those in another file of `runs.gather`."""
    found = runs.gathered(record)
    kinds = seeds.kinds(found)
    one = next(iter(found.values())).facts
    frame = 0.01 if one.get("unstacked") else 0.03  # seconds
    return Results(
        corpus=one["corpus"]["name"],
        utterances=one["result"]["utterances"],  # of the test part
        phonemes=one["result"]["phonemes"],
        hours=one["frames"] * frame / 3600,  # of the training part
        epochs=one["steps"] / one["steps_per_epoch"],  # that each has seen
        networks={name: _network(kinds[name]) for name in TITLES if name in kinds},
    )


def _network(found: list[runs.Run]) -> Results:
    """The runs of one network: an array ``(S,)`` for each, of curves ``(S, T)``; the steps are ``(T,)``."""
    return seeds.put_together(
        "seeds steps cpu_seconds error_rate greedy beam epoch_seconds",  # error_rate: of the validation part
        found,
        greedy=np.array([run.facts["result"]["greedy"] for run in found]),  # of the test part, by the likeliest path
        beam=np.array([run.facts["result"]["beam"] for run in found]),
        epoch_seconds=np.array([run.cpu_seconds[-1] / run.steps[-1] * run.facts["steps_per_epoch"] for run in found]),
    )


def table_rows(results: Results) -> list[tuple[str, str, str, str]]:
    """Of each network: error rates on the test part by the likeliest path and by a beam, CPU seconds per epoch."""
    told, found = seeds.told, results.networks.items()
    return [(TITLES[x], told(100 * y.greedy, 1), told(100 * y.beam, 1), told(y.epoch_seconds)) for x, y in found]


def draw(results: Results) -> Figure:
    """Learning to tell phonemes of speech synthesised by eSpeak NG: the share of phonemes that is wrong, by the
    likeliest path, of voices and sentences that are not trained on; one line per seed. Transformers of four layers of
    width 128 and three bidirectional LSTM layers of 128 units had the same number of updates. The rate begins at 0.002
    (LSTMs: 0.003) and is halved when the error rate has stopped falling. Left: against updates. Right: against the
    CPU time of one thread. No person said any of it.
    """
    figure, (left, right) = style.figure(1, 2, height=0.45, sharey=True)
    lines = []
    for name, one in results.networks.items():
        for row, seconds in zip(one.error_rate, one.cpu_seconds, strict=True):
            left.plot(one.steps, 100 * row, color=COLOURS[name])
            (line,) = right.plot(seconds, 100 * row, color=COLOURS[name])
        lines.append(line)
    left.set(xlabel="updates", ylabel="phonemes wrong, % (synthesised, validation)", yscale="log")
    left.yaxis.set_major_locator(FixedLocator([1, 2, 3, 4, 5, 7, 10, 20, 30, 50, 100]))
    left.yaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    left.yaxis.set_minor_locator(NullLocator())
    right.set(xlabel="CPU time (s)")
    labels.at_ends(right, lines, [TITLES[name] for name in results.networks])
    return figure
