"""What several tests of kernels begin with."""

import numpy as np
import pytest


@pytest.fixture
def numbers():
    """``(rng, rows, dtype) -> (rows, lanes)``: a panel of random numbers."""
    from linattn_ref.kernels.jit.loops.simd import vector  # not where the tests of CUDA are collected

    def draw(rng, rows, dtype):
        return rng.standard_normal((rows, vector.lanes(np.empty(0, dtype)))).astype(dtype)

    return draw
