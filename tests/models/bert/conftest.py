"""A tiny checkpoint, written as the real ones are, for the tests of the models."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.processors import TemplateProcessing

from linattn_ref.models.bert.config import parameter_shapes, parse_config

BERT = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "hidden_size": 12,
    "intermediate_size": 20,
    "vocab_size": 30,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pad_token_id": 0,
}
ROBERTA = {**BERT, "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}


class Checkpoint:
    """A checkpoint on disk, and what went into it."""

    def __init__(self, folder, fields):
        self.folder = folder
        self.write_config(fields)
        rng = np.random.default_rng(0)
        shapes = parameter_shapes(parse_config(json.dumps(fields)))
        # Far from what training starts with: every bias and gain has to be in its place, and the attention is uneven.
        self.tensors = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        self.write_tensors(self.tensors)
        tokenizer = Tokenizer(WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4}, unk_token="[UNK]"))
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=4)
        tokenizer.save(str(folder / "tokenizer.json"))

    def write_config(self, fields):
        self.fields = fields
        (self.folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")

    def write_tensors(self, tensors):
        save_file(tensors, self.folder / "model.safetensors")

    def write_parts(self, count):
        """The tensors in so many files and an index, in place of one file; zeros under the names of the others."""
        (self.folder / "model.safetensors").unlink()
        file_of = {name: f"model-{i % count}.safetensors" for i, name in enumerate(self.tensors)}
        for file in set(file_of.values()):
            its = {name: x if file_of[name] == file else np.zeros_like(x) for name, x in self.tensors.items()}
            save_file(its, self.folder / file)
        index = {"metadata": {"total_size": 0}, "weight_map": file_of}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture(params=[BERT, ROBERTA], ids=["bert", "roberta"])
def checkpoint(request, tmp_path):
    return Checkpoint(tmp_path, dict(request.param))


@pytest.fixture
def bert_checkpoint(tmp_path):
    return Checkpoint(tmp_path, dict(BERT))


@pytest.fixture
def roberta_checkpoint(tmp_path):
    return Checkpoint(tmp_path, dict(ROBERTA))
