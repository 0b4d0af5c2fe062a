"""Where the spectrum's matrices come from: a real model on real text, a network before training, noise, or a file."""

import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from linattn_ref.attention import softmax
from linattn_ref.data import fetch
from linattn_ref.data.fetch import PathLike
from linattn_ref.experiments.measuring import pretrained
from linattn_ref.models import bert
from linattn_ref.op import Array
from linattn_ref.telling import Say, silent
from linattn_ref.theory.spectrum import Method, singular_values

__all__ = ["Inputs", "Task", "from_arrays", "from_model", "of_noise", "values_of"]


OFF = 0.01  # of a row's sum: entries that once had 8 bits of precision, as in bfloat16, leave it off by .004


Task = tuple[Any, ...]  # of one sentence: what gives each layer's ``P (H, N, L)``, first layer first; its arguments


def values_of(method: Method, matrices: Callable[..., Iterable[Array]], *arguments: Any) -> Array:
    """The singular values of one task's matrices by layer and head, ``(T, H, min(N, L))``, on one thread."""
    with threadpool_limits(1):
        return np.stack([singular_values(p, method=method) for p in matrices(*arguments)])


class Inputs(NamedTuple):
    """The work to do, and where its matrices come from."""

    tasks: dict[str, list[Task]]  # group -> its sentences: "given", and the baselines "untrained" and "gaussian"
    title: str  # what the group "given" is
    shape: tuple[int, int, int]  # (H, N, L)
    sources: dict[str, Any]  # names and hashes of what was read


def of_model(model: bert.Model, tokens: NDArray[np.integer]) -> Iterator[Array]:
    """Each layer's ``P (H, N, N)`` on one sentence."""
    return (layer.p for layer in bert.layers(model, tokens))


