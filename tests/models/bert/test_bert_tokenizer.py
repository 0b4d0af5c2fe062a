"""The tokenizer of a checkpoint: what is read where there is no ``tokenizer.json``, and what is said of each file."""

import json
import shutil
import zipfile
from types import SimpleNamespace

import pytest
import tokenizers

from linattn_ref.data import subwords
from linattn_ref.models import bert

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, "hello", "un", "##aff", "##able", ",", "東", "京", "etude", "'", "s"]
NUMBERS = {piece: number for number, piece in enumerate(PIECES)}


@pytest.fixture
def folder(bert_checkpoint):
    (bert_checkpoint.folder / "tokenizer.json").unlink()
    write(bert_checkpoint.folder, PIECES)
    return bert_checkpoint.folder


def write(folder, pieces, end="\n", last="\n", **options):
    (folder / "vocab.txt").write_bytes((end.join(pieces) + last).encode())
    if options:
        (folder / "tokenizer_config.json").write_text(json.dumps(options))


def pieces_of(folder, text):
    return bert.load(folder).tokenizer.encode(text).tokens


@pytest.mark.parametrize(("end", "last"), [("\n", "\n"), ("\n", ""), ("\r\n", "\r\n")])
def test_pieces_of_a_text(folder, end, last):
    """The longest piece first, text in lower case without accents, Chinese signs apart, special tokens whole."""
    write(folder, PIECES, end, last)
    tokenizer = bert.load(folder).tokenizer
    found = tokenizer.encode("Hello,UNaffable \u00c9tude's \u6771\u4eac[MASK] unknown")
    expected = ["hello", ",", "un", "##aff", "##able", "etude", "'", "s", "東", "京", "[MASK]", "[UNK]"]
    expected = ["[CLS]", *expected, "[SEP]"]
    assert found.tokens == expected
    assert found.ids == [NUMBERS[piece] for piece in expected]
    pair = tokenizer.encode("hello", "un")
    assert (pair.tokens, pair.type_ids) == (["[CLS]", "hello", "[SEP]", "un", "[SEP]"], [0, 0, 0, 1, 1])
    assert tokenizer.decode(found.ids[1:6]) == "hello, unaffable"
    assert tokenizer.truncation is tokenizer.padding is None


def test_inside_a_zip(folder):
    shutil.make_archive(str(folder / "all"), "zip", folder)
    assert pieces_of(zipfile.Path(folder / "all.zip"), "hello") == ["[CLS]", "hello", "[SEP]"]


def test_capitals_are_kept_where_pieces_have_some_unless_it_is_said(folder):
    both = [*PIECES, "Hello", "\u00c9tude"]
    write(folder, both)
    assert pieces_of(folder, "Hello hello \u00c9tude")[1:-1] == ["Hello", "hello", "\u00c9tude"]
    write(folder, both, do_lower_case=True)
    assert pieces_of(folder, "Hello hello \u00c9tude")[1:-1] == ["hello", "hello", "etude"]
    write(folder, both, do_lower_case=False, strip_accents=True)
    assert pieces_of(folder, "Hello \u00c9tude \u00e9tude")[1:-1] == ["Hello", "[UNK]", "etude"]
    write(folder, PIECES, do_lower_case=False)
    assert pieces_of(folder, "Hello hello")[1:-1] == ["[UNK]", "hello"]
    write(folder, PIECES, tokenize_chinese_chars=None)  # as if it were not there
    assert pieces_of(folder, "\u6771\u4eac \u6771")[1:-1] == ["東", "京", "東"]
    write(folder, PIECES, tokenize_chinese_chars=False)
    assert pieces_of(folder, "\u6771\u4eac \u6771")[1:-1] == ["[UNK]", "東"]


def test_special_tokens_may_have_other_names(folder):
    write(folder, ["<unk>", "<s>", "</s>", "a"], unk_token="<unk>", cls_token={"content": "<s>"}, sep_token="</s>")
    assert pieces_of(folder, "a b") == ["<s>", "a", "<unk>", "</s>"]


def test_tokenizer_json_is_read_where_both_are(bert_checkpoint):
    write(bert_checkpoint.folder, PIECES)
    assert pieces_of(bert_checkpoint.folder, "a") == ["[CLS]", "a", "[SEP]"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", "[CLS]\n[SEP]\na\n", r"vocab\.txt: expected a piece \[UNK\], the unk_token; there is none"),
        ("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nb\na\n", r"vocab\.txt: expected each piece once, got 'a' twice"),
        ("vocab.txt", b"[UNK]\n[CLS]\n[SEP]\n\xff\n", r"vocab\.txt: not UTF-8"),
        ("vocab.txt", "", r"vocab\.txt: expected a piece \[UNK\]"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: not valid JSON"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json: expected an object, got list"),
        ("tokenizer_config.json", '{"do_lower_case": "no"}', "do_lower_case must be true or false, got 'no'"),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "BertJapaneseTokenizer"}',
            "got 'BertJapaneseTokenizer' and True",
        ),
        ("tokenizer_config.json", '{"do_basic_tokenize": false}', "got 'BertTokenizer' and False;"),
    ],
)
def test_what_is_wrong_is_named(folder, name, content, message):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        bert.load(folder)


