"""Kernels in NumPy: the loop as the paper prints it."""

from linattn_ref.kernels.reference import (
    causal_product,
    delta_product,
    elu_plus_one,
)

__all__ = [
    "causal_product",
    "delta_product",
    "elu_plus_one",
]
