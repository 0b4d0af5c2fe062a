"""ONNX Runtime and OpenVINO run graphs: here of a single node, as functions that return arrays, or of a network.

=========================  ===========================================================================================
LinearAttention            of ONNX Runtime (``com.microsoft``), with its four rules; the state is an input and an output
MultiHeadAttention         of ONNX Runtime (``com.microsoft``), its softmax attention by blocks
ScaledDotProductAttention  of OpenVINO
=========================  ===========================================================================================

Both packages have forward passes alone. Nodes of ONNX Runtime read rows ``(B, N, H D)``, and so inputs are laid out
before any clock starts. Each graph runs on one thread in float32, also where the processor has 16 bits.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from linattn_ref.experiments.benches import engine
from linattn_ref.experiments.benches.peers import packed, unpacked
from linattn_ref.op import Array

__all__ = ["ONNX", "OPENVINO", "Graph", "bound", "bound_step", "find_runtimes", "linear_attention", "linear_step"]
__all__ += ["softmax_attention"]

ONNX, OPENVINO = "ONNX Runtime", "OpenVINO"
Run = Callable[[], Sequence[Array]]


def find_runtimes() -> dict[str, Any]:
    """Those that can be imported, by name; ONNX Runtime needs ``onnx``, with which graphs are written."""
    found = {ONNX: engine.find("onnx.helper") and engine.find("onnxruntime"), OPENVINO: engine.find("openvino")}
    return {name: module for name, module in found.items() if module is not None}


# --- Graphs of ONNX Runtime ------------------------------------------------------------------------------------------


class Graph:
    """A graph of ONNX's, node after node. Where an input is an array, it is a constant."""

    def __init__(self) -> None:
        self.helper, self.numpy = engine.find("onnx.helper"), engine.find("onnx.numpy_helper")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.sums: list[str] = []  # states after a token are called as before, with "_after"

    def add(self, kind: str, *inputs: Any, outputs: Any = 1, domain: str = "", **attributes: Any) -> Any:
        """A node; returns the name of its output, or the names of so many."""
        names = []
        for x in inputs:
            if not isinstance(x, str):
                self.constants.append(self.numpy.from_array(np.asarray(x), f"constant{len(self.constants)}"))
                x = self.constants[-1].name
            names.append(x)
        made = [f"{kind}{len(self.nodes)}_{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
        self.nodes.append(self.helper.make_node(kind, names, made, domain=domain, **attributes))
        return made[0] if len(made) == 1 else made

    def affine(self, x: str, params: Any, outputs: Any = 1) -> str:
        """``x w + b``."""
        return str(self.add("Gemm", x, params.w, params.b, outputs=outputs))

    def norm(self, x: str, params: Any) -> str:
        return str(self.add("LayerNormalization", x, params.gain, params.bias, epsilon=1e-5))

    def linear_attention(
        self, *inputs: str, state: str, heads: int, rule: str = "linear", scale: float = 1.0, out: str | None = None
    ) -> str:
        """The output ``(B, N, H M)``, without a denominator, of queries, keys, values, and what the rule takes."""
        self.sums.append(state)
        options = {"update_rule": rule, "q_num_heads": heads, "kv_num_heads": heads, "scale": float(scale)}
        made, rows = [out or f"of_{state}", f"{state}_after"], (*inputs[:3], state, *inputs[3:])
        return str(self.add("LinearAttention", *rows, outputs=made, domain="com.microsoft", **options)[0])

    def session(self, runtime: Any, sizes: Mapping[str, Sequence[int]], out: str) -> Any:
        """To run it on one thread, with inputs of these sizes; ``tokens`` are integers."""
        kinds, value = engine.find("onnx").TensorProto, self.helper.make_tensor_value_info
        inputs = [value(name, kinds.INT64 if name == "tokens" else kinds.FLOAT, [*x]) for name, x in sizes.items()]
        outputs = [value(name, kinds.FLOAT, None) for name in (out, *(f"{state}_after" for state in self.sums))]
        graph = self.helper.make_graph(self.nodes, "graph", inputs, outputs, self.constants)
        opsets = [self.helper.make_opsetid("", 22), self.helper.make_opsetid("com.microsoft", 1)]
        model = self.helper.make_model(graph, ir_version=10, opset_imports=opsets)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def bound(runtime: Any, session: Any, arrays: Any, sums: Sequence[str], out: str) -> Callable[..., Array]:
    """A session whose inputs and sums are bound once; a call with the others returns the output."""
    binding = session.io_binding()
    values = {name: runtime.OrtValue.ortvalue_from_numpy(x) for name, x in arrays.items()}
    for name in values.keys() - {out}:
        binding.bind_ortvalue_input(name, values[name])
    for name in sums:
        binding.bind_ortvalue_output(f"{name}_after", values[name])
    binding.bind_ortvalue_output(out, values[out])

    def call(others: Mapping[str, Array]) -> Array:
        for name, x in others.items():
            binding.bind_cpu_input(name, x)
        session.run_with_iobinding(binding)
        return np.asarray(values[out].numpy())

    return call


# --- Linear attention ------------------------------------------------------------------------------------------------


def _rule(runtime: Any, scale: float, q: Array, k: Array, v: Array, beta: Any = None, log_gate: Any = None) -> Any:
    """A session with LinearAttention, and its inputs."""
    feed = {"q": packed(q), "k": packed(k), "v": packed(v)}
    feed["state"] = np.zeros((*k.shape[:2], k.shape[-1], v.shape[-1]), v.dtype)
    if log_gate is not None:
        feed["log_gate"] = packed(log_gate if log_gate.ndim == k.ndim else log_gate[..., None])
    if beta is not None:
        feed["beta"] = packed(beta[..., None])
    kinds, graph = {"log_gate": "gated", "beta": "delta"}, Graph()
    rule = "_".join(word for name, word in kinds.items() if name in feed) or "linear"
    more = [name if name in feed else "" for name in kinds if name in feed or "beta" in feed]
    options: Any = {"state": "state", "heads": q.shape[1], "rule": rule, "scale": scale, "out": "out"}
    graph.linear_attention("q", "k", "v", *more, **options)
    return graph.session(runtime, {name: x.shape for name, x in feed.items()}, "out"), feed


def linear_attention(runtime: Any, q: Array, *rows: Any, scale: float, goes_on: bool = False) -> Run:
    """A call of LinearAttention on ``(B, H, N, D)``: ``q, k, v``, and ``beta`` and ``log_gate`` or None.

    It begins with a state of 0 each time, unless it ``goes_on`` from where the last call ended.
    """
    run, feed = _rule(runtime, scale, q, *rows)

    def call() -> Sequence[Array]:
        out, after = run.run(None, feed)
        if goes_on:
            feed["state"] = after
        return (unpacked(out, q.shape[1]),)

    return call


def bound_step(runtime: Any, q: Array, *rows: Any, scale: float) -> Run:
    """The same by ``run_with_iobinding``, with one buffer for the state before and after: their fastest call.

    Inputs are bound once, so that no array of NumPy's is looked at in a call.
    """
    run, feed = _rule(runtime, scale, q, *rows)
    step = bound(runtime, run, {**feed, "out": np.empty_like(feed["v"])}, ["state"], "out")
    return lambda: (unpacked(step({}), q.shape[1]),)


def linear_step(runtime: Any, q: Array, k: Array, v: Array, s: Array, z: Array, *, eps: float) -> Run:
    """One token of linear attention with elu + 1 and its denominator, ``(B, H, D)``; the sums move on where they are.

    A sum of values and one of ones are two nodes LinearAttention. Queries, keys and values are given anew each time.
    """
    graph, (b, h, m) = Graph(), v.shape
    phi_q, phi_k = (graph.add("Add", graph.add("Elu", name), np.float32(1)) for name in "qk")
    sums = {"s": ("v", m), "z": ("ones", 1)}
    top, bottom = (
        graph.add("Reshape", graph.linear_attention(phi_q, phi_k, row, state=name, heads=h), np.array([b, h, width]))
        for name, (row, width) in sums.items()
    )
    graph.add("Div", top, graph.add("Add", bottom, np.float32(eps)), outputs=["out"])
    rows = {name: packed(x[:, :, None]) for name, x in zip("qkv", (q, k, v), strict=True)}
    held = {"ones": np.ones((b, 1, h), v.dtype), "s": s.copy(), "z": z[..., None].copy()}
    run = graph.session(runtime, {name: x.shape for name, x in {**rows, **held}.items()}, "out")
    step = bound(runtime, run, {**held, "out": np.empty_like(v)}, [*sums], "out")
    return lambda: (step(rows),)


# --- Softmax --------------------------------------------------------------------------------------------------------


def softmax_attention(name: str, runtime: Any, qkv: Sequence[Array], causal: bool) -> Run:
    """A call of the runtime's softmax attention."""
    return {ONNX: _multi_head, OPENVINO: _scaled_dot_product}[name](runtime, qkv, causal)


def _multi_head(runtime: Any, qkv: Sequence[Array], causal: bool) -> Run:
    feed, heads = dict(zip("qkv", map(packed, qkv), strict=True)), qkv[0].shape[1]
    graph = Graph()
    options: Any = {"outputs": ["out"], "domain": "com.microsoft", "num_heads": heads, "unidirectional": int(causal)}
    graph.add("MultiHeadAttention", *feed, **options)
    run = graph.session(runtime, {name: x.shape for name, x in feed.items()}, "out")
    return lambda: (unpacked(run.run(None, feed)[0], heads),)


def _scaled_dot_product(runtime: Any, qkv: Sequence[Array], causal: bool) -> Run:
    ops = engine.find("openvino.opset13")
    inputs = [ops.parameter([*x.shape], np.float32) for x in qkv]
    model = runtime.Model([ops.scaled_dot_product_attention(*inputs, causal=causal)], inputs)
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = runtime.Core().compile_model(model, "CPU", options).create_infer_request()
    infer = partial(request.infer, [*qkv], share_inputs=True, share_outputs=True)
    return lambda: (infer()[0],)