def test_without_a_tokenizer_it_is_said_how_to_have_one(bert_checkpoint):
    """RoBERTa's pieces are others, whatever stands in a vocab.txt."""
    folder = bert_checkpoint.folder
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is not in .*, and no vocab\.txt; .*save_pretrained"):
        bert.load(folder)
    bert_checkpoint.write_config(bert_checkpoint.fields | {"model_type": "roberta"})
    write(folder, PIECES)
    with pytest.raises(FileNotFoundError, match=r"and no vocab\.json with merges\.txt; .*save_pretrained"):
        bert.load(folder)
    bert_checkpoint.write_config(bert_checkpoint.fields | {"model_type": "camembert"})
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is not in [^,]*; .*save_pretrained"):
        bert.load(folder)


# --- RoBERTa's files ------------------------------------------------------------------------------------------------

PAIRS = ["h e", "l l", "he ll", "hell o", "\u0120 hello"]  # the first byte of the last stands for a space
BYTES = ["<s>", "<pad>", "</s>", "<unk>", *"helo!", "\u0120", *(pair.replace(" ", "") for pair in PAIRS), "<mask>"]


@pytest.fixture
def pairs(roberta_checkpoint):
    folder = roberta_checkpoint.folder
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(BYTES)}))
    (folder / "merges.txt").write_bytes("\n".join(["#version: 0.2", *PAIRS, ""]).encode())
    return folder


def test_pairs_of_bytes(pairs):
    """A word with the space before it is another one; `<mask>` takes in the space before it."""
    tokenizer = bert.load(pairs).tokenizer
    found = tokenizer.encode("hello hello! <mask>lo")
    expected = ["<s>", "hello", "\u0120hello", "!", "<mask>", "l", "o", "</s>"]
    assert found.ids == [BYTES.index(piece) for piece in expected]
    assert tokenizer.encode("hello", "he").tokens == ["<s>", "hello", "</s>", "</s>", "he", "</s>"]
    assert tokenizer.decode(found.ids[1:4]) == "hello hello!"
    (pairs / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    assert pieces_of(pairs, "hello") == ["<s>", "\u0120hello", "</s>"]
    (pairs / "tokenizer_config.json").write_text('{"add_prefix_space": null}')
    assert pieces_of(pairs, "hello") == ["<s>", "hello", "</s>"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", "{", r"vocab\.json: not valid JSON"),
        ("vocab.json", '{"<s>": 1, "a": 1}', r"vocab\.json: expected an object of pieces, numbered from 0"),
        ("vocab.json", '{"<s>": "0", "a": "1"}', r"vocab\.json: expected an object of pieces, numbered from 0"),
        ("vocab.json", '{"<s>": 0, "</s>": 1}', r"vocab\.json: expected a piece <unk>, the unk_token"),
        ("merges.txt", "h e\nh o\n", r"merges\.txt: expected two pieces per line, .*, got \('h', 'o'\)"),
        ("merges.txt", "h e l\n", r"merges\.txt: expected two pieces per line, .*, got \('h', 'e', 'l'\)"),
        ("tokenizer_config.json", '{"tokenizer_class": "BertTokenizer"}', r"vocab\.json is read of a RobertaTokenizer"),
        ("tokenizer_config.json", '{"add_prefix_space": 1}', "add_prefix_space must be true or false, got 1"),
    ],
)
def test_what_is_wrong_with_pairs_is_named(pairs, name, content, message):
    (pairs / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        bert.load(pairs)


# --- Another version of tokenizers ----------------------------------------------------------------------------------


def test_a_version_with_other_calls_is_told_and_no_file_is_blamed(bert_checkpoint, monkeypatch):
    monkeypatch.setattr(tokenizers, "__version__", "1.0.0-rc.3")
    for call in (lambda: bert.load(bert_checkpoint.folder), lambda: subwords.train(["a b"], 300)):
        with pytest.raises(
            ImportError, match=r"tokenizers: expected a version .* below 1, got 1\.0\.0-rc\.3: pip install"
        ):
            call()


@pytest.mark.parametrize("calls", [{}, {"from_buffer": lambda content: object()}], ids=["from_buffer", "no_truncation"])
def test_a_call_that_is_gone_is_no_damage_of_the_file(bert_checkpoint, monkeypatch, request, calls):
    monkeypatch.setattr(tokenizers, "Tokenizer", SimpleNamespace(**calls))
    with pytest.raises(AttributeError, match=request.node.callspec.id):
        bert.load(bert_checkpoint.folder)
