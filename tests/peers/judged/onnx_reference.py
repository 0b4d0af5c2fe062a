"""The reference of the operator LinearAttention that the package `onnx` has, opset 27; forward alone.

linattn-ref conform tests/peers/judged/onnx_reference.py:delta --op delta --fixed normalise=false
"""

from functools import partial

import onnx_runtime

gated_linear = partial(onnx_runtime.gated_linear, domain="")
delta = partial(onnx_runtime.delta, domain="")
gated_delta = partial(onnx_runtime.gated_delta, domain="")
