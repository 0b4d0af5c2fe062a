"""A model and a text small enough for tests, written to disk as real ones are."""

import json

import numpy as np
import pytest
from cluster import Cluster
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from linattn_ref.models.bert.config import parameter_shapes, parse_config

CONFIG = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "hidden_size": 12,
    "intermediate_size": 8,
    "vocab_size": 20,
    "max_position_embeddings": 40,
    "type_vocab_size": 1,
}


@pytest.fixture(autouse=True, scope="module")
def _float32_in_numpy(float32_in_numpy):
    """Figures and benches call kernels; what they make of the numbers is tested here."""


@pytest.fixture
def tiny_model(tmp_path):
    """A BERT of 2 layers, 3 heads of width 4 and 40 positions, its 17 words ``a`` to ``q``."""
    return write_model(tmp_path / "tiny", CONFIG)


@pytest.fixture
def long_model(tmp_path):
    """The same with 128 positions."""
    return write_model(tmp_path / "long", CONFIG | {"max_position_embeddings": 128})


def write_model(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(parse_config(json.dumps(config)))
    tensors = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    words = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2} | {chr(ord("a") + i): 3 + i for i in range(17)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def tiny_text(tmp_path):
    """Eight paragraphs of 50 words."""
    return write_text(tmp_path / "text.txt", 8, 50)


@pytest.fixture
def long_text(tmp_path):
    """Thirty paragraphs of 150 words."""
    return write_text(tmp_path / "long.txt", 30, 150)


def write_text(path, paragraphs, words):
    rng = np.random.default_rng(1)
    text = "\n\n".join(" ".join(rng.choice(list("abcdefghijklmnopq"), words)) for _ in range(paragraphs))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def cluster(tmp_path):
    processes = []
    folder = tmp_path / "cluster"
    folder.mkdir()
    try:
        yield Cluster(folder, processes)
    finally:
        for process, log in processes:
            process.kill()
            process.wait()
            log.close()
