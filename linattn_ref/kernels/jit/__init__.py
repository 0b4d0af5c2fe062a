"""Kernels in Numba for the CPU: the same functions and results as ``reference``, compiled."""

from linattn_ref.kernels.jit import softmax

__all__ = ["softmax"]
