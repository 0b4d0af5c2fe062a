"""Comparisons with other packages, a figure and a table each; `publishing.registry` lists them.

``engine`` is what they share: how results are compared and time is measured, the table, the drawing; ``peers`` finds
the other packages, and ``limits`` has what cannot be faster.

``bench_softmax``, ``bench_linear``, ``bench_performer``, ``bench_patterns``, ``bench_reformer``, ``bench_delta``,
``bench_steps`` of single tokens, ``bench_training``, ``bench_encoder``, ``bench_generation``, ``bench_drawing`` and
``bench_speech`` of whole networks, ``bench_threads``, ``bench_cuda``, and ``bench_spectrum``, the main job beside a
bare loop.
"""

from linattn_ref import lazy

__all__, __getattr__, __dir__ = lazy.folder(__name__, __path__)
