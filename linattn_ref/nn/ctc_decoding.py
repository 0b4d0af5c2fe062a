"""What a network trained with `linattn_ref.nn.ctc` has heard: labels from its scores, and how many are wrong.

The likeliest labels are those whose paths *together* have the largest probability. `greedy` takes the likeliest path,
one maximum per frame, and what that path spells. `prefix_beam` adds up paths. With ``blank(l)`` and ``label(l)``, the
probability of all paths so far that spell ``l`` and end in a blank, or in the last label of ``l``, a frame makes

    blank'(l) = y(-) (blank(l) + label(l))                   (1)
    label'(l) = y(last of l) label(l)                        (2)
    label'(l c) = y(c) (blank(l) + label(l))                 (3)

added up where ``l c`` is reached from both sides, (2) and (3). Where ``c`` is the last of ``l``, only ``blank(l)``
counts in (3), or it would be (2). There are too many ``l``, so after each frame the ``width`` likeliest stay: the beam.
With a beam that holds them all the result is exact.

>>> scores = np.log([[0.6, 0.4], [0.6, 0.4]])
>>> greedy(scores)  # the path - -, with 0.36
[[]]
>>> [found] = prefix_beam(scores)  # 1 1, 1 - and - 1 have 0.64 together
>>> found[0].labels, round(float(np.exp(found[0].log_probability)), 2)
([1], 0.64)
>>> error_rate([[1, 2, 2]], [[1, 3, 2, 2]])  # one label of four is missing
0.25

References
----------
Graves, Fernández, Gomez and Schmidhuber (2006), "Connectionist temporal classification", where greedy
decoding is *best path decoding*.
Hannun, Maas, Jurafsky and Ng (2014), "First-pass large vocabulary continuous speech recognition using bi-directional
recurrent DNNs": its modified prefix search, without the language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.nn.ctc import BLANK
from linattn_ref.nn.lengths import Lengths, as_sequences, check_lengths, lengths_or_all
from linattn_ref.op import Array, Float, Int, op
from linattn_ref.op.options import check_sizes

__all__ = ["Found", "error_rate", "greedy", "prefix_beam"]


class Found(NamedTuple):
    """Labels and what all paths that spell them have together."""

    labels: list[int]
    log_probability: float


def check_values(scores: Any, frames: Any = None, **_: Any) -> None:
    check_lengths("frames", frames, scores.shape[-2])
    for i, row in enumerate(_sequences(scores, frames)):
        largest = row.max(axis=-1)
        if not np.isfinite(largest).all():
            got = f"{largest[~np.isfinite(largest)][0]} in sequence {i}"
            raise ValueError(f"scores: expected a finite number as the largest of each frame, got {got}")


@op(values=check_values)
def greedy(scores: Float[Array, "... t V"], *, frames: Int[Lengths, "..."] | None = None) -> list[list[int]]:
    """What the likeliest path of each sequence spells.

    Parameters
    ----------
    scores : ndarray ``(..., T, V)``
    frames : ndarray of int ``(...)``, optional
        See `linattn_ref.nn.ctc.forward`.

    Returns
    -------
    list of list of int
        A list of labels per sequence, in order of the leading axes.
    """
    return [_said_by(each.argmax(axis=-1)) for each in _sequences(scores, frames)]


def _said_by(path: Array) -> list[int]:
    """A run of the same symbol once, and no blanks."""
    first_of_run = np.diff(path, prepend=-1) != 0
    return path[first_of_run & (path != BLANK)].tolist()


@op(values=check_values)
def prefix_beam(
    scores: Float[Array, "... t V"], *, width: int = 16, frames: Int[Lengths, "..."] | None = None
) -> list[list[Found]]:
    """The likeliest labels of each sequence, as far as a beam finds them.

    Parameters
    ----------
    scores : ndarray ``(..., T, V)``
    width : int
        Of the beam.
    frames : ndarray of int ``(...)``, optional

    Returns
    -------
    list of list of Found
        For each sequence up to ``width`` of them, likeliest first. A probability is that of the paths which never left
        the beam, so it may be too small, and never is too large.
    """
    check_sizes(width=width)
    return [_beam_of(each, width) for each in _sequences(scores, frames)]


def _beam_of(scores: Array, width: int) -> list[Found]:
    """:func:`prefix_beam` of one sequence, ``(T, V)``."""
    log_y = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    beam: list[tuple[int, ...]] = [()]
    blank: Array = np.zeros(1)  # (width,), a logarithm as all here
    label: Array = np.full(1, -np.inf)
    for y in log_y:
        beam, blank, label = _frame(y, beam, blank, label, width)
    both = np.logaddexp(blank, label)
    return [Found(list(beam[i]), float(both[i])) for i in np.argsort(-both, kind="stable")]


def _frame(
    y: Array, beam: list[tuple[int, ...]], blank: Array, label: Array, width: int
) -> tuple[list[tuple[int, ...]], Array, Array]:
    """Equations (1)-(3), and the likeliest of what comes out."""
    rows, last = np.arange(len(beam)), np.array([labels[-1] if labels else BLANK for labels in beam])
    both = np.logaddexp(blank, label)
    new_blank = y[BLANK] + both  # (1)
    new_label = np.where(last == BLANK, -np.inf, y[last] + label)  # (2)
    longer = y + both[:, None]  # (3)  (width, V)
    longer[rows, last] = y[last] + blank  # (3), the last label again
    longer[:, BLANK] = -np.inf
    where = {labels: row for row, labels in enumerate(beam)}
    for row, labels in enumerate(beam):
        shorter = where.get(labels[:-1]) if labels else None
        if shorter is not None:  # (2) and (3) meet
            new_label[row] = np.logaddexp(new_label[row], longer[shorter, last[row]])
            longer[shorter, last[row]] = -np.inf
    likelihood = np.concatenate([np.logaddexp(new_blank, new_label), longer.ravel()])
    kept = [i for i in np.argsort(-likelihood, kind="stable")[:width] if likelihood[i] > -np.inf]
    stay = [i for i in kept if i < len(beam)]
    go = [divmod(i - len(beam), len(y)) for i in kept if i >= len(beam)]
    return (
        [beam[i] for i in stay] + [(*beam[row], int(c)) for row, c in go],
        np.concatenate([new_blank[stay], np.full(len(go), -np.inf)]),
        np.concatenate([new_label[stay], [longer[each] for each in go]]),
    )


def error_rate(found: Sequence[Sequence[int]], meant: Sequence[Sequence[int]]) -> float:
    """Labels to be put in, left out or replaced, of all sequences together, over the number of labels meant.

    Of phonemes it is the phoneme error rate. It can also exceed 1, if there are far too many labels.

    Parameters
    ----------
    found, meant : sequence of sequences of int
        Labels, a sequence each.

    Raises
    ------
    ImportError
        Without rapidfuzz, of the extra ``speech``.
    ValueError
        Not as many found as meant, or nothing is meant.
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise ImportError(f"error_rate needs rapidfuzz ({error}): pip install 'linattn-ref[speech]'") from error
    if len(found) != len(meant):
        raise ValueError(f"found: expected {len(meant)} sequences of labels, as many as are meant, got {len(found)}")
    labels = sum(map(len, meant))
    if labels == 0:
        raise ValueError("meant: there is no label in it, and a share of nothing is nothing")
    return sum(Levenshtein.distance(list(a), list(b)) for a, b in zip(found, meant, strict=True)) / labels


def _sequences(scores: Array, frames: Lengths | None) -> list[Array]:
    """The frames of each sequence, ``(T, V)``."""
    counts = lengths_or_all(frames, scores.shape[:-2], scores.shape[-2])
    return [row[:n] for row, n in zip(as_sequences(scores), counts, strict=True)]
