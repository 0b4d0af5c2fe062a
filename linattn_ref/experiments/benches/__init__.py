"""Comparisons with other packages, a figure and a table each; ``bench_x_peers`` makes the calls of the others.

``harness`` is what they share: how results are compared and time is measured, the table, the drawing.

``bench_softmax``, ``bench_linear``, ``bench_performer``, ``bench_patterns``, ``bench_reformer``, ``bench_cuda``, and
``bench_spectrum``, the main job beside a bare loop.
"""
