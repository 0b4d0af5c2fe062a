"""ONNX Runtime's operator LinearAttention, whose rows are packed as (B, N, heads * width); forward alone.

linattn-ref conform tests/peers/judged/onnx_runtime.py:gated_delta --op gated_delta --fixed normalise=false
"""

import functools

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


@functools.cache
def session(rule, sizes, heads, kv_heads, scale, domain):
    """A session with the one node, for inputs of these sizes; of the domain "", what the package `onnx` has."""
    given = dict(sizes)
    order = ["q", "k", "v", "past", "decay", "beta"]
    while order[-1] not in given:
        order.pop()
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in given.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("out", "state")]
    node = helper.make_node(
        "LinearAttention",
        [name if name in given else "" for name in order],
        ["out", "state"],
        domain=domain,
        update_rule=rule,
        q_num_heads=heads,
        kv_num_heads=kv_heads,
        scale=scale,
    )
    opsets = [helper.make_opsetid("", 24 if domain else 27), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "one", inputs, outputs), ir_version=11, opset_imports=opsets)
    if not domain:
        return ReferenceEvaluator(model)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(rule, q, k, v, beta=None, log_gate=None, scale=None, state=None, domain=""):
    rows = {"q": q, "k": k, "v": v}
    if log_gate is not None:
        rows["decay"] = log_gate if log_gate.ndim == q.ndim else log_gate[..., None]
    if beta is not None:
        rows["beta"] = beta[..., None]
    feed = {name: np.ascontiguousarray(x.swapaxes(1, 2)).reshape(len(x), x.shape[2], -1) for name, x in rows.items()}
    feed["past"] = np.zeros((*k.shape[:2], k.shape[-1], v.shape[-1]), np.float32) if state is None else state
    sizes = tuple((name, x.shape) for name, x in feed.items())
    scale = float(q.shape[-1] ** -0.5 if scale is None else scale)
    out, last = session(rule, sizes, q.shape[1], k.shape[1], scale, domain).run(None, feed)
    return out.reshape(len(q), q.shape[2], q.shape[1], -1).swapaxes(1, 2), last


def gated_linear(q, k, v, log_gate, *, scale=None, state=None, groups=1, domain="com.microsoft"):
    return run("gated", q, k, v, log_gate=log_gate, scale=scale, state=state, domain=domain)


def delta(q, k, v, beta, *, scale=None, state=None, groups=1, domain="com.microsoft"):
    return run("delta", q, k, v, beta, scale=scale, state=state, domain=domain)


def gated_delta(q, k, v, beta, log_gate, *, scale=None, state=None, groups=1, domain="com.microsoft"):
    return run("gated_delta", q, k, v, beta, log_gate, scale=scale, state=state, domain=domain)
