"""Texts as numbers of subwords, by a vocabulary that is trained on them or came with a network.

The vocabulary is one of byte pairs, as GPT-2 and RoBERTa have it, in lower case: frequent words are one piece, others
several. (WordPiece, which is BERT's, is trained by `tokenizers` to another vocabulary each time.)

References
----------
Sennrich et al. (2016), "Neural machine translation of rare words with subword units", section 3.2.
Radford et al. (2019), "Language models are unsupervised multitask learners", section 2.2 (of bytes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.op import plain_numbers
from linattn_ref.versions import check_tokenizers

__all__ = ["MASK", "PAD", "SEP", "SPECIAL", "Padded", "fingerprint", "pad", "stream", "train"]

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[SEP]", "[MASK]")
PAD, SEP, MASK = range(len(SPECIAL))  # of a vocabulary that `train` made


class Padded(NamedTuple):
    """Sequences made equally long."""

    tokens: NDArray[np.int64]  # (S, N)
    key_mask: NDArray[np.bool_]  # (S, N), False where it only pads


@plain_numbers
def train(texts: Sequence[str], size: int) -> Tokenizer:
    """A vocabulary of ``size`` pieces, the special ones first; the same texts give the same one.

    Raises
    ------
    ValueError
        Fewer pieces than there always are, or more than the texts have.
    """
    if size < len(SPECIAL) + 256:
        raise ValueError(f"size: expected at least {len(SPECIAL) + 256} pieces (3 special, 256 bytes), got {size}")
    check_tokenizers()
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # no text has a piece that is not there
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != size:
        raise ValueError(f"texts: a vocabulary of {size} pieces was asked for, they have {tokenizer.get_vocab_size()}")
    return tokenizer


def fingerprint(tokenizer: Tokenizer) -> str:
    """SHA-256 of a vocabulary: its pieces in the order of their numbers."""
    vocabulary = tokenizer.get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    return hashlib.sha256("\n".join(pieces).encode()).hexdigest()


def stream(texts: Sequence[str], tokenizer: Tokenizer) -> NDArray[np.int32]:
    """All texts one after the other, ``[SEP]`` after each, ``(pieces,)``; the tokenizer is one of :func:`train`."""
    parts = [[*encoding.ids, SEP] for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    return np.concatenate([np.array(part, np.int32) for part in parts])


@plain_numbers
def pad(texts: Sequence[str], tokenizer: Tokenizer, length: int) -> Padded:
    """Each text with the special tokens that the tokenizer puts around it, cut or padded to ``length``.

    Raises
    ------
    ValueError
        A ``length`` that leaves no room for a piece between the special tokens.
    """
    around = tokenizer.num_special_tokens_to_add(is_pair=False)
    if length <= around:
        raise ValueError(f"length: expected at least {around + 1} tokens ({around} are special), got {length}")
    tokens, key_mask = np.full((len(texts), length), PAD, np.int64), np.zeros((len(texts), length), np.bool_)
    for i, encoding in enumerate(tokenizer.encode_batch_fast(texts)):
        ids = encoding.ids
        if len(ids) > length:
            behind = encoding.special_tokens_mask[::-1].index(0)  # special tokens after the text, which stay
            ids = ids[: length - behind] + ids[len(ids) - behind :]
        tokens[i, : len(ids)], key_mask[i, : len(ids)] = ids, True
    return Padded(tokens, key_mask)
