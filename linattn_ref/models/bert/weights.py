"""A BERT-family encoder's parameters: read from a checkpoint, or drawn as they were before training.

A checkpoint is a directory of three files: ``config.json``, ``model.safetensors``, ``tokenizer.json``. In the place of
the second, there may be several such files and ``model.safetensors.index.json``, which says which tensor is in which;
in the place of the third, a BERT's ``vocab.txt``, or a RoBERTa's ``vocab.json`` and ``merges.txt``.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from linattn_ref.models.bert import tokenizer
from linattn_ref.models.bert.config import Config, parameter_shapes, parse_config, pooler_shapes

__all__ = ["Model", "Parameters", "load", "untrained"]

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Parameters: TypeAlias = "dict[str, NDArray[np.float32]]"

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Weights in formats that are not read: PyTorch's pickles, TensorFlow's, JAX's.
OTHERS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
# Floating types by their names in safetensors; "BF16" is the upper half of a float32, and NumPy has none.
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
ANCHOR = "embeddings.word_embeddings.weight"  # found in every checkpoint; what stands before it is the prefix


class Model(NamedTuple):
    """An encoder: nothing but arrays, and the tokenizer that makes its input."""

    config: Config
    parameters: Parameters  # the names and shapes of `parameter_shapes(config)`, float32
    tokenizer: Tokenizer | None  # None in an untrained model
    sha256: str  # of model.safetensors, or of all its parts in the order of their names; "" in an untrained model
    pooler: Parameters | None = None  # "pooler.dense.weight" and "pooler.dense.bias", if they were stored


def load(folder: str | os.PathLike[str] | zipfile.Path) -> Model:
    """Read a BERT or RoBERTa checkpoint.

    Parameters
    ----------
    folder : path of a directory, or a :class:`zipfile.Path` inside an archive
        Holds ``config.json``, ``model.safetensors`` (or its parts and their index) and ``tokenizer.json`` (or a BERT's
        ``vocab.txt``, or a RoBERTa's ``vocab.json`` and ``merges.txt``).

    Returns
    -------
    Model
        Parameters in float32, whatever floating type they were stored in, bfloat16 too. The tokenizer neither cuts nor
        pads.

    Raises
    ------
    FileNotFoundError
        No such directory, or a file is not in it.
    ImportError
        The installed tokenizers is too new.
    ValueError
        A file is damaged or of a format that is not read, or the model is none that :mod:`linattn_ref.models.bert`
        computes.
    """
    place = folder if isinstance(folder, zipfile.Path) else Path(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"model: no such directory: {place}")
    if not (place / "config.json").is_file():
        raise FileNotFoundError(f"model: config.json is not in {place}")
    config = parse_config((place / "config.json").read_bytes())  # first: of another model, the rest does not matter
    reader = tokenizer.read(place, config.model_type)
    stored, sha256 = _read_weights(place)
    stored = _canonical(stored)
    with_pooler = "pooler.dense.weight" in stored
    return Model(
        config=config,
        parameters=_parse_weights(stored, parameter_shapes(config)),
        pooler=_parse_weights(stored, pooler_shapes(config)) if with_pooler else None,
        tokenizer=reader,
        sha256=sha256,
    )


def untrained(config: Config, rng: np.random.Generator) -> Model:
    """The network as training would find it: weights ``N(0, initializer_range^2)``, biases 0, layer-norm gains 1.

    Parameters
    ----------
    config : Config
        Usually that of a trained model, whose baseline this is.
    rng : numpy.random.Generator

    Returns
    -------
    Model
        Without a tokenizer.
    """
    parameters: Parameters = {}
    for name, shape in parameter_shapes(config).items():
        if name.endswith(".bias"):
            parameters[name] = np.zeros(shape, np.float32)
        elif name.endswith("LayerNorm.weight"):
            parameters[name] = np.ones(shape, np.float32)
        else:
            parameters[name] = np.float32(config.initializer_range) * rng.standard_normal(shape, np.float32)
    return Model(config, parameters, tokenizer=None, sha256="")


def _read_weights(place: Path | zipfile.Path) -> tuple[dict[str, Stored], str]:
    """All tensors of ``place``, and the hash of their files."""
    if (place / WEIGHTS).is_file():
        content = (place / WEIGHTS).read_bytes()
        return _parse_safetensors(content, WEIGHTS), hashlib.sha256(content).hexdigest()
    if not (place / INDEX).is_file():
        raise _no_weights(place)
    file_of, stored, sha256 = _parse_index((place / INDEX).read_bytes()), {}, hashlib.sha256()
    for name in sorted(set(file_of.values())):
        if not (place / name).is_file():
            raise FileNotFoundError(f"model: {name}, a part of the weights by {INDEX}, is not in {place}")
        content = (place / name).read_bytes()
        sha256.update(content)
        part = _parse_safetensors(content, name)
        for tensor in (tensor for tensor, file in file_of.items() if file == name):
            if tensor not in part:
                raise ValueError(f"{name}: the tensor {tensor}, which is in it by {INDEX}, is missing")
            stored[tensor] = part[tensor]
    return stored, sha256.hexdigest()


def _no_weights(place: Path | zipfile.Path) -> Exception:
    """Why there is nothing to read, and what to do."""
    for name in OTHERS:
        if (place / name).is_file():
            is_pickle = name.startswith("pytorch")
            why = (
                "a pickle, which can run any code when it is read" if is_pickle else "of a format that is not read here"
            )
            return ValueError(
                f"model: {name} in {place} is {why}; if you trust it, convert it: `transformers.AutoModel"
                f".from_pretrained(folder).save_pretrained(folder)` writes {WEIGHTS}"
            )
    return FileNotFoundError(f"model: {WEIGHTS} is not in {place}, and no {INDEX}")


def _parse_index(content: bytes) -> dict[str, str]:
    """The file of each tensor."""
    try:
        file_of = json.loads(content)["weight_map"]
        files = set(file_of.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{INDEX}: expected an object with weight_map, the file of each tensor") from None
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{INDEX}: expected names of files in the same folder, got {name!r}")
    return file_of


class Stored(NamedTuple):
    """A tensor as safetensors has it."""

    file: str
    dtype: str  # "F32", say
    shape: tuple[int, ...]
    data: bytearray

    def as_float32(self) -> NDArray[np.float32]:
        """The numbers, if they are of a floating type that is read."""
        if self.dtype == "BF16":
            halves = np.frombuffer(self.data, "<u2").astype(np.uint32)
            return (halves << 16).view(np.float32).reshape(self.shape)
        return np.frombuffer(self.data, FLOATS[self.dtype]).reshape(self.shape).astype(np.float32, copy=False)


def _parse_weights(stored: dict[str, Stored], shapes: dict[str, tuple[int, ...]]) -> Parameters:
    """The tensors of these names, checked, in float32."""
    parameters: Parameters = {}
    for name, shape in shapes.items():
        if name not in stored:
            raise ValueError(f"{WEIGHTS}: the tensor {name} is missing")
        found = stored[name]
        if found.shape != shape:
            raise ValueError(f"{found.file}: {name} must have shape {shape} by config.json, got {found.shape}")
        if found.dtype not in (*FLOATS, "BF16"):
            raise ValueError(f"{found.file}: {name} must be of type {', '.join(FLOATS)} or BF16, got {found.dtype}")
        parameters[name] = found.as_float32()
    return parameters


def _parse_safetensors(content: bytes, file: str) -> dict[str, Stored]:
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(content)
    except SafetensorError as error:
        raise ValueError(f"{file}: damaged or cut short: {error}") from None
    return {name: Stored(file, x["dtype"], tuple(x["shape"]), x["data"]) for name, x in tensors}


def _canonical(stored: dict[str, Stored]) -> dict[str, Stored]:
    """Drop what stands before every name ("bert.", "roberta.", "encoder."); the oldest files say gamma and beta."""
    prefixes = [name.removesuffix(ANCHOR) for name in stored if name.endswith(ANCHOR)]
    if len(prefixes) != 1:
        raise ValueError(f"model.safetensors: expected one tensor named [prefix]{ANCHOR}, got {len(prefixes)}")
    return {
        name.removeprefix(prefixes[0])
        .replace("LayerNorm.gamma", "LayerNorm.weight")
        .replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in stored.items()
        if name.startswith(prefixes[0])
    }
