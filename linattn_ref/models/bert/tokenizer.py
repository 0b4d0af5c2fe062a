"""The tokenizer of a checkpoint: ``tokenizer.json``, or what it was before that file.

Of a BERT that is ``vocab.txt``, of a RoBERTa ``vocab.json`` and ``merges.txt``.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linattn_ref.versions import check_tokenizers

__all__ = ["read"]

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE, PIECES, OPTIONS = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
NUMBERS, MERGES = "vocab.json", "merges.txt"
CONVERT = "`transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
# By the names of tokenizer_config.json.
MARKS = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
ROBERTA_MARKS = dict(zip(MARKS, ("<unk>", "<s>", "</s>", "<pad>", "<mask>"), strict=True))
CLASSES = {PIECES: ("BertTokenizer", "BertTokenizerFast"), NUMBERS: ("RobertaTokenizer", "RobertaTokenizerFast")}


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

    older = {"bert": ((PIECES,), _word_pieces), "roberta": ((NUMBERS, MERGES), _byte_pairs)}
    if not (place / FILE).is_file():
        names, read_older = older.get(model_type, ((), None))  # of other RoBERTas they are of other formats
        if read_older is not None and all((place / name).is_file() for name in names):
            return read_older(place)
        raise FileNotFoundError(
            f"model: {FILE} is not in {place}{', and no ' * bool(names)}{' with '.join(names)}; if it has other files"
            f" of a tokenizer, {CONVERT} writes {FILE}"
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

    options, pieces = _options(place, PIECES), _lines(place, PIECES)
    numbers = {piece: number for number, piece in enumerate(pieces)}
    if len(numbers) < len(pieces):
        twice = next(piece for number, piece in enumerate(pieces) if numbers[piece] != number)
        raise ValueError(f"{PIECES}: expected each piece once, got {twice!r} twice")
    marks = _marks(options, MARKS, numbers, PIECES)
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


def _byte_pairs(place: Path | zipfile.Path) -> Tokenizer:
    """Pairs of bytes (Radford et al. 2019) with the pieces of ``vocab.json``, joined in the order of ``merges.txt``.

    As transformers makes it of a RoBERTa's files.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    options = _options(place, NUMBERS)
    try:
        numbers = json.loads((place / NUMBERS).read_bytes())
    except ValueError as error:
        raise ValueError(f"{NUMBERS}: not valid JSON: {error}") from None
    given = numbers.values() if isinstance(numbers, dict) else ()
    if not given or {*map(type, given)} != {int} or sorted(given) != [*range(len(given))]:
        raise ValueError(f"{NUMBERS}: expected an object of pieces, numbered from 0")
    marks = _marks(options, ROBERTA_MARKS, numbers, NUMBERS)
    merges: Any = [tuple(line.split(" ")) for line in _lines(place, MERGES) if not line.startswith("#version")]
    for pair in merges:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= {*numbers}:
            raise ValueError(f"{MERGES}: expected two pieces per line, they and both as one in {NUMBERS}, got {pair}")
    before = options.get("add_prefix_space", False)
    tokenizer = Tokenizer(models.BPE(numbers, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=before)
    tokenizer.decoder = decoders.ByteLevel()
    first, last = ((marks[name], numbers[marks[name]]) for name in ("cls_token", "sep_token"))
    tokenizer.post_processor = processors.RobertaProcessing(last, first, add_prefix_space=before)
    there = [(name, mark) for name, mark in marks.items() if mark in numbers]
    tokenizer.add_special_tokens([AddedToken(mark, lstrip=name == "mask_token") for name, mark in there])
    return tokenizer


def _lines(place: Path | zipfile.Path, name: str) -> list[str]:
    """The lines of a text, whose last one may end or not."""
    try:
        lines = (place / name).read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8: {error}") from None
    return [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]


def _marks(options: dict[str, Any], usual: dict[str, str], numbers: Collection[str], file: str) -> dict[str, str]:
    """The special tokens, of which three have to be pieces."""
    marks = {name: _content(options.get(name), mark) for name, mark in usual.items()}
    for name in ("unk_token", "cls_token", "sep_token"):
        if marks[name] not in numbers:
            raise ValueError(f"{file}: expected a piece {marks[name]}, the {name}; there is none")
    return marks


def _options(place: Path | zipfile.Path, file: str) -> dict[str, Any]:
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
    classes, is_basic = CLASSES[file], options.get("do_basic_tokenize", True)
    kind = options.get("tokenizer_class", classes[0])
    if kind not in classes or is_basic is not True:
        raise ValueError(
            f"{OPTIONS}: {file} is read of a {' or '.join(classes)} with do_basic_tokenize, got {kind!r} and"
            f" {is_basic}; {CONVERT} may write {FILE}"
        )
    for name in ("do_lower_case", "tokenize_chinese_chars", "strip_accents", "add_prefix_space"):
        if not isinstance(options.get(name), (bool, type(None))):
            raise ValueError(f"{OPTIONS}: {name} must be true or false, got {options[name]!r}")
    return {name: x for name, x in options.items() if x is not None}


def _content(mark: Any, usual: str) -> str:
    """A special token: its text, or an object with it."""
    text = mark.get("content") if isinstance(mark, dict) else mark
    return text if isinstance(text, str) else usual
