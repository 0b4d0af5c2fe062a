"""The comparison of sparse patterns: what it runs and says. No time is tested."""

import pytest

from linattn_ref.experiments.benches import bench_patterns

pytestmark = pytest.mark.slow  # kernels are compiled for float32 for the slow tests

SMALL = {"lengths": (32, 35), "heads": 2, "width": 4, "window": 4, "block": 4, "drawn": 1, "repeats": 3}


def kernels_of(results, mechanism, length):
    return {row.kernel for row in results.rows if (row.mechanism, row.length) == (mechanism, length)}


def test_beside_pytorch_and_huggingface():
    """Whatever is installed agrees, and takes part where the length suits it."""
    pytest.importorskip("torch", reason="PyTorch is not installed (extra peers)")
    peers = bench_patterns.find()
    results = bench_patterns.compute(**SMALL)
    assert bench_patterns.ALL_PAIRS in kernels_of(results, "local", 35)
    if peers.longformer is not None and peers.bigbird is not None:
        for mechanism in ("longformer", "bigbird"):
            assert "transformers" in kernels_of(results, mechanism, 32)
            assert "transformers" not in kernels_of(results, mechanism, 35)
    if peers.local is not None:
        assert "fast-transformers" in kernels_of(results, "local", 35)
    assert all(f"{name} {version}" in bench_patterns.table(results) for name, version in results.versions.items())
