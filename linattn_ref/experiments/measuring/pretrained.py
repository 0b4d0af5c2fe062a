"""A pretrained network, and sentences of a real text for it to read."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.data import fetch, text
from linattn_ref.data.fetch import PathLike
from linattn_ref.models import bert
from linattn_ref.telling import Say, silent

__all__ = ["read"]


def read(
    folder: PathLike | None, text_file: PathLike | None, *, sentences: int, length: int, seed: int, say: Say = silent
) -> tuple[bert.Model, NDArray[np.integer], dict[str, Any]]:
    """A network, and sentences drawn from a text.

    Parameters
    ----------
    folder, text_file : path, optional
        A BERT or RoBERTa checkpoint and a text in UTF-8; the pinned packages of `linattn_ref.data.fetch` unless given.
    sentences, length : int
        How many sentences, and how many tokens each.
    seed : int
        Of the choice of sentences.
    say : callable
        Told, a line each, what is fetched, and what `text.choose_sentences` says.

    Returns
    -------
    model : bert.Model
        Without its tokenizer, which nobody needs any more and which is slow to send to another process.
    tokens : ndarray ``(S, N)``
        Of the sentences.
    sources : dict
        Names and hashes of what was read.

    Raises
    ------
    ValueError, FileNotFoundError, linattn_ref.data.fetch.FetchError
        No such file, a damaged one, too little text, or more tokens than the model has positions.
    """
    (choice,) = np.random.SeedSequence(seed).spawn(1)
    place = Path(folder) if folder is not None else fetch.open_content(fetch.MODEL, progress=say)
    model = bert.load(place)
    if length > model.config.max_tokens:
        raise ValueError(f"length: the model has positions for {model.config.max_tokens} tokens, got {length}")
    if text_file is None:
        reviews = text.read_reviews(fetch.open_content(fetch.REVIEWS, progress=say))
    else:
        reviews = text.read_text(text_file)
    assert model.tokenizer is not None
    rng = np.random.default_rng(choice)
    chosen = text.choose_sentences(reviews, model.tokenizer, count=sentences, length=length, rng=rng, say=say)
    name = place.resolve().name if isinstance(place, Path) else "all-MiniLM-L6-v2"
    sources = {"model": name, "model_sha256": model.sha256, "text": reviews.name, "text_sha256": reviews.sha256}
    return model._replace(tokenizer=None), chosen.tokens, sources
