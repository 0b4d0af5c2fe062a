"""A BERT in about a quarter of its bytes, and less when the file is compressed.

Weights are small whole numbers, with one factor for 64 of them. With ``w`` a group of 64 neighbours in a row of a
matrix, and ``m = 127``,

    f = max |w| / m,   w ~ f round(w / f)                       (1)

so that a weight is off by at most f / 2. In the table of words, half of all weights, ``m = 31``: compressed, its
numbers take 6 bits, and attention is no less exact. Gains and biases stay as they are. A stored pooler is left out.
"""

import io
import json
import math
import os
from typing import Any, BinaryIO

import numpy as np

from linattn_ref.models.bert.config import Config
from linattn_ref.models.bert.weights import ANCHOR, Model
from linattn_ref.op import Array

__all__ = ["pack", "unpack"]

GROUP = 64
LARGEST, OF_WORDS = 127, 31
TINY = np.finfo(np.float16).tiny  # a smaller factor would have fewer digits
FACTORS = " factors"  # behind the name of a matrix


def pack(model: Model, pieces: list[str]) -> bytes:
    """Return a file ``.npz`` of the network, rounded by (1), and the ``pieces`` of its vocabulary in their order."""
    held: dict[str, Any] = {
        "config": np.array(json.dumps(model.config._asdict())),
        "sha256": np.array(model.sha256),
        "pieces": np.frombuffer("\n".join(pieces).encode(), np.uint8),
    }
    for name, weights in model.parameters.items():
        if weights.ndim == 1:
            held[name] = weights
            continue
        m = OF_WORDS if name == ANCHOR else LARGEST
        groups = weights.reshape(*weights.shape[:-1], -1, math.gcd(GROUP, weights.shape[-1]))
        largest = np.abs(groups).max(axis=-1, keepdims=True)
        factors = np.maximum(largest / np.float32(m), TINY).astype(np.float16)
        held[name] = np.rint(groups / factors.astype(np.float32)).clip(-m, m).astype(np.int8)  # (1)
        held[name + FACTORS] = factors
    file = io.BytesIO()
    np.savez(file, **held)
    return file.getvalue()


def unpack(file: str | os.PathLike[str] | BinaryIO) -> tuple[Model, list[str]]:
    """Return the network of a file that `pack` made, in float32 and without a tokenizer, and the pieces."""
    with np.load(file) as held:
        config = Config(**json.loads(str(held["config"])))
        parameters: dict[str, Array] = {}
        for name in held.files:
            if name + FACTORS in held.files:
                groups = held[name] * held[name + FACTORS].astype(np.float32)  # (1)
                parameters[name] = groups.reshape(*groups.shape[:-2], -1)
            elif held[name].dtype == np.float32:
                parameters[name] = held[name]
        pieces = bytes(held["pieces"]).decode().split("\n")
        return Model(config, parameters, tokenizer=None, sha256=str(held["sha256"])), pieces
