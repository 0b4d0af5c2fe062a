"""Heads of a pretrained network on real text, and how far something is from the softmax attention they compute."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.random import Generator

from linattn_ref.attention import softmax
from linattn_ref.data.fetch import PathLike
from linattn_ref.experiments.measuring import pretrained
from linattn_ref.kernels import jit
from linattn_ref.models import bert
from linattn_ref.op import Array
from linattn_ref.op.shapes import check_array
from linattn_ref.theory.eckart_young import tail_frobenius

__all__ = ["Errors", "Heads", "Random", "Source", "Spread", "each_error", "errors_by_way", "heads_from", "heads_of"]
__all__ += ["heads_to_fit", "random_heads", "read_heads", "relative_error", "spread", "truncated_svd"]


class Heads(NamedTuple):
    """Queries, keys and values of a network's heads on some sentences, and what softmax attention makes of them."""

    q: Array  # (S, T, H, N, D), S sentences, T layers
    k: Array  # (S, T, H, N, D)
    v: Array  # (S, T, H, N, M)
    out: Array  # (S, T, H, N, M)

    def sentence(self, s: int) -> tuple[Array, Array, Array, Array]:
        """``q, k, v, out`` of one sentence, ``(T, H, N, ...)``."""
        return self.q[s], self.k[s], self.v[s], self.out[s]


def heads_of(q: Array, k: Array, v: Array) -> Heads:
    """`Heads` from arrays ``(S, T, H, N, D)``."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_array(name, x, ndim=5)
    return Heads(q, k, v, softmax.forward(q, k, v, kernels=jit)[0])


def read_heads(
    folder: PathLike | None = None, text_file: PathLike | None = None, *, every: int = 1, **choice: Any
) -> tuple[Heads, dict[str, Any]]:
    """Every ``every``-th head of each layer of a pretrained network on some sentences, and what all that comes from.

    Parameters
    ----------
    folder, text_file
        As in `pretrained.read`.
    every : int
    **choice
        ``sentences``, ``length``, ``seed`` and ``say``, as there.

    Returns
    -------
    heads : Heads
    sources : dict
        Names and hashes of what was read, and ``every``: for a figure's record.
    """
    model, tokens, sources = pretrained.read(folder, text_file, **choice)
    qkv: list[Array] = []
    for s, ids in enumerate(tokens):
        for t, layer in enumerate(bert.layers(model, ids)):
            parts = [x[::every] for x in (layer.q, layer.k, layer.v)]  # (H, N, D) each
            qkv = qkv or [np.empty((len(tokens), model.config.layers, *x.shape), x.dtype) for x in parts]
            for x, part in zip(qkv, parts, strict=True):
                x[s, t] = part
    return heads_of(*qkv), {**sources, "every": every}


class Source(NamedTuple):
    """Heads to be read: see `read_heads`."""

    sentences: int
    length: int = 512
    every: int = 1
    model: PathLike | None = None
    text: PathLike | None = None


class Random(NamedTuple):
    """Heads of independent normal entries, float32: for tests, where there is no network."""

    sentences: int = 4
    layers: int = 2
    heads: int = 2
    length: int = 64
    width: int = 8
    deviation: float = 1.0


def heads_from(given: Heads | Source | Random, seed: int, rng: Generator) -> tuple[Heads, dict[str, Any]]:
    """Return the heads that a figure is measured on, a caller's own, read or drawn; and where those read come from."""
    if isinstance(given, Source):
        sentences, length, every, *where = given
        return read_heads(*where, sentences=sentences, length=length, every=every, seed=seed)
    return (given if isinstance(given, Heads) else random_heads(rng, **given._asdict())), {}


def heads_to_fit(
    given: Heads | Source | Random, seed: int, rng: Generator, unseen: int, epochs: int
) -> tuple[Heads, list[int], dict[str, Any]]:
    """The heads of `heads_from`; the sentences to fit to, all but the first ``unseen``, in one random order over and
    over; and what all that is, for a record."""
    heads, sources = heads_from(given, seed, rng)
    seen = len(heads.q) - unseen
    if not 1 <= unseen < len(heads.q):
        raise ValueError(f"unseen: expected 1 to {len(heads.q) - 1} of {len(heads.q)} sentences, got {unseen}")
    order = [int(s) for _ in range(epochs) for s in unseen + rng.permutation(seen)]
    return heads, order, {**sources, "seed": seed, "sentences": seen, "unseen": unseen, "epochs": epochs}


