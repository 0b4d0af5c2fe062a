"""The tokenizer of a checkpoint: ``tokenizer.json``, or of a BERT from before that file, ``vocab.txt``."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linattn_ref.versions import check_tokenizers

__all__ = ["read"]

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE, PIECES, OPTIONS = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
CONVERT = "`transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
# By the names of tokenizer_config.json.
MARKS = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
CLASSES = ("BertTokenizer", "BertTokenizerFast")


def read(place: Path | zipfile.Path, model_type: str) -> Tokenizer:
    """The tokenizer, without the cutting and padding that a checkpoint's file may ask for.

    Raises
    ------
    FileNotFoundError
        There is none in ``place``.
    ImportError
        The tokenizers that is installed is too new.
    ValueError
        A file is damaged.
    """
    check_tokenizers()
    from tokenizers import Tokenizer

    has_pieces = model_type == "bert"  # those of a RoBERTa are in other files
    if not (place / FILE).is_file():
        if has_pieces and (place / PIECES).is_file():
            return _word_pieces(place)
        raise FileNotFoundError(
            f"model: {FILE} is not in {place}{f', and no {PIECES}' * has_pieces}; if it has other files of a tokenizer,"
            f" {CONVERT} writes {FILE}"
        )
    content = (place / FILE).read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except ValueError as error:
        raise ValueError(f"{FILE}: damaged: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _word_pieces(place: Path | zipfile.Path) -> Tokenizer:
    """WordPiece (Devlin et al. 2019) with the pieces of ``vocab.txt``, one per line, as transformers makes it.

    Text becomes lower case if ``tokenizer_config.json`` says so; if it does not say, where no piece has a capital.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    options = _options(place)
    try:
        lines = (place / PIECES).read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{PIECES}: not UTF-8: {error}") from None
    pieces = [line.rstrip("\r") for line in lines]
    if pieces[-1] == "":
        del pieces[-1]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    if len(numbers) < len(pieces):
        twice = next(piece for number, piece in enumerate(pieces) if numbers[piece] != number)
        raise ValueError(f"{PIECES}: expected each piece once, got {twice!r} twice")
    marks = {name: _content(options.get(name), usual) for name, usual in MARKS.items()}
    for name in ("unk_token", "cls_token", "sep_token"):
        if marks[name] not in numbers:
            raise ValueError(f"{PIECES}: expected a piece {marks[name]}, the {name}; there is none")
    lower = options.get("do_lower_case")
    if lower is None:
        lower = all(piece == piece.lower() for piece in pieces if piece not in marks.values())
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token=marks["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),  # None: with lower case
        lowercase=lower,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([mark for mark in marks.values() if mark in numbers])
    first, last = marks["cls_token"], marks["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(mark, numbers[mark]) for mark in (first, last)],
    )
    return tokenizer


def _options(place: Path | zipfile.Path) -> dict[str, Any]:
    """What ``tokenizer_config.json`` says, if it is there."""
    if not (place / OPTIONS).is_file():
        return {}
    try:
        options = json.loads((place / OPTIONS).read_bytes())
    except ValueError as error:
        raise ValueError(f"{OPTIONS}: not valid JSON: {error}") from None
    if not isinstance(options, dict):
        raise ValueError(f"{OPTIONS}: expected an object, got {type(options).__name__}")
    # Others split texts in other ways before they look for pieces.
    kind, is_basic = options.get("tokenizer_class", CLASSES[0]), options.get("do_basic_tokenize", True)
    if kind not in CLASSES or is_basic is not True:
        raise ValueError(
            f"{OPTIONS}: {PIECES} is read of a {' or '.join(CLASSES)} with do_basic_tokenize, got {kind!r} and"
            f" {is_basic}; {CONVERT} may write {FILE}"
        )
    for name in ("do_lower_case", "tokenize_chinese_chars", "strip_accents"):
        if not isinstance(options.get(name), (bool, type(None))):
            raise ValueError(f"{OPTIONS}: {name} must be true or false, got {options[name]!r}")
    return options


def _content(mark: Any, usual: str) -> str:
    """A special token: its text, or an object with it."""
    text = mark.get("content") if isinstance(mark, dict) else mark
    return text if isinstance(text, str) else usual
