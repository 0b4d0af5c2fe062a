"""Kernels in NumPy: the loop as the paper prints it."""

from linattn_ref.kernels.reference import softmax

__all__ = ["softmax"]
