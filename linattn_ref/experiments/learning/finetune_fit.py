"""Linformer's ``E`` and ``F`` fitted to a network's own attention, before the network learns with them.

The network reads texts with softmax attention. The queries, keys and values of all its heads are kept, and mixtures of
keys, which begin as mean pooling, are fitted to what softmax attention makes of them, as in chapter 4: `linformer_fit`.
"""

from typing import NamedTuple

import numpy as np

from linattn_ref.attention.linformer_projections import Sharing
from linattn_ref.experiments.measuring.heads import Heads, each_error, heads_of
from linattn_ref.experiments.measuring.linformer_fit import SHARINGS, Parameters, begun, fit
from linattn_ref.models import encoder
from linattn_ref.op import Array, Integers, Mask

__all__ = ["Fitted", "fit_projections"]

TEXTS, UNSEEN, EPOCHS = 96, 16, 4
RATE = 1e-3  # of Adam
ROWS = 16  # texts that the network reads at a time


class Fitted(NamedTuple):
    """Projections, and how near they bring Linformer to softmax attention."""

    own: list[tuple[Array, Array]]  # (e, f) of each layer; what is shared is the same array
    pooled: float  # median relative error of a head's output on texts that were not fitted to, with mean pooling
    fitted: float  # with these


def fit_projections(
    params: encoder.Params,
    model: encoder.Model,
    tokens: Integers,
    key_mask: Mask,
    *,
    k: int,
    sharing: Sharing,
    rng: np.random.Generator,
) -> Fitted:
    """Fit to the network's heads on some of the texts that fill the whole length.

    Parameters
    ----------
    params, model : encoder.Params, encoder.Model
        With softmax attention.
    tokens, key_mask : ndarray ``(S, N)``
    k, sharing
        As `linformer.draw_projections` takes them.
    rng : numpy.random.Generator
        Of the order of the texts.

    Raises
    ------
    ValueError
        Fewer than 4 texts fill the length.
    """
    full = np.flatnonzero(key_mask.all(axis=-1))[:TEXTS]
    if len(full) < 4:
        raise ValueError(f"length: 4 texts that fill {tokens.shape[1]} tokens are needed to fit to, got {len(full)}")
    heads = read_heads(params, model, tokens[full])
    unseen = min(UNSEEN, len(full) // 2)
    order = [unseen + int(s) for _ in range(EPOCHS) for s in rng.permutation(len(full) - unseen)]
    mixing, start = begun(sharing, k, heads)
    found = fit(mixing, start, heads, order, rate=RATE)
    errors = [float(np.median(each_error(heads, range(unseen), mixing.applied(x))[0])) for x in (start, found)]
    *_, by_head = SHARINGS[sharing]
    return Fitted(_by_layer(found, heads.k.shape[1], by_head), *errors)


def read_heads(params: encoder.Params, model: encoder.Model, tokens: Integers) -> Heads:
    """Queries, keys and values of all heads on ``tokens (S, N)``, which pad nothing."""
    parts = []
    for i in range(0, len(tokens), ROWS):
        _, saved = encoder.forward(tokens[i : i + ROWS], params, model)
        parts.append(np.stack([one.attention.attention[:3] for one in saved.blocks], axis=2))  # (3, S, T, H, N, D)
    return heads_of(*np.concatenate(parts, axis=1))


def _by_layer(found: Parameters, layers: int, by_head: bool) -> list[tuple[Array, Array]]:
    """``e`` and ``f`` of each layer; one array where they are the same matrix."""
    # Of e, and of f: a matrix per layer, or one that all layers share
    matrices = [[x if by_head else x[0] for x in each] * (layers // len(each)) for each in found]
    return list(zip(matrices[0], matrices[-1], strict=True))
