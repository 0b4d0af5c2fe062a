"""What compares numbers of threads, and cannot where there is one."""

import numba
import pytest

__all__ = ["several_threads"]

several_threads = pytest.mark.skipif(
    numba.config.NUMBA_NUM_THREADS < 2, reason="compares numbers of threads; NUMBA_NUM_THREADS allows only one"
)
