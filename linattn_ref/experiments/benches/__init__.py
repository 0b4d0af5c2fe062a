"""Comparisons with other packages, a figure and a table each; ``bench_x_peers`` makes the calls of the others.

``harness`` is what they share: how results are compared and time is measured, the table, the drawing.

``bench_softmax``, ``bench_linear``, ``bench_performer``, ``bench_patterns``, ``bench_reformer``, ``bench_delta``,
``bench_steps`` of single tokens, ``bench_training``, ``bench_encoder``, ``bench_generation``, ``bench_drawing`` and
``bench_speech`` of whole networks, ``bench_cuda``, and ``bench_spectrum``, the main job beside a bare loop.
"""

from linattn_ref import lazy

__all__ = [
    "bench_cuda",
    "bench_cuda_peers",
    "bench_delta",
    "bench_drawing",
    "bench_drawing_ways",
    "bench_encoder",
    "bench_encoder_peers",
    "bench_generation",
    "bench_generation_limit",
    "bench_generation_peers",
    "bench_linear",
    "bench_linear_limit",
    "bench_linear_peers",
    "bench_linear_steps",
    "bench_patterns",
    "bench_patterns_peers",
    "bench_performer",
    "bench_reformer",
    "bench_softmax",
    "bench_spectrum",
    "bench_speech",
    "bench_steps",
    "bench_steps_limit",
    "bench_training",
    "bench_training_own",
    "bench_training_peers",
    "harness",
]

__getattr__, __dir__ = lazy.modules(__name__, __all__)
