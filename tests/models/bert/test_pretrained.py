"""The default model on the default text: the numbers that the low-rank argument rests on (network)."""

import numpy as np
import pytest
from scipy.linalg import svdvals

from linattn_ref.data.fetch import MODEL, REVIEWS, open_content
from linattn_ref.data.text import choose_sentences, read_reviews
from linattn_ref.models import bert


@pytest.mark.network
def test_attention_of_real_text_is_low_rank():
    """Normalised cumulative singular value of P at index 128 of 512, by layer.

    The expected numbers come from another implementation, rounded to 0.005. A layer's value has a standard deviation
    of 0.004 to 0.008 between sentences, so at most 0.004 in the mean of four: 0.02 leaves room for nearly four of them.
    """
    model, text = bert.load(open_content(MODEL)), read_reviews(open_content(REVIEWS))
    config = model.config
    assert (config.layers, config.heads, config.head_width, config.max_tokens) == (6, 12, 32, 512)
    assert len(text.documents) == 25_000
    sentences = choose_sentences(text, model.tokenizer, count=4, length=512, rng=np.random.default_rng(0))
    shares = np.zeros((4, 6, 12))
    for s, tokens in enumerate(sentences.tokens):
        for index, layer in enumerate(bert.layers(model, tokens)):
            for head, p in enumerate(layer.p):
                values = svdvals(p)
                shares[s, index, head] = values[:128].sum() / values.sum()
    np.testing.assert_allclose(shares.mean(axis=(0, 2)), [0.80, 0.70, 0.76, 0.86, 0.86, 0.98], atol=0.02)
    assert abs(shares.mean() - 0.83) < 0.01


@pytest.mark.network
def test_its_vocabulary_alone_makes_the_same_tokenizer(tmp_path):
    whole = open_content(MODEL)
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    texts = [
        "Hello, World! Caf\u00e9 na\u00efve [MASK] [unused3] unaffable",
        "\u6771\u4eac x\u200by \t don't 3.14 " + "a" * 120,
        "",
    ]
    both = [bert.load(place).tokenizer for place in (whole, tmp_path)]
    assert both[0].get_vocab() == both[1].get_vocab()
    for text in [*texts, *read_reviews(open_content(REVIEWS)).documents[:200]]:
        given, made = (each.encode(text, "second").ids for each in both)
        assert given == made, text
