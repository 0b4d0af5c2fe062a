"""Checkpoints: everything that a run needs to go on as if it had never stopped, in one safetensors file.

Arrays stand in it by the names of their fields, ``params.blocks.0.inner.w``; numbers and texts, such as the step, as
JSON beside them. It is written to a temporary file and renamed, so that a process killed at any moment leaves the last
whole one.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.atomic import write_all
from linattn_ref.nested import leaves
from linattn_ref.op import Array

__all__ = ["Checkpoint", "load", "restore", "save"]

FACTS = "facts"  # the key of the JSON in the file's metadata


class Checkpoint(NamedTuple):
    """What a file holds."""

    arrays: dict[str, Array]
    facts: dict[str, Any]  # what JSON can hold


def save(path: str | os.PathLike[str], trees: Any, facts: dict[str, Any]) -> None:
    """Write a checkpoint; the one that stood at ``path`` is there until the new one is whole.

    Parameters
    ----------
    path : path
    trees : NamedTuple
        Arrays, and NamedTuples of arrays: parameters, an optimiser's state. Numbers in them are not kept.
    facts : dict
        What JSON can hold.

    Raises
    ------
    TypeError
        ``trees`` have a NumPy number, or something else that is no array; ``facts`` have what JSON cannot hold.
    OSError
        A full disk, no permission: naming the file. What stood there is left.
    """
    from safetensors.numpy import save as to_bytes

    arrays = {name: np.asarray(array, order="C") for name, array in leaves(trees)}  # one without axes stays so
    write_all({Path(path): to_bytes(arrays, metadata={FACTS: json.dumps(facts)})})


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        It is damaged, or no checkpoint of :func:`save`.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {})[FACTS])
            return Checkpoint({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is no checkpoint, or a damaged one ({error})") from error


def restore(tree: Any, checkpoint: Checkpoint, name: str) -> None:
    """Write the arrays called ``name....`` over those of ``tree``, of the same names, shapes and dtypes.

    Raises
    ------
    ValueError
        They are those of another model: which array is missing, one too many, or of another shape; which places of
        ``tree`` share their memory and differ in the checkpoint. Or an array of ``tree`` is read-only. ``tree`` is left
        as it was.
    """
    ours = {f"{name}.{field}".removesuffix("."): array for field, array in leaves(tree)}
    theirs = {key: x for key, x in checkpoint.arrays.items() if key == name or key.startswith(f"{name}.")}
    for key in sorted(ours.keys() ^ theirs.keys()):
        lacks = "lacks" if key in ours else "has"
        raise ValueError(f"the checkpoint is of another model: it {lacks} {key}")
    for key, array in ours.items():
        if (array.shape, array.dtype) != (theirs[key].shape, theirs[key].dtype):
            raise ValueError(
                f"the checkpoint is of another model: {key} is {theirs[key].dtype} {theirs[key].shape} in it,"
                f" expected {array.dtype} {array.shape}"
            )
        if not array.flags.writeable:
            raise ValueError(f"{key}: expected an array that can be written to, got a read-only one")
    before = [array.copy() for array in ours.values()]
    for key, array in ours.items():
        array[...] = theirs[key]
    for key, array in ours.items():
        if not np.array_equal(array, theirs[key], equal_nan=True):  # it was written over: a place that is tied to it
            tied = [other for other, x in ours.items() if other != key and np.may_share_memory(array, x)]
            for x, old in zip(ours.values(), before, strict=True):
                x[...] = old
            raise ValueError(
                f"the checkpoint is of another model: {key} and {', '.join(tied)} share their memory here, and are not"
                " the same in it"
            )