def random_heads(rng: Generator, **sizes: Any) -> Heads:
    """As `Random` says, whose fields these are."""
    *shape, deviation = Random(**sizes)
    return heads_of(*(np.float32(deviation) * rng.standard_normal((3, *shape), np.float32)))


# --- Errors ---------------------------------------------------------------------------------------------------------


def relative_error(approximate: Array, exact: Array) -> Array:
    """``|approximate - exact|_F / |exact|_F`` of each matrix: ``(..., N, M) -> (...)``."""
    return np.linalg.norm(approximate - exact, axis=(-2, -1)) / np.linalg.norm(exact, axis=(-2, -1))


Errors = tuple[Array, Array]  # of the output and of the matrix, (S, T, H) each; the second may be empty


def each_error(
    heads: Heads, sentences: Sequence[int], forward: Callable[..., Array], matrix: Callable[..., Array] | None = None
) -> Errors:
    """The errors of ``forward(q, k, v)`` in place of softmax attention, and of ``matrix(q, k)`` in place of ``P``.

    Those of the matrix are empty where there is no ``matrix``.
    """
    of_output, of_matrix = [], []
    for s in sentences:
        q, k, v, out = heads.sentence(s)
        of_output.append(relative_error(forward(q, k, v), out))  # (T, H)
        if matrix is not None:
            of_matrix.append(relative_error(matrix(q, k), softmax.matrix(q, k)))  # (T, H)
    return np.stack(of_output), np.stack(of_matrix) if of_matrix else np.empty(0)


def truncated_svd(reduced: Sequence[int], heads: Heads, sentences: Sequence[int]) -> list[Errors]:
    """The errors of ``P`` cut to its first ``R`` singular triples, for each ``R``: of output and matrix, (S, T, H)."""
    layers, n_heads = heads.k.shape[1:3]
    found = np.empty((len(reduced), 2, len(sentences), layers, n_heads))
    for i, s in enumerate(sentences):
        q, k, v, _ = heads.sentence(s)
        for t, h in np.ndindex(layers, n_heads):
            _, values, v_t = scipy.linalg.svd(softmax.forward(q[t, h], k[t, h], v[t, h])[1].p, full_matrices=False)
            triples = values[:, None] * (v_t @ v[t, h])  # (N, M), what each triple adds to P V, along orthogonal u
            for j, r in enumerate(reduced):
                found[j, 0, i, t, h] = np.linalg.norm(triples[r:]) / np.linalg.norm(triples)
                found[j, 1, i, t, h] = tail_frobenius(values, r) / tail_frobenius(values, 0)
    return [(output, matrix) for output, matrix in found]


class Spread(NamedTuple):
    """Errors of many sentences and heads: by layer, by sentence, and how far they lie apart."""

    by_layer: Array  # (..., T), means over sentences and heads
    by_sentence: Array  # (..., S), means over layers and heads
    low: Array  # (...), a tenth of all sentences and heads is below,
    median: Array  # (...)
    high: Array  # (...), and a tenth above


def spread(errors: Array) -> Spread:
    """Of errors ``(..., S, T, H)``."""
    low, median, high = np.quantile(errors, (0.1, 0.5, 0.9), axis=(-3, -2, -1))
    return Spread(errors.mean(axis=(-3, -1)), errors.mean(axis=(-2, -1)), low, median, high)


def errors_by_way(
    ways: Iterable[str],
    ways_at: Callable[[int], dict[str, Errors]],
    reduced: Sequence[int],
    heads: Heads,
    sentences: Sequence[int],
) -> dict[str, dict[str, Spread]]:
    """The ``output``'s errors at every ``R`` by way, and those of the ``matrix`` where there is one.

    ``ways_at(R)`` measures all of ``ways`` as `each_error` does, but ``"svd"``, which is `truncated_svd`.
    """
    found = [ways_at(r) for r in reduced]
    for at_r, svd in zip(found, truncated_svd(reduced, heads, sentences), strict=True):
        at_r["svd"] = svd
    return {
        name: {way: spread(np.stack([at_r[way][i] for at_r in found])) for way in ways if found[0][way][i].size}
        for i, name in enumerate(("output", "matrix"))
    }
