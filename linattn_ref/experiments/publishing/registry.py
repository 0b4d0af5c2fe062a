"""All benches, and how long each takes: the command line, the gallery and the tests read this list.

A line of it is ``benches/bench_<name>.py``, and its options are the arguments of ``compute`` there, as its docstring
describes them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["BENCHES", "MODULES", "Bench"]


class Bench(NamedTuple):
    """One comparison."""

    minutes: float  # that its command takes
    in_gallery: bool = True  # its figure is committed, and drawn again where the packages of its record are
    is_drawn: bool = True
    defaults: Mapping[str, Any] = {}  # of its command, where they are not those of the figure
    peers: tuple[str, ...] = ()  # what it compares with where it is installed, as `pip install` calls it

    def figure(self, name: str) -> str:
        """What its figure is called, and its module."""
        return name if name == "resources" else f"bench_{name}"


# The packages by their names in records, and the modules that these need.
MODULES = {
    "PyTorch": "torch",
    "fast-transformers": "fast_transformers",
    "fast-transformers native": "fast_transformers_native",
    "flash-linear-attention": "fla",
    "flash-linear-attention, naive": "fla",
    "numba-cuda": "numba_cuda",
    "ONNX Runtime": "onnxruntime onnx",
    "OpenVINO": "openvino",
    "performer-pytorch": "performer_pytorch",
    "transformers": "transformers",
}

FAST, ONNX = ("torch", "pytorch-fast-transformers"), ("onnxruntime", "onnx")

# In the gallery's order.
BENCHES = {
    "softmax": Bench(0.5, defaults={"lengths": (512, 1024, 2048)}, peers=("torch", *ONNX, "openvino")),
    "linear": Bench(5, peers=(*FAST, "fla-core", *ONNX)),
    "performer": Bench(1, peers=("torch", "performer-pytorch")),
    "patterns": Bench(3, defaults={"lengths": (1024, 4096)}, peers=(*FAST, "transformers")),
    "reformer": Bench(1, peers=("torch", "transformers")),
    "training": Bench(3, peers=FAST),
    "delta": Bench(3, peers=("torch", "fla-core", *ONNX)),
    "generation": Bench(1, peers=(*FAST, *ONNX)),
    "drawing": Bench(7, peers=FAST),
    "speech": Bench(1, peers=("torch",)),
    "steps": Bench(0.5, peers=(*ONNX, "openvino")),
    "threads": Bench(3),  # on two processors
    "encoder": Bench(7, peers=FAST),
    "cuda": Bench(6),  # where there is a GPU
    "spectrum": Bench(10, in_gallery=False, is_drawn=False),
    "resources": Bench(10, in_gallery=False),  # as a bench; it is a figure
}
