"""A trained image model as a page carries it.

What `linattn_ref train images` learned in float32 is rounded once, to float16, or where that is too much for a page to
int8 with a factor for each column. The page turns that into numbers of float32 and calculates in float64.
"""

import base64
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.data.digits import SIDE
from linattn_ref.experiments.learned import drawing
from linattn_ref.experiments.learned.drawing import Network
from linattn_ref.nested import leaves
from linattn_ref.op import Array
from linattn_ref.training.folder import BEST, LAST

__all__ = ["SHIPPED", "packed", "read", "steps"]

SHIPPED = (drawing.SHIPPED, drawing.SHIPPED.with_name("digits_softmax.safetensors"))
LARGEST = 1_450_000  # bytes of one network: two of them, in base64, leave a page below 4 MB


def read(path: Path) -> Network:
    """A network of digits: the folder of a run of ``linattn-ref train images``, its best checkpoint, or a file.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        It is damaged, or of another run: the page writes digits with linear or softmax attention and a score for each
        intensity.
    """
    if path.is_dir():
        path = path / (BEST if (path / BEST).is_file() else LAST)
    found = drawing.load(path)
    got = {"attention": found.facts["attention"], "head": found.head, "shape": found.shape}
    for name, expected in (("attention", ("linear", "softmax")), ("head", ("softmax",)), ("shape", ((SIDE, SIDE),))):
        if got[name] not in expected:
            either = " or ".join(map(str, expected))
            raise ValueError(f"{path}: a page needs a network with {name} {either}, got {got[name]}")
    return found


# --- Rounded --------------------------------------------------------------------------------------------------------


def packed(trained: Network) -> dict[str, Any]:
    """What the page is given, for JSON: sizes, where each array lies, and all arrays in base64."""
    params, arrays, data = trained.params, [], bytearray()
    form = "float16" if 2 * sum(x.size for _, x in leaves(params)) <= LARGEST else "int8"
    for name, array in leaves(params):
        arrays.append({"name": name, "shape": array.shape, "at": len(data)})
        data += np.float16(array).tobytes() if form == "float16" else b"".join(x.tobytes() for x in steps(array))
        data += bytes(-len(data) % 4)
    if len(data) > LARGEST:
        raise ValueError(f"the network takes {len(data):,} bytes as {form}, a page has room for {LARGEST:,}")
    places, width = params.positions.table.shape  # type: ignore[union-attr]
    hidden, values = params.blocks[0].feed_forward.inner.w.shape[1], params.head.w.shape[1]
    heads, layers = trained.model.heads, len(params.blocks)
    sizes = {"width": width, "hidden": hidden, "heads": heads, "layers": layers, "places": places, "values": values}
    what = {"attention": trained.facts["attention"], "sizes": sizes, "format": form}
    return {**what, "arrays": arrays, "data": base64.b64encode(data).decode()}


def steps(array: Array) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Whole numbers from -127 to 127, and the factor of each column."""
    factor = np.abs(array).reshape(-1, array.shape[-1]).max(axis=0) / np.float32(127)
    factor = np.where(factor > 0, factor, 1).astype(np.float32)
    return factor, np.rint(array / factor).astype(np.int8)
