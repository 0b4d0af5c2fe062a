"""What the browser's page computes of a text, against `linattn-ref spectrum` on the same text."""

import base64
import json

import numpy as np
import pytest

from linattn_ref.experiments.rank import spectrum
from linattn_ref.lecture.run import sentence
from linattn_ref.models import bert
from linattn_ref.models.bert import rounded, word_pieces

WORDS = "a b c d e f g h i j k l m n o p q a q b p c o d n e m"  # 27, and two marks


@pytest.fixture
def sent():
    return {"lines": []}


@pytest.fixture
def reader(tiny_model, tmp_path, sent, monkeypatch):
    model = bert.load(tiny_model)
    numbers = model.tokenizer.get_vocab()
    file = tmp_path / sentence.NETWORK
    file.parent.mkdir()
    file.write_bytes(rounded.pack(model, sorted(numbers, key=numbers.get)))
    monkeypatch.setattr(sentence.clone, "ROOT", tmp_path)

    def send(kind, content):
        if kind == "status":
            sent["lines"].append(content)
        else:
            data = json.loads(content)
            sent[data["kind"]] = data

    return sentence.start(send)


def array(text, *shape):
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(shape)


def test_the_curves_are_those_of_the_command(reader, sent, tiny_model, tmp_path):
    (tmp_path / "own.txt").write_text(WORDS)
    assert reader.read(WORDS)
    assert reader.compare()
    assert sent["read"]["tokens"] == word_pieces.encode(WORDS, set(WORDS.split()))
    n = len(sent["read"]["tokens"])
    assert (n, sent["read"]["left_out"]) == (29, 0)
    expected = spectrum.compute(model=tiny_model, text=tmp_path / "own.txt", length=n, sentences=1, baselines=1)
    for name, message, tolerance in (
        ("given", "read", 0.02),
        ("untrained", "compared", 0),
        ("gaussian", "compared", 0),
    ):
        found, curves = array(sent[message][name], -1, 3, n), expected.curves[name]
        # Weights of the tiny network are rounded in groups of 4; its baselines are the same numbers.
        np.testing.assert_allclose(found.mean(axis=1), curves.mean, atol=tolerance, rtol=1e-6)
        np.testing.assert_allclose(found[..., expected.k - 1], curves.at_k, atol=tolerance, rtol=1e-6)
    assert any("layer 1" in line for line in sent["lines"])


def test_a_head_is_the_sum_of_its_terms(reader, sent):
    reader.read(WORDS)
    assert reader.look(1, 2)
    data = sent["head"]
    p, u, vt = (array(data[name], 29, 29) for name in ("p", "u", "vt"))
    s = array(data["s"], 29)
    assert (data["layer"], data["head"]) == (1, 2)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose((u * s) @ vt, p, atol=1e-5)  # float32
    share = array(sent["read"]["given"], 2, 3, 29)[1, 2]
    np.testing.assert_allclose(np.cumsum(s) / s.sum(), share, atol=1e-5)


def test_a_text_that_is_too_long_is_cut_before_its_last_mark(reader, sent):
    reader.read(" ".join([WORDS] * 2))
    tokens = sent["read"]["tokens"]
    assert (len(tokens), tokens[0], tokens[-1], sent["read"]["left_out"]) == (40, "[CLS]", "[SEP]", 16)
    assert tokens[1:-1] == [*WORDS.split(), *WORDS.split()][:38]
