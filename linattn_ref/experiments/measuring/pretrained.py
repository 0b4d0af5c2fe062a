"""A pretrained network, and sentences of a real text for it to read."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.data import fetch, text
from linattn_ref.data.fetch import PathLike
from linattn_ref.models import bert
from linattn_ref.telling import Say, silent

__all__ = ["read"]


class Pretrained(NamedTuple):
    """What was read."""

    model: bert.Model  # without its tokenizer, which nobody needs any more and which is slow to send to another process
    tokens: NDArray[np.integer]  # (S, N), S sentences
    name: str  # of the model, in figure and record
    sources: dict[str, Any]  # names and hashes of what was read


def read(
    folder: PathLike | None, text_file: PathLike | None, *, sentences: int, length: int, seed: int, say: Say = silent
) -> Pretrained:
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
    return Pretrained(model._replace(tokenizer=None), chosen.tokens, name, sources)
