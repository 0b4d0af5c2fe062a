"""A BERT-family encoder's parameters: read from a checkpoint, or drawn as they were before training.

A checkpoint is a directory of three files: ``config.json``, ``model.safetensors``, ``tokenizer.json``.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from linattn_ref.models.bert.config import Config, parameter_shapes, parse_config, pooler_shapes

__all__ = ["Model", "Parameters", "load", "untrained"]

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Parameters: TypeAlias = "dict[str, NDArray[np.float32]]"

FILES = ("config.json", "model.safetensors", "tokenizer.json")
ANCHOR = "embeddings.word_embeddings.weight"  # found in every checkpoint; what stands before it is the prefix


class Model(NamedTuple):
    """An encoder: nothing but arrays, and the tokenizer that makes its input."""

    config: Config
    parameters: Parameters  # the names and shapes of `parameter_shapes(config)`, float32
    tokenizer: Tokenizer | None  # None in an untrained model
    sha256: str  # of model.safetensors; "" in an untrained model
    pooler: Parameters | None = None  # "pooler.dense.weight" and "pooler.dense.bias", if they were stored


def load(folder: str | os.PathLike[str] | zipfile.Path) -> Model:
    """Read a BERT or RoBERTa checkpoint.

    Parameters
    ----------
    folder : path of a directory, or a :class:`zipfile.Path` inside an archive
        Holds ``config.json``, ``model.safetensors`` and ``tokenizer.json``.

    Returns
    -------
    Model
        Parameters in float32, whatever floating type they were stored in. The tokenizer neither cuts nor pads.

    Raises
    ------
    FileNotFoundError
        No such directory, or one of the three files is not in it.
    ValueError
        A file is damaged, or the model is none that :mod:`linattn_ref.models.bert` computes.
    """
    place = folder if isinstance(folder, zipfile.Path) else Path(folder)
    _check_files(place)
    config = parse_config((place / "config.json").read_bytes())
    weights = (place / "model.safetensors").read_bytes()
    stored = _canonical(_parse_safetensors(weights))
    with_pooler = "pooler.dense.weight" in stored
    return Model(
        config=config,
        parameters=_parse_weights(stored, parameter_shapes(config)),
        pooler=_parse_weights(stored, pooler_shapes(config)) if with_pooler else None,
        tokenizer=_parse_tokenizer((place / "tokenizer.json").read_bytes()),
        sha256=hashlib.sha256(weights).hexdigest(),
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


def _check_files(place: Path | zipfile.Path) -> None:
    if not place.is_dir():
        raise FileNotFoundError(f"model: no such directory: {place}")
    for name in FILES:
        if not (place / name).is_file():
            raise FileNotFoundError(f"model: {name} is not in {place} (needed: {', '.join(FILES)})")


def _parse_weights(stored: dict[str, NDArray[Any]], shapes: dict[str, tuple[int, ...]]) -> Parameters:
    """The tensors of these names, checked, in float32."""
    parameters: Parameters = {}
    for name, shape in shapes.items():
        if name not in stored:
            raise ValueError(f"model.safetensors: the tensor {name} is missing")
        if stored[name].shape != shape:
            raise ValueError(
                f"model.safetensors: {name} must have shape {shape} by config.json, got {stored[name].shape}"
            )
        if not np.issubdtype(stored[name].dtype, np.floating):
            raise ValueError(f"model.safetensors: {name} must be floating-point, got {stored[name].dtype}")
        parameters[name] = stored[name].astype(np.float32, copy=False)
    return parameters


def _parse_safetensors(content: bytes) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as parse

    try:
        return parse(content)
    except SafetensorError as error:
        raise ValueError(f"model.safetensors: damaged or cut short: {error}") from None
    except KeyError as error:  # the reader's table of types has none for it, bfloat16 for one
        raise ValueError(f"model.safetensors: NumPy has no type {error.args[0]}; save the model in float32") from None


def _canonical(stored: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
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


def _parse_tokenizer(content: bytes) -> Tokenizer:
    """The tokenizer, without the cutting and padding that a checkpoint's file may ask for."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # its own errors have no class of their own
        raise ValueError(f"tokenizer.json: damaged: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