def of_noise(heads: int, n: int, n_keys: int, width: int, seed: np.random.SeedSequence) -> Iterator[Array]:
    """One layer of ``P (H, N, L)`` whose queries and keys have independent N(0, 1) entries, ``width`` each."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((heads, n, width), np.float32)
    k = rng.standard_normal((heads, n_keys, width), np.float32)
    yield softmax.matrix(q, k)


def of_queries_keys(q: Array, k: Array) -> Iterator[Array]:
    """Each layer's ``P (H, N, L)`` of a user's own ``Q (T, H, N, D)`` and ``K (T, H, L, D)``."""
    return (softmax.matrix(*layer) for layer in zip(q, k, strict=True))


def from_model(
    folder: PathLike | None, text_file: PathLike | None, *, length: int, baselines: int, seed: int, **choice: Any
) -> Inputs:
    """Sentences of a text through a pretrained model, and through the same network with random weights.

    Parameters
    ----------
    folder, text_file : path, optional
        As in `pretrained.read`.
    sentences, length : int
        How many sentences, and how many tokens each.
    baselines : int
        Sentences and draws for each baseline; the untrained network reads no more than ``sentences``.
    seed : int
        Of the choice of sentences, the random weights and the noise, which do not influence each other.
    say : callable
        Told in one line what is fetched.

    Raises
    ------
    ValueError, FileNotFoundError, linattn_ref.data.fetch.FetchError
        No such file, a damaged one, too little text, or more tokens than the model has positions.
    """
    _choice, weights, noise = np.random.SeedSequence(seed).spawn(3)  # the first is `pretrained.read`'s
    model, tokens, sources = pretrained.read(folder, text_file, length=length, seed=seed, **choice)
    config = model.config
    tasks: dict[str, list[Task]] = {"given": [(of_model, model, ids) for ids in tokens]}
    if baselines:
        random = bert.untrained(config, np.random.default_rng(weights))
        tasks["untrained"] = [(of_model, random, ids) for ids in tokens[:baselines]]
    shape = (config.heads, length, length)
    tasks["gaussian"] = noise_tasks(shape, config.head_width, noise, baselines)
    return Inputs(tasks, sources["model"], shape, sources)


def from_arrays(file: PathLike, *, baselines: int, seed: int, say: Say = silent) -> Inputs:
    """A user's own matrices, or queries and keys, in a ``.npz`` file.

    Parameters
    ----------
    file : path
        Holds ``p (S, T, H, N, L)``, or ``q (S, T, H, N, D)`` and ``k (S, T, H, L, D)``: sentences, layers, heads. The
        first axes may be left out: a matrix ``(N, L)`` is one head of one layer on one sentence. Float32 or float64, in
        either order of the bytes.
    baselines : int
        How many draws of random queries and keys of the same shape (of width 64 where only ``p`` is given).
    seed : int
        Of the noise.
    say : callable
        Told, in a line, if ``p`` is no attention matrix: entries below 0, or rows that do not sum to 1.

    Raises
    ------
    FileNotFoundError, ValueError
        No such file, no ``.npz``, or not these arrays in it.
    """
    arrays = read_arrays(Path(file))
    if "p" in arrays:
        if remark := _unlike_attention(arrays["p"]):
            say(f"{Path(file).name}: {remark}")
        given: list[Task] = [(iter, p) for p in arrays["p"]]
        (_, _, heads, n, n_keys), width = arrays["p"].shape, 64
    else:
        q, k = arrays["q"], arrays["k"]
        given = [(of_queries_keys, *layers) for layers in zip(q, k, strict=True)]
        (_, _, heads, n, width), n_keys = q.shape, k.shape[-2]
    shape, name = (heads, n, n_keys), Path(file).name
    tasks = {"given": given, "gaussian": noise_tasks(shape, width, np.random.SeedSequence(seed), baselines)}
    return Inputs(tasks, name, shape, {"arrays": name, "arrays_sha256": fetch.file_sha256(Path(file))})


def noise_tasks(shape: tuple[int, int, int], width: int, seed: np.random.SeedSequence, count: int) -> list[Task]:
    """``count`` independent draws of `of_noise`."""
    return [(of_noise, *shape, width, child) for child in seed.spawn(count)]


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of `from_arrays`, checked, with all five axes."""
    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as stored:
            twice = [name for name in "pqk" if {name, name.upper()} <= set(stored.files)]
            arrays = {name.lower(): np.asarray(stored[name]) for name in stored.files}
    except FileNotFoundError:
        raise FileNotFoundError(f"arrays: no such file: {path}") from None
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"arrays: {path} is no .npz file of numbers, or damaged ({error})") from None
    if twice:
        raise ValueError(f"arrays: {path} holds both {twice[0]} and {twice[0].upper()}; leave one of them out")
    names = {"p"} if "p" in arrays else {"q", "k"}
    if not names <= set(arrays) or {"p", "q"} <= set(arrays):
        raise ValueError(f"arrays: expected p, or q and k, in {path}; it holds {', '.join(arrays) or 'nothing'}")
    arrays = {name: _five_axes(name, arrays[name]) for name in sorted(names, reverse=True)}
    if "p" in arrays and not arrays["p"].any(axis=(-2, -1)).all():
        raise ValueError(f"arrays: p holds a matrix of zeros alone in {path}, which has no share of singular values")
    if "q" in arrays:
        q, k = arrays["q"], arrays["k"]
        if q.dtype != k.dtype:
            raise ValueError(f"arrays: q is {q.dtype} and k {k.dtype}; they must be of one type")
        if (*q.shape[:-2], q.shape[-1]) != (*k.shape[:-2], k.shape[-1]):
            raise ValueError(f"arrays: q {q.shape} and k {k.shape} may differ only in the last but one")
    return arrays


def _unlike_attention(p: Array) -> str:
    """What a softmax would not have made, if anything; a row of zeros is a query that sees nothing."""
    sums = p.sum(axis=-1, dtype=np.float64)  # (S, T, H, N)
    off = (np.abs(sums - 1) > OFF) & p.any(axis=-1)
    found = []
    if off.any():
        found.append(
            f"{off.sum()} of {sums.size} rows of p do not sum to 1 ({sums[off].min():.3g} to {sums[off].max():.3g})"
        )
    if (p < 0).any():
        found.append(f"{(p < 0).mean():.1%} of the entries of p are negative")
    return f"{'; '.join(found)}. Scores before the softmax? They are taken as they are" if found else ""


def _five_axes(name: str, array: Array) -> Array:
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(f"arrays: {name} must be float32 or float64, got {array.dtype}")
    if not 2 <= array.ndim <= 5 or 0 in array.shape:
        raise ValueError(f"arrays: {name} must have 2 to 5 axes, none empty, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"arrays: {name} holds NaN or infinity")
    return array.reshape((1,) * (5 - array.ndim) + array.shape)
