"""Comparisons with other packages, a figure and a table each; ``bench_x_peers`` makes the calls of the others.

``bench_softmax``, ``bench_linear``, ``bench_performer``, ``bench_patterns``, ``bench_reformer``, ``bench_cuda``, and
``bench_spectrum``, the main job beside a bare loop.
"""
